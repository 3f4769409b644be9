"""The clients of the SDK and of FastMCP, in both eras, with a gateway in front of a FastMCP server:
everything that it offers, through whatever the client's own API makes of it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import fastmcp
import mcp
import mcp_types as types
import pytest

from tests.gateway.front import MODERN, Front, front, listening, until
from tests.interop.fastmcp_server import server

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
KINDS = [("SDK", "legacy"), ("SDK", MODERN), ("FastMCP", "legacy"), ("FastMCP", MODERN)]
WORDS = types.TextContent(type="text", text="words")


class User:
    """A client of one kind, and what it was told."""

    def __init__(self, kind: str, era: str) -> None:
        self.kind, self.era, self.name = kind, era, f"{kind}_{era}".replace("-", "_")
        self.steps: list[str | None] = []
        self.lines: list[Any] = []
        self.notified: list[str] = []
        self.client: Any = None

    @contextlib.asynccontextmanager
    async def connected(self, url: str) -> AsyncIterator["User"]:
        if self.kind == "SDK":
            client: Any = mcp.Client(
                url,
                mode=self.era,
                elicitation_callback=self.elicit,
                sampling_callback=self.sample,
                list_roots_callback=self.list_roots,
                logging_callback=self.log,
                log_level="debug",
                message_handler=self.hear,
            )
        else:
            client = fastmcp.Client(
                url,
                mode=self.era,
                elicitation_handler=self.fastmcp_elicit,
                sampling_handler=self.fastmcp_sample,
                roots=["file:///one"],
                log_handler=self.log,
                message_handler=self.hear,
            )
        async with client:
            self.client = client
            yield self

    async def elicit(self, context: Any, params: Any) -> Any:
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def sample(self, context: Any, params: Any) -> Any:
        return types.CreateMessageResult(role="assistant", content=WORDS, model="none")

    async def list_roots(self, context: Any) -> Any:
        return types.ListRootsResult(roots=[types.Root(uri="file:///one")])  # pyright: ignore[reportArgumentType]

    async def fastmcp_elicit(self, message: str, kind: Any, params: Any, context: Any) -> Any:
        return {"name": "Ada"}

    async def fastmcp_sample(self, messages: Any, params: Any, context: Any) -> Any:
        return "words"

    async def log(self, params: Any) -> None:
        self.lines.append(params.data)

    async def hear(self, message: Any) -> None:
        if (method := getattr(message, "method", None)) is not None:
            self.notified.append(method)

    async def step(self, progress: float, total: float | None, message: str | None) -> None:
        self.steps.append(message)

    async def call(self, tool: str, /, **arguments: Any) -> Any:
        told = {"progress_callback" if self.kind == "SDK" else "progress_handler": self.step}
        return await self.client.call_tool(tool, arguments, **told)

    async def text_of(self, tool: str, /, **arguments: Any) -> str:
        return (await self.call(tool, **arguments)).content[0].text

    async def tools(self) -> set[str]:
        found = await self.client.list_tools()
        return {tool.name for tool in getattr(found, "tools", found)}

    async def read(self, uri: str) -> str:
        found = await self.client.read_resource(uri)
        return getattr(found, "contents", found)[0].text

    async def complete(self) -> list[str]:
        ref = types.PromptReference(type="ref/prompt", name="greet")
        found = await self.client.complete(ref, {"name": "name", "value": "A"})
        return getattr(found, "completion", found).values


async def use_everything(user: User) -> None:
    assert {"add", "steps", "ask", "wait"} <= await user.tools()
    assert (await user.call("add", a=2, b=3)).structured_content == {"result": 5}
    assert await user.text_of("steps", count=3) == "done"
    assert user.steps == ["step 1", "step 2", "step 3"]
    asked = {what: json.loads(await user.text_of("ask", what=what)) for what in ASKED}
    assert asked["name"]["content"] == {"name": "Ada"}
    assert asked["words"]["content"]["text"] == "words"
    assert [root["uri"] for root in asked["roots"]["roots"]] == ["file:///one"]
    prompt = await user.client.get_prompt("greet", {"name": "Ada"})
    assert prompt.messages[0].content.text == "Hello, Ada"
    assert await user.read("note://one") == "the note"
    assert await user.read("note://of/Ada") == "the note of Ada"
    assert await user.complete() == ["Ada", "Alan"]
    if user.era == "legacy" or user.kind == "SDK":  # FastMCP's client asks for no log level
        await user.text_of("log", line="a line")
        await until(lambda: user.lines)


ASKED = ("name", "words", "roots")
CHANGED = "notifications/tools/list_changed"


@contextlib.asynccontextmanager
async def users() -> AsyncIterator[tuple[Front, list[User]]]:
    """A client of each kind, and the gateway."""
    settings = {"profiles": {"bare": {"prefix": False}}}
    app = server.http_app()
    async with (
        app.router.lifespan_context(app),
        listening(app) as upstream,
        front({"made": f"{upstream}/mcp"}, settings=settings) as gateway,
        contextlib.AsyncExitStack() as stack,
    ):
        found = [User(*kind) for kind in KINDS]
        for user in found:
            await stack.enter_async_context(user.connected(f"{gateway.url}/bare"))
        yield gateway, found


@pytest.mark.timeout(60)
async def test_real_clients_use_everything_that_a_server_offers() -> None:
    async with users() as (_, found), asyncio.timeout(30):
        await asyncio.gather(*(use_everything(user) for user in found))


@pytest.mark.timeout(60)
async def test_real_clients_cancel_calls_and_hear_of_changed_lists() -> None:
    async with users() as (gateway, found):
        calls = [asyncio.create_task(user.call("wait", tag=user.name)) for user in found]
        await until(lambda: gateway.gateway.in_flight == len(found))
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        async with asyncio.timeout(10):
            while set((await found[0].text_of("ended")).split()) != {one.name for one in found}:
                await asyncio.sleep(0.05)

        # The modern era has no notifications outside of a subscription.
        listening = [user for user in found if user.era == "legacy"]
        await until(lambda: gateway.gateway.endpoint.stream_count >= len(listening))
        await found[0].text_of("grow", name="grown")
        await until(lambda: all(CHANGED in user.notified for user in listening))
        for user in listening:
            assert "grown" in await user.tools()
