"""What Pydantic AI's own `MCPToolset` does in trouble, beside what toolkeep does.

    python benchmarks/peers/pydantic_ai_mcp.py

The same agent, the same scripted model and the same scripted server (legacy, as nearly all are)
for both; each line is what was measured in this run. Pydantic AI's own integration stands on
fastmcp; where that is not installed, the script says so, and measures toolkeep alone. A step of
progress is whatever is in the stream between a tool's call and its result.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from typing import Any

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.toolsets import AbstractToolset

from toolkeep import CallContext, Runtime
from toolkeep.adapters.pydantic_ai import RuntimeToolset
from toolkeep.testing import Behaviour, Rule, ScriptedServer

try:
    from pydantic_ai.mcp import MCPToolset
except ImportError:
    MCPToolset = None

PATIENCE = 20.0
logging.disable(logging.CRITICAL)
ADA = CallContext(principal="ada", headers={"authorization": "Bearer ada"})
BOB = CallContext(principal="bob", headers={"authorization": "Bearer bob"})

Toolset = AbstractToolset[Any]
Row = Callable[[ScriptedServer, Toolset, str], Awaitable[str]]


# -- one run --------------------------------------------------------------------------------------


def scripted(prefix: str, *turns: Any) -> FunctionModel:
    left = list(turns)

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        while left and callable(left[0]):
            await left.pop(0)()
        if not left:
            return ModelResponse(parts=[TextPart("Done.")])
        return ModelResponse(
            parts=[ToolCallPart(prefix + name, args) for name, args in left.pop(0)]
        )

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        for place, part in enumerate((await respond(messages, info)).parts):
            if isinstance(part, ToolCallPart):
                yield {place: DeltaToolCall(part.tool_name, json.dumps(part.args))}
            else:
                yield "Done."

    return FunctionModel(respond, stream_function=stream)


async def run(toolset: Toolset, prefix: str, *turns: Any, deps: Any = None) -> list[str]:
    """What the tools answered, as the model saw it."""
    agent: Agent[Any, str] = Agent(scripted(prefix, *turns), toolsets=[toolset], retries=3)
    async with asyncio.timeout(PATIENCE):
        result = await agent.run("Go on.", deps=deps)
    parts = [part for message in result.all_messages() for part in message.parts]
    return [f"{one.outcome}: {one.content}" for one in parts if isinstance(one, ToolReturnPart)]


# -- the rows -------------------------------------------------------------------------------------


async def lost_session(kit: ScriptedServer, toolset: Toolset, prefix: str) -> str:
    told = await run(toolset, prefix, [("record", {})], kit.forget_sessions, [("record", {})])
    return f"model told: {told[-1]!r}"


async def restart(kit: ScriptedServer, toolset: Toolset, prefix: str) -> str:
    told = await run(toolset, prefix, [("record", {})], kit.restart, [("record", {})])
    return f"model told: {told[-1]!r}"


async def unknown_outcome(kit: ScriptedServer, toolset: Toolset, prefix: str) -> str:
    await kit.script(Rule(do=Behaviour(drop="after_run"), tool="record", times=1))
    try:
        (said,) = await run(toolset, prefix, [("record", {})])
    except Exception as error:
        said = f"(the run fails: {type(error).__name__})"
    return f"ran {await kit.executions('record')}x; model told: {said!r}"


async def cancellation(kit: ScriptedServer, toolset: Toolset, prefix: str) -> str:
    going = asyncio.create_task(run(toolset, prefix, [("slow", {"seconds": 30})]))
    await kit.requests(tool="slow", at_least=1)
    going.cancel()
    await asyncio.wait((going,), timeout=PATIENCE)
    try:
        await kit.cancelled(at_least=1, within=2.0)
    except TimeoutError:
        return "server not told"
    return "server told"


async def two_users(kit: ScriptedServer, toolset: Toolset, prefix: str) -> str:
    for who in (ADA, BOB):
        await run(toolset, prefix, [("record", {})], deps=who)
    calls = await kit.requests("tools/call")
    first, second = (call.headers.get("authorization") for call in calls)
    sessions = len({call.session_id for call in calls})
    return f"ada's call: {first!r}; bob's call: {second!r}; {sessions} session(s)"


async def progress(kit: ScriptedServer, toolset: Toolset, prefix: str) -> str:
    model = scripted(prefix, [("steps", {"count": 3})])
    agent: Agent[Any, str] = Agent(model, toolsets=[toolset])
    async with asyncio.timeout(PATIENCE), agent.run_stream_events("Go on.") as stream:
        kinds = [event.event_kind async for event in stream]
    between = kinds[kinds.index("function_tool_call") + 1 : kinds.index("function_tool_result")]
    return f"{len(between)} of 3 steps in the stream"


ROWS: dict[str, Row] = {
    "session lost between turns": lost_session,
    "restart between turns": restart,
    "answer lost after the tool ran": unknown_outcome,
    "run cancelled": cancellation,
    "two users, one process": two_users,
    "progress": progress,
}


def headers_of(run: Any) -> dict[str, str]:
    return dict(run.deps.headers) if run.deps else {}


async def own(row: Row) -> str:
    if MCPToolset is None:
        return "not measured: fastmcp is not installed here"
    called: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        called.append(progress)

    async with ScriptedServer.local(era="legacy", encoding="sse") as kit:
        toolset = MCPToolset(kit.url, headers=headers_of, progress_handler=on_progress)
        said = await row(kit, toolset, "")
    return f"{said}, {len(called)} to a callback of one's own" if row is progress else said


async def ours(row: Row) -> str:
    async with (
        ScriptedServer.local(era="legacy", encoding="sse") as kit,
        Runtime({"mcpServers": {"kit": kit.spec}}) as runtime,
    ):
        return await row(kit, RuntimeToolset(runtime), "kit__")


async def main() -> None:
    fastmcp = "" if MCPToolset is None else f", fastmcp {version('fastmcp-slim')}"
    print(f"pydantic-ai-slim {version('pydantic-ai-slim')}, mcp {version('mcp')}{fastmcp}")
    for title, row in ROWS.items():
        print(f"\n{title}")
        for name, peer in {"own": own, "toolkeep": ours}.items():
            try:
                measured = await asyncio.wait_for(peer(row), 2 * PATIENCE)
            except Exception as error:
                measured = f"the run fails: {type(error).__name__}"
            print(f"  {name:<10} {measured}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
