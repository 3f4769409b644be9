"""Servers made with FastMCP and with the second TypeScript SDK: all features, transports and eras.

Both offer the same by the same names. A server runs for all tests of its transport and era, and so
does its client: starting one takes longer than any test.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

import pytest
from mcp_types import PromptReference, TextContent, TextResourceContents

from tests.interop.matrix import Feature, at, lacks, proves, refuses
from tests.interop.programs import (
    BOUND,
    HERE,
    Heard,
    Mode,
    Person,
    listening,
    node,
    running,
    said,
)
from tests.ports import free_port
from toolkeep import CallTimedOut, Client, RemoteProtocolError
from toolkeep.errors import FailureKind
from toolkeep.events import Changed, Progress

MAKERS = {
    "FastMCP": [sys.executable, str(HERE / "fastmcp_server.py")],
    "TypeScript SDK": node(HERE / "typescript_server.mjs"),
}
STATELESS = "TypeScript SDK", "stateless", "legacy"
"""Each request is another server to it: nothing is left to ask or to tell its client with."""
CASES: list[tuple[str, str, Mode]] = [
    ("FastMCP", "stdio", "legacy"),
    ("FastMCP", "stdio", "modern"),
    ("FastMCP", "http", "legacy"),
    ("FastMCP", "http", "modern"),
    ("TypeScript SDK", "stdio", "legacy"),
    ("TypeScript SDK", "stdio", "modern"),
    ("TypeScript SDK", "stateless", "legacy"),
    ("TypeScript SDK", "stateless", "modern"),
    ("TypeScript SDK", "reject", "modern"),
]
TRANSPORTS = {
    "stdio": "stdio",
    "http": "HTTP",
    "stateless": "HTTP, stateless",
    "reject": "HTTP, modern only",
}


def case(maker: str, way: str, mode: Mode) -> Any:
    marks = (
        at(maker, TRANSPORTS[way], mode),
        pytest.mark.leaks_ok("the client, and the sockets that it keeps, are the module's"),
    )
    return pytest.param((maker, way, mode), marks=marks, id=f"{maker}-{way}-{mode}")


all_cases = pytest.mark.parametrize("bench", [case(*each) for each in CASES], indirect=True)
with_a_way_back = pytest.mark.parametrize(
    "bench", [case(*each) for each in CASES if each != STATELESS], indirect=True
)
without = pytest.mark.parametrize("bench", [case(*STATELESS)], indirect=True)


@dataclass
class Bench:
    """A client at its server, with somebody who answers, and ears."""

    client: Client
    heard: Heard


@asynccontextmanager
async def served(maker: str, way: str) -> AsyncIterator[dict[str, Any]]:
    """The server, as a client is told of it."""
    command = [*MAKERS[maker], way]
    if way == "stdio":
        yield {"name": "made", "command": command[0], "args": command[1:]}
    elif maker == "FastMCP":
        port = free_port()
        async with running(command, {"PORT": str(port)}, stderr=asyncio.subprocess.DEVNULL):
            await open_port(port)
            yield {"name": "made", "url": f"http://127.0.0.1:{port}/mcp"}
    else:
        async with listening(command) as port:
            yield {"name": "made", "url": f"http://127.0.0.1:{port}/mcp"}


async def open_port(port: int) -> None:
    async with asyncio.timeout(BOUND):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return await writer.wait_closed()


@pytest.fixture(scope="module")
async def bench(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Bench]:
    maker, way, mode = request.param
    heard, answers = Heard(), Person().answers()
    async with served(maker, way) as spec, Client(spec, mode=mode, **answers) as client:
        assert client.era == mode
        with closing(client.observe(heard)):
            await client.set_log_level("info")
            yield Bench(client, heard)


@all_cases
@pytest.mark.requirement("S12", "S13")
@proves("tools")
async def test_tools_are_listed_and_called(bench: Bench):
    listed = {tool.name for tool in await bench.client.list_tools()}
    assert {"add", "steps", "log", "wait", "ended", "ask", "grow"} <= listed
    assert (await bench.client.call_tool("add", {"a": 2, "b": 3})).data == {"result": 5}


@all_cases
@proves("prompts", "completion")
async def test_prompts_are_listed_filled_in_and_completed(bench: Bench):
    assert [prompt.name for prompt in await bench.client.list_prompts()] == ["greet"]
    (message,) = (await bench.client.get_prompt("greet", {"name": "Ada"})).messages
    assert isinstance(message.content, TextContent)
    assert message.content.text == "Hello, Ada"
    ref = PromptReference(type="ref/prompt", name="greet")
    assert (await bench.client.complete(ref, "name", "A")).values == ["Ada", "Alan"]


@all_cases
@proves("resources")
async def test_resources_are_listed_and_read(bench: Bench):
    assert [resource.uri for resource in await bench.client.list_resources()] == ["note://one"]
    (template,) = await bench.client.list_resource_templates()
    assert template.uri_template == "note://of/{name}"
    for uri, expected in (("note://one", "the note"), ("note://of/Ada", "the note of Ada")):
        (text,) = (await bench.client.read_resource(uri)).contents
        assert isinstance(text, TextResourceContents)
        assert text.text == expected


@all_cases
@pytest.mark.requirement("L2")
@proves("progress")
async def test_progress_arrives_in_order(bench: Bench):
    async with bench.client.stream("steps", {"count": 4}) as call:
        seen = [event async for event in call if isinstance(event, Progress)]
    assert [event.fraction for event in seen] == [0.25, 0.5, 0.75, 1.0]


@all_cases
@pytest.mark.requirement("L4")
@proves("logging")
async def test_its_log_is_heard(bench: Bench):
    assert (await bench.client.call_tool("log", {"line": "hear, hear"})).success
    await bench.heard.until(lambda event: "hear, hear" in said(event))


@all_cases
@pytest.mark.requirement("P5")
@proves("cancellation")
async def test_a_call_that_is_given_up_ends_at_the_server(bench: Bench):
    with pytest.raises(CallTimedOut):
        await bench.client.call_tool("wait", {"tag": "given-up"}, timeout=0.3)
    async with asyncio.timeout(BOUND):
        while "given-up" not in (await bench.client.call_tool("ended")).text:
            await asyncio.sleep(0.01)


@with_a_way_back
@pytest.mark.requirement("L4")
@proves("list changes")
async def test_a_list_that_has_changed_is_listed_anew(bench: Bench):
    assert "more" not in {tool.name for tool in await bench.client.list_tools()}
    assert (await bench.client.call_tool("grow", {"name": "more"})).success
    await bench.heard.until(lambda event: isinstance(event, Changed) and event.what == "tools")
    assert "more" in {tool.name for tool in await bench.client.list_tools()}


def asking(what: str, expected: str, *features: Feature) -> Any:
    return pytest.param(what, expected, marks=proves(*features), id=what)


@with_a_way_back
@pytest.mark.parametrize(
    ("what", "expected"),
    [
        asking("name", '"name":"Ada"', "elicitation"),
        asking("words", "at most 9 words", "sampling"),
        asking("roots", "file:///one", "roots"),
    ],
)
@pytest.mark.requirement("F3")
async def test_it_asks_its_client_and_uses_the_answer(bench: Bench, what: str, expected: str):
    assert expected in (await bench.client.call_tool("ask", {"what": what})).text


@without
@lacks("list changes")
@refuses(
    "Each request is answered by a new server object, which does not know what the client can"
    " answer; the tool reports that.",
    *("elicitation", "sampling", "roots"),
)
async def test_a_stateless_server_can_neither_ask_nor_tell(bench: Bench):
    for what in ("name", "words", "roots"):
        assert (await bench.client.call_tool("ask", {"what": what})).is_error
    assert (await bench.client.call_tool("grow", {"name": "more"})).success
    assert "more" in {tool.name for tool in await bench.client.list_tools(refresh=True)}
    assert not any(isinstance(event, Changed) for event in bench.heard.events)


async def test_a_modern_only_server_is_named_to_a_legacy_client():
    async with served("TypeScript SDK", "reject") as spec:
        with pytest.raises(RemoteProtocolError) as caught:
            async with Client(spec, mode="legacy"):
                pass
        assert caught.value.failure is not None
        assert caught.value.failure.kind is FailureKind.VERSION_MISMATCH
        assert caught.value.failure.code == -32022
