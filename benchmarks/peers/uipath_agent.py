"""What the tools of a UiPath agent live through with uipath-langchain's own MCP client, and ours.

The same definition of an agent, the same graph of LangChain with the same scripted model, the same
server that misbehaves on purpose; each row is what happened here and now, in both eras of the
protocol. The platform, which says where the server is, is played by a local HTTP server: nothing
leaves this machine. Where uipath-langchain is not installed it is left out, and said so.

    python benchmarks/peers/uipath_agent.py
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import itertools
import json
import logging
import os
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import PrivateAttr
from uipath.agent.models.agent import AgentMcpResourceConfig

from toolkeep.adapters import uipath
from toolkeep.testing import Behaviour, Rule, ScriptedServer

BOUND = 20.0
"""Seconds for one run; what takes longer hangs."""
FOLDER = "Shared"
RESOURCE: dict[str, Any] = {
    "$resourceType": "mcp",
    "name": "kit",
    "description": "",
    "folderPath": FOLDER,
    "slug": "kit",
    "availableTools": [],
    "toolsConfiguration": {"discoveryMode": {"type": "dynamic", "allowAll": True}},
}


class Model(BaseChatModel):
    """Calls these tools, each turn's at once."""

    turns: list[list[tuple[str, dict[str, Any]]]]
    _numbers: Iterator[int] = PrivateAttr(default_factory=itertools.count)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        calls: list[Any] = [
            {"name": name, "args": arguments, "id": f"c{next(self._numbers)}"}
            for name, arguments in (self.turns.pop(0) if self.turns else [])
        ]
        message = AIMessage("" if calls else "Done.", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


class Stage:
    """One server, and the tools that one integration made of it."""

    def __init__(self, kit: ScriptedServer, found: list[Any]) -> None:
        self.kit, self._found = kit, found
        self.names = {tool.metadata["display_name"]: tool.name for tool in found}

    def agent(self, *turns: list[tuple[str, dict[str, Any]]]) -> Any:
        named = [[(self.names[name], arguments) for name, arguments in turn] for turn in turns]
        return create_agent(Model(turns=named), self._found)

    async def run(self, *turns: list[tuple[str, dict[str, Any]]], **more: Any) -> list[ToolMessage]:
        async with asyncio.timeout(BOUND):
            given: Any = {"messages": "Hello"}
            state = await self.agent(*turns).ainvoke(given, {"configurable": more})
        return [message for message in state["messages"] if isinstance(message, ToolMessage)]

    async def told(self, *turns: list[tuple[str, dict[str, Any]]]) -> str:
        """What the last call brought."""
        try:
            answer = (await self.run(*turns))[-1]
        except TimeoutError:
            return f"hangs for {BOUND:.0f} s"
        except Exception as error:
            return f"the run fails: {str(error) or type(error).__name__}"[:150]
        return f"{answer.status}: {answer.text[:120]}"


# -- the rows -----------------------------------------------------------------------------------


async def disturbed(stage: Stage, trouble: Callable[[], Awaitable[object]]) -> str:
    await stage.run([("record", {"key": "a"})])
    await trouble()
    said = await stage.told([("record", {"key": "b"})])
    return f"ran {await stage.kit.executions('b')}x; {said}"


async def lost_session(stage: Stage) -> str:
    return await disturbed(stage, stage.kit.forget_sessions)


async def restart(stage: Stage) -> str:
    return await disturbed(stage, stage.kit.restart)


async def unknown_outcome(stage: Stage) -> str:
    await stage.kit.script(Rule(tool="record", do=Behaviour(drop="after_run"), times=1))
    said = await stage.told([("record", {"key": "k"})])
    return f"ran {await stage.kit.executions('k')}x; {said}"


async def sibling(stage: Stage) -> str:
    await stage.kit.script(Rule(tool="record", do=Behaviour(drop="after_run"), times=1))
    both = [("record", {"key": "k"}), ("slow", {"seconds": 0.5, "key": "s"})]
    said = await stage.told(both)
    return f"ran {await stage.kit.executions('s')}x; {said}"


async def tool_error(stage: Stage) -> str:
    return await stage.told([("fail", {"message": "out of paper"})])


async def cancellation(stage: Stage) -> str:
    running = asyncio.create_task(stage.run([("slow", {"seconds": BOUND})]))
    await stage.kit.requests(tool="slow", at_least=1)
    running.cancel()
    await asyncio.wait((running,))
    try:
        await stage.kit.cancelled(at_least=1, within=2.0)
    except TimeoutError:
        return "the server was not told"
    return "the server was told"


async def tokens(stage: Stage) -> str:
    for user in ("ada", "grace"):
        headers = {"authorization": f"Bearer {user}"}
        await stage.run([("headers", {})], principal=user, headers=headers)
    calls = await stage.kit.requests(tool="headers")
    ada, grace = (call.headers.get("authorization") for call in calls)
    return f"ada's call: {ada!r}; grace's call: {grace!r}"


async def progress(stage: Stage) -> str:
    async with asyncio.timeout(BOUND):
        agent = stage.agent([("steps", {"count": 3})])
        seen = [event async for event in agent.astream({"messages": "Hi"}, stream_mode="custom")]
    (call,) = await stage.kit.requests(tool="steps")
    asked = "progressToken" in (call.body["params"].get("_meta") or {})
    return f"{len(seen)} of 3 steps in the stream; asked for: {'yes' if asked else 'no'}"


ROWS: dict[str, Callable[[Stage], Awaitable[str]]] = {
    "session lost between two runs": lost_session,
    "server restarted between two runs": restart,
    "answer lost after the tool ran": unknown_outcome,
    "a sibling of a lost call": sibling,
    "a tool's own error": tool_error,
    "run cancelled": cancellation,
    "two users, one agent": tokens,
    "progress": progress,
}


# -- the columns --------------------------------------------------------------------------------


@contextlib.contextmanager
def platform(server: str) -> Iterator[str]:
    """Says where the server is, to whoever asks."""

    class Desk(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said: Any = {"slug": "kit", "name": "kit", "mcpUrl": server}
            if "GetFoldersForCurrentUser" in self.path:
                said = {"PageItems": [{"Key": "f-1", "FullyQualifiedName": FOLDER}]}
            body = json.dumps(said).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    desk = ThreadingHTTPServer(("127.0.0.1", 0), Desk)
    thread = threading.Thread(target=desk.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{desk.server_address[1]}"
    finally:
        desk.shutdown()
        thread.join()
        desk.server_close()


@contextlib.asynccontextmanager
async def ours(kit: ScriptedServer) -> AsyncIterator[Stage]:
    config = AgentMcpResourceConfig.model_validate(RESOURCE)
    async with uipath.McpClient(config) as client:
        make = uipath.create_mcp_tools_from_metadata_for_mcp_server
        yield Stage(kit, await make(config, client))


@contextlib.asynccontextmanager
async def theirs(kit: ScriptedServer) -> AsyncIterator[Stage]:
    mcp = importlib.import_module("uipath_langchain.agent.tools.mcp")
    config = AgentMcpResourceConfig.model_validate(RESOURCE)
    async with mcp.open_mcp_tools([config]) as found:
        yield Stage(kit, found)


async def column(make: Any, era: Any, row: Callable[[Stage], Awaitable[str]]) -> str:
    said: str | None = None
    async with ScriptedServer.local(era=era, encoding="sse") as kit:
        with platform(kit.url) as address:
            os.environ |= {
                "UIPATH_URL": address,
                "UIPATH_ACCESS_TOKEN": "platform",
                "UIPATH_FOLDER_PATH": FOLDER,
            }
            try:
                async with make(kit) as stage:
                    said = await row(stage)
            except TimeoutError:
                return "hangs"
            except Exception as error:
                failed = f"fails: {type(error).__name__}: {error}"[:150]
                return f"the run {failed}" if said is None else f"{said}; closing {failed}"
    return said


async def main() -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    columns: dict[str, Any] = {"UiPath": theirs, "toolkeep": ours}
    if importlib.util.find_spec("uipath_langchain") is None:
        print("uipath-langchain is not installed here: its own client was not run.")
        del columns["UiPath"]
    else:
        print(f"uipath-langchain {version('uipath-langchain')}", end=", ")
    print(f"uipath {version('uipath')}, mcp {version('mcp')}")
    for about, row in ROWS.items():
        print(f"\n{about}")
        for (label, make), era in itertools.product(columns.items(), ("legacy", "modern")):
            print(f"  {label:9}{era:8}{await column(make, era, row)}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
