"""What the OpenAI Agents SDK's own MCP servers do in trouble, beside what toolkeep does.

    python benchmarks/peers/openai_agents.py

The same agent, the same scripted model and the same scripted server (legacy, as nearly all are)
for all; each line is what was measured in this run. The SDK's own server comes as it is, and with
its list of tools cached and two retries, which is how it gets furthest: a list that fails ends the
run. Its headers are one setting for all runs: here they are ada's. A step of progress is whatever
is in the stream between a tool's call and its output.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any

from agents import Agent, Runner, set_tracing_disabled
from agents.mcp import MCPServer, MCPServerStreamableHttp, MCPServerStreamableHttpParams
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

from toolkeep import CallContext, Runtime
from toolkeep.adapters.openai_agents import ProgressFeed, RuntimeServer
from toolkeep.testing import Behaviour, Rule, ScriptedServer

PATIENCE = 20.0
set_tracing_disabled(True)
logging.disable(logging.CRITICAL)

Peer = Callable[[ScriptedServer], AbstractAsyncContextManager[MCPServer]]
ADA = CallContext(principal="ada", headers={"authorization": "Bearer ada"})
BOB = CallContext(principal="bob", headers={"authorization": "Bearer bob"})


def spoken_as_ada(kit: ScriptedServer) -> MCPServerStreamableHttpParams:
    return {"url": kit.url, "headers": dict(ADA.headers)}


@asynccontextmanager
async def own(kit: ScriptedServer) -> AsyncGenerator[MCPServer]:
    async with MCPServerStreamableHttp(spoken_as_ada(kit), name="kit") as server:
        yield server


@asynccontextmanager
async def own_retrying(kit: ScriptedServer) -> AsyncGenerator[MCPServer]:
    async with MCPServerStreamableHttp(
        spoken_as_ada(kit),
        name="kit",
        cache_tools_list=True,
        max_retry_attempts=2,
        retry_backoff_seconds_base=0.05,
    ) as server:
        yield server


@asynccontextmanager
async def ours(kit: ScriptedServer) -> AsyncGenerator[MCPServer]:
    async with Runtime({"mcpServers": {"kit": kit.spec}}) as runtime:
        yield RuntimeServer(runtime)


PEERS: dict[str, Peer] = {"own": own, "own, retrying": own_retrying, "toolkeep": ours}


# -- one run --------------------------------------------------------------------------------------


async def names_of(server: MCPServer) -> dict[str, str]:
    """From a tool's own name to the name for the model."""
    return {tool.name.rpartition("__")[2]: tool.name for tool in await server.list_tools()}


def scripted(names: dict[str, str], *turns: Any) -> ScriptedModel:
    steps: list[Any] = []
    waiting: list[Any] = []
    for number, turn in enumerate(turns):
        if callable(turn):
            waiting.append(turn)
            continue
        calls = [
            function_call(names[tool], arguments, call_id=f"{number}-{place}")
            for place, (tool, arguments) in enumerate(turn)
        ]
        steps.append(after(waiting, calls))
        waiting = []
    return ScriptedModel([*steps, [assistant_message("Done.")]])


def after(happenings: list[Any], output: list[Any]) -> ModelStep:
    async def respond(_: object) -> ModelStep:
        for happening in happenings:
            await happening()
        return ModelStep(output=output)

    return ModelStep.respond(respond)


async def run(server: MCPServer, *turns: Any, context: Any = None) -> list[str]:
    """What the tools answered, as the model saw it."""
    agent = Agent(
        name="helper", model=scripted(await names_of(server), *turns), mcp_servers=[server]
    )
    async with asyncio.timeout(PATIENCE):
        result = await Runner.run(agent, "Go on.", context=context)
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    return [str(one.get("text") if isinstance(one, dict) else one) for one in outputs]


# -- the rows -------------------------------------------------------------------------------------


async def lost_session(peer: Peer) -> str:
    async with ScriptedServer.local(era="legacy", encoding="sse") as kit, peer(kit) as server:
        *_, last = await run(server, [("record", {})], kit.forget_sessions, [("record", {})])
        return "not noticed" if last == "recorded" else f"model told: {last!r}"


async def restart(peer: Peer) -> str:
    async with ScriptedServer.local(era="legacy", encoding="sse") as kit, peer(kit) as server:
        *_, last = await run(server, [("record", {})], kit.restart, [("record", {})])
        return "not noticed" if last == "recorded" else f"model told: {last!r}"


async def unknown_outcome(peer: Peer) -> str:
    async with ScriptedServer.local(era="legacy", encoding="sse") as kit, peer(kit) as server:
        await kit.script(Rule(do=Behaviour(drop="after_run"), tool="record", times=1))
        try:
            (said,) = await run(server, [("record", {})])
        except Exception as error:
            said = f"(the run fails: {type(error).__name__})"
        return f"ran {await kit.executions('record')}x; model told: {said!r}"


async def cancellation(peer: Peer) -> str:
    async with ScriptedServer.local(era="legacy", encoding="sse") as kit, peer(kit) as server:
        going = asyncio.create_task(run(server, [("slow", {"seconds": 30})]))
        await kit.requests(tool="slow", at_least=1)
        going.cancel()
        await asyncio.wait((going,), timeout=PATIENCE)
        try:
            await kit.cancelled(at_least=1, within=2.0)
        except TimeoutError:
            return "server not told"
        return "server told"


async def two_users(peer: Peer) -> str:
    async with ScriptedServer.local(era="legacy", encoding="sse") as kit, peer(kit) as server:
        for who in (ADA, BOB):
            await run(server, [("record", {})], context=who)
        calls = await kit.requests("tools/call")
        first, second = (call.headers.get("authorization") for call in calls)
        sessions = len({call.session_id for call in calls})
        return f"ada's call: {first!r}; bob's call: {second!r}; {sessions} session(s)"


async def progress(peer: Peer) -> str:
    async with ScriptedServer.local(era="legacy", encoding="sse") as kit, peer(kit) as server:
        model = scripted(await names_of(server), [("steps", {"count": 3})])
        agent = Agent(name="helper", model=model, mcp_servers=[server])
        with ProgressFeed() as feed:
            result = Runner.run_streamed(agent, "Go on.")
        async with asyncio.timeout(PATIENCE):
            names = [getattr(event, "name", event.type) async for event in feed.events(result)]
        between = names[names.index("tool_called") + 1 : names.index("tool_output")]
        (call,) = await kit.requests("tools/call")
        asked = "progressToken" in (call.body["params"].get("_meta") or {})
        return f"{len(between)} of 3 steps in the stream; asked for: {'yes' if asked else 'no'}"


async def siblings(peer: Peer) -> str:
    async with ScriptedServer.local(era="legacy", encoding="sse") as kit, peer(kit) as server:
        await kit.script(Rule(do=Behaviour(drop="after_run"), tool="record", times=1))
        calls = [("slow", {"seconds": 0.5}), ("record", {}), ("echo", {"text": "a"})]
        told = await run(server, calls, [("echo", {"text": "b"})])
        return f"slow: {told[0]!r}; next call: {told[3]!r}"


ROWS: dict[str, Callable[[Peer], Awaitable[str]]] = {
    "session lost between turns": lost_session,
    "restart between turns": restart,
    "answer lost after the tool ran": unknown_outcome,
    "... and its siblings": siblings,
    "run cancelled": cancellation,
    "two users, one process": two_users,
    "progress": progress,
}


async def measured(row: Callable[[Peer], Awaitable[str]], peer: Peer) -> str:
    try:
        return await asyncio.wait_for(row(peer), 2 * PATIENCE)
    except Exception as error:
        return f"the run fails: {type(error).__name__}"


async def main() -> None:
    print(f"openai-agents {version('openai-agents')}, mcp {version('mcp')}")
    for title, row in ROWS.items():
        print(f"\n{title}")
        for name, peer in PEERS.items():
            print(f"  {name:<15} {await measured(row, peer)}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
