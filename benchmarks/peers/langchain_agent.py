"""What an agent of LangChain lives through with LangChain's own MCP integration, and with ours.

The same agent, the same scripted model, the same server that misbehaves on purpose; each row is
what happened here and now, in both eras of the protocol. Nothing leaves this machine.

LangChain's own is `langchain.mcp` (in beta), which needs `langchain[mcp]`, that is FastMCP 4. Where
that is not installed it is left out, and said so. Its adapter is open as long as the row lasts; it
is given ada's headers, since it takes one set for all runs.

    python benchmarks/peers/langchain_agent.py
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import itertools
import logging
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib.metadata import version
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import PrivateAttr

from toolkeep import Runtime
from toolkeep.adapters.langchain import tools
from toolkeep.testing import Behaviour, Rule, ScriptedServer

BOUND = 20.0
"""Seconds for one run; what takes longer hangs."""
FORM = {"mode": "form", "message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
ASK = {"requests": {"who": {"method": "elicitation/create", "params": FORM}}, "key": "k"}
ACCEPT = {"action": "accept", "content": {}}


class Model(BaseChatModel):
    """Calls these tools, each in a turn of its own."""

    turns: list[tuple[str, dict[str, Any]]]
    _numbers: Iterator[int] = PrivateAttr(default_factory=itertools.count)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        message = AIMessage("Done.")
        if self.turns:
            name, arguments = self.turns.pop(0)
            call: Any = {"name": name, "args": arguments, "id": f"c{next(self._numbers)}"}
            message = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=message)])


class Stage:
    """One server, and the tools of one integration."""

    def __init__(self, kit: ScriptedServer, found: list[Any], prefix: str) -> None:
        self.kit, self._found, self._prefix = kit, found, prefix
        self.called: list[float] | None = None
        """The steps that a callback was given, where there is one."""

    def agent(self, *turns: tuple[str, dict[str, Any]]) -> Any:
        model = Model(turns=[(self._prefix + name, arguments) for name, arguments in turns])
        return create_agent(model, self._found, checkpointer=InMemorySaver())

    async def run(self, agent: Any, given: Any = None, **more: Any) -> list[ToolMessage]:
        config = {"configurable": {"thread_id": "t", **more}}
        async with asyncio.timeout(BOUND):
            state = await agent.ainvoke(given or {"messages": "Hello"}, config)
        return [message for message in state["messages"] if isinstance(message, ToolMessage)]


# -- the rows -----------------------------------------------------------------------------------


async def disturbed(stage: Stage, trouble: Callable[[], Awaitable[object]]) -> str:
    first, second = stage.agent(("record", {"key": "a"})), stage.agent(("record", {"key": "b"}))
    await stage.run(first)
    await trouble()
    try:
        [answer] = await stage.run(second)
        said = answer.status
    except Exception as error:
        said = f"the run fails with {type(error).__name__}"
    return f"{said}, ran {await stage.kit.executions('b')}x"


async def lost_session(stage: Stage) -> str:
    return await disturbed(stage, stage.kit.forget_sessions)


async def restart(stage: Stage) -> str:
    return await disturbed(stage, stage.kit.restart)


async def unknown_outcome(stage: Stage) -> str:
    await stage.kit.script(Rule(tool="record", do=Behaviour(drop="after_run"), times=1))
    try:
        [answer] = await stage.run(stage.agent(("record", {"key": "k"})))
        said = "told" if "not known" in str(answer.content) else f"a {answer.status} message"
    except Exception as error:
        said = f"the run fails with {type(error).__name__}"
    return f"{said}, ran {await stage.kit.executions('k')}x"


async def cancellation(stage: Stage) -> str:
    running = asyncio.create_task(stage.run(stage.agent(("slow", {"seconds": BOUND}))))
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
        await stage.run(stage.agent(("headers", {})), principal=user, headers=headers)
    calls = await stage.kit.requests(tool="headers")
    ada, grace = (call.headers.get("authorization") for call in calls)
    return f"ada's call: {ada!r}; grace's call: {grace!r}"


async def progress(stage: Stage) -> str:
    agent = stage.agent(("steps", {"count": 3}))
    config = {"configurable": {"thread_id": "t"}}
    async with asyncio.timeout(BOUND):
        stream = agent.astream({"messages": "Hello"}, config, stream_mode="custom")
        seen = [event async for event in stream]
    also = "" if stage.called is None else f", {len(stage.called)} to a callback of one's own"
    return f"{len(seen)} of 3 steps in the stream{also}"


async def question(stage: Stage) -> str:
    agent = stage.agent(("ask", ASK))
    try:
        if told := await stage.run(agent):
            return f"nobody is asked; model told: {told[-1].text[:90]!r}"
        ours = stage._prefix != ""
        answer = ACCEPT if ours else {"responses": {"who": ACCEPT}}
        [message] = await stage.run(agent, Command(resume=answer))
    except Exception as error:
        return f"the run fails with {type(error).__name__}"
    legs = await stage.kit.executions("k:legs")
    return f"{message.status}, {legs} requests began or went on with it"


ROWS: dict[str, Callable[[Stage], Awaitable[str]]] = {
    "session lost between two calls": lost_session,
    "server restarted between two calls": restart,
    "answer lost after the tool ran": unknown_outcome,
    "run cancelled": cancellation,
    "two users, one agent": tokens,
    "progress": progress,
    "a question, resumed": question,
}


# -- the columns --------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def ours(kit: ScriptedServer) -> AsyncIterator[Stage]:
    async with Runtime({"kit": kit.spec}, elicitation="caller") as runtime:
        yield Stage(kit, await tools(runtime, interrupts=True), "kit__")


@contextlib.asynccontextmanager
async def theirs(kit: ScriptedServer) -> AsyncIterator[Stage]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is in beta
        fastmcp = importlib.import_module("fastmcp.client")
        from langchain.mcp import MCPAdapter
    called: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        called.append(progress)

    way = fastmcp.StreamableHttpTransport(kit.url, headers={"authorization": "Bearer ada"})
    async with MCPAdapter(fastmcp.Client(way, progress_handler=on_progress)) as adapter:
        stage = Stage(kit, await adapter.list_tools(), "")
        stage.called = called
        yield stage


async def column(make: Any, era: Any, row: Callable[[Stage], Awaitable[str]]) -> str:
    said: str | None = None
    async with ScriptedServer.local(era=era, encoding="sse") as kit:
        try:
            async with make(kit) as stage:
                said = await row(stage)
        except TimeoutError:
            return "hangs"
        except Exception as error:
            failed = f"fails with {type(error).__name__}"
            return f"the run {failed}" if said is None else f"{said}; closing {failed}"
    return said


async def main() -> None:
    logging.disable(logging.CRITICAL)
    print(f"langchain {version('langchain')}, mcp {version('mcp')}", end="")
    columns: dict[str, Any] = {"toolkeep": ours}
    if importlib.util.find_spec("fastmcp") is None:
        print("\nlangchain.mcp cannot run here: it needs FastMCP 4 (langchain[mcp]).")
    else:
        print(f", fastmcp {version('fastmcp')}")
        columns["langchain.mcp"] = theirs
    if importlib.util.find_spec("langchain_mcp_adapters") is None:
        print("langchain-mcp-adapters, its predecessor, is not installed here and was not run.")
    for (about, row), era in itertools.product(ROWS.items(), ("legacy", "modern")):
        said = [f"{label}: {await column(make, era, row)}" for label, make in columns.items()]
        print(f"{about} ({era})", *said, sep="\n    ")


if __name__ == "__main__":
    asyncio.run(main())
