"""What an agent of Google ADK lives through with ADK's own MCP toolset, and with toolkeep's.

The same agent loop, the same scripted model, the same server that misbehaves on purpose; each row
is what happened here and now, in both eras of the protocol. Nothing leaves this machine.

ADK's toolset speaks the modern protocol only when told to (`ADK_ENABLE_MCP_MODERN_PROTOCOL`), which
it is where the server is modern; the last row is without. Its search for Google's credentials is
switched off. A step of progress is whatever is in the stream between a tool's call and its answer.

    python benchmarks/peers/adk.py [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams
from google.genai import types
from pydantic import PrivateAttr

from toolkeep import CallContext, Runtime
from toolkeep.adapters import adk
from toolkeep.testing import Behaviour, Rule, ScriptedServer

MODERN = "ADK_ENABLE_MCP_MODERN_PROTOCOL"
BOUND = 20.0
"""Seconds for one run; what takes longer hangs."""
COUNTED = types.GenerateContentResponseUsageMetadata(prompt_token_count=1)
ADDED = {"name": "added", "inputSchema": {"type": "object"}}


class Model(BaseLlm):
    """Takes its turns in order: the tools that it calls at once, or words."""

    model: str = "scripted"
    _turns: list[Any] = PrivateAttr(default_factory=list)
    _offered: list[set[str]] = PrivateAttr(default_factory=list)

    async def generate_content_async(self, llm_request, stream=False):
        self._offered.append({name.rpartition("__")[2] for name in llm_request.tools_dict})
        turn = self._turns.pop(0) if self._turns else "Done."
        parts = [types.Part(text=turn)] if isinstance(turn, str) else list(map(call_of, turn))
        yield LlmResponse(content=types.ModelContent(parts), usage_metadata=COUNTED)


def call_of(wanted: tuple[str, dict[str, Any]]) -> types.Part:
    return types.Part.from_function_call(name=wanted[0], args=wanted[1])


class Stage:
    """One server, one toolset, one agent."""

    def __init__(self, kit: ScriptedServer, toolset: BaseToolset, prefix: str) -> None:
        self.kit, self._prefix, self.model = kit, prefix, Model()
        self.stop: Callable[[], Awaitable[object]] = kit.restart
        self.called: list[float] | None = None
        """The steps that a callback was given, where there is one."""
        agent = LlmAgent(name="helper", model=self.model, tools=[toolset])
        self.runner = InMemoryRunner(agent=agent, app_name="peers")
        self._sessions: dict[str, str] = {}

    async def run(
        self,
        *turns: list[tuple[str, dict[str, Any]]],
        user: str = "ada",
        between: Callable[[], Awaitable[object]] | None = None,
    ) -> list[Event]:
        """All events; `between` is done once, after the first answer of a tool."""
        self.model._turns = [
            [(self._prefix + name, arguments) for name, arguments in turn] for turn in turns
        ]
        events: list[Event] = []
        async with asyncio.timeout(BOUND):
            async for event in self.runner.run_async(
                user_id=user,
                session_id=await self._session(user),
                new_message=types.UserContent("Go on."),
            ):
                events.append(event)
                if between is not None and event.get_function_responses():
                    await between()
                    between = None
        return events

    async def kept(self, user: str = "ada") -> list[dict[str, Any]]:
        found = await self.runner.session_service.get_session(
            app_name="peers", user_id=user, session_id=await self._session(user)
        )
        return answers(found.events if found else [])

    async def _session(self, user: str) -> str:
        if user not in self._sessions:
            made = await self.runner.session_service.create_session(
                app_name="peers", user_id=user, state={"token": f"token-of-{user}"}
            )
            self._sessions[user] = made.id
        return self._sessions[user]


def answers(events: list[Event]) -> list[dict[str, Any]]:
    found = [response for event in events for response in event.get_function_responses()]
    return [response.response or {} for response in found]


def is_good(answer: dict[str, Any]) -> bool:
    return not answer.get("isError") and "error" not in answer


# -- who takes part -----------------------------------------------------------------------------


def token(context: ReadonlyContext) -> dict[str, str]:
    return {"Authorization": f"Bearer {context.state['token']}"}


@contextlib.asynccontextmanager
async def own(kit: ScriptedServer) -> AsyncIterator[Stage]:
    called: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        called.append(progress)

    toolset = McpToolset(
        connection_params=StreamableHTTPConnectionParams(url=kit.url, timeout=5.0),
        header_provider=token,
        progress_callback=on_progress,
    )
    stage = Stage(kit, toolset, "")
    stage.called = called
    try:
        yield stage
    finally:
        await stage.runner.close()


@contextlib.asynccontextmanager
async def ours(kit: ScriptedServer) -> AsyncIterator[Stage]:
    def speaking(context: ReadonlyContext) -> CallContext:
        return CallContext(principal=context.user_id, headers=token(context))

    spec = {**kit.spec, "timeouts": {"call": 5.0}}
    async with Runtime({"mcpServers": {"kit": spec}}) as runtime:
        stage = Stage(kit, adk.Toolset(runtime, context=speaking), "kit__")
        try:
            yield stage
        finally:
            await stage.runner.close()


CONTENDERS = {"ADK": own, "toolkeep": ours}


# -- what they live through ---------------------------------------------------------------------


async def lost_session(stage: Stage) -> str:
    first, second = [("record", {"key": "1"})], [("record", {"key": "2"})]
    events = await stage.run(first, second, between=stage.kit.forget_sessions)
    return "goes on" if all(map(is_good, answers(events))) else told(events)


async def restart(stage: Stage) -> str:
    await stage.run([("record", {"key": "1"})])
    await stage.kit.restart()
    events = await stage.run([("record", {"key": "2"})])
    return "goes on" if all(map(is_good, answers(events))) else told(events)


async def unknown_outcome(stage: Stage) -> str:
    await stage.run([("echo", {"text": "hello"})])
    await stage.kit.script(Rule(tool="record", do=Behaviour(drop="after_run"), times=1))
    try:
        said = told(await stage.run([("record", {"key": "x"})]))
    except Exception as error:
        said = f"run fails: {type(error).__name__}"
    return f"ran {await stage.kit.executions('x')}×; {said}"


async def sibling(stage: Stage) -> str:
    await stage.run([("echo", {"text": "hello"})])
    await stage.kit.script(Rule(tool="record", do=Behaviour(drop="after_run"), times=1))
    both = [("record", {}), ("slow", {"seconds": 0.5, "key": "sibling"})]
    events = await stage.run(both)
    return "finishes" if any(map(is_good, answers(events))) else told(events)


async def unavailable(stage: Stage) -> str:
    events = await stage.run([("echo", {"text": "hello"})], [("record", {})], between=stage.stop)
    return told(events)


async def by_default(stage: Stage) -> str:
    os.environ.pop(MODERN, None)
    events = await stage.run([("echo", {"text": "hello"})])
    return "works" if all(map(is_good, answers(events))) else told(events)


async def cancelled(stage: Stage) -> str:
    await stage.run([("echo", {"text": "hello"})])
    run = asyncio.create_task(stage.run([("slow", {"seconds": 30.0})]))
    await stage.kit.requests(tool="slow", at_least=1)
    run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run
    seen = "not seen by the server"
    with contextlib.suppress(TimeoutError):
        await stage.kit.cancelled(at_least=1, within=3)
        seen = "seen by the server"
    made = len(await stage.kept()) - 1
    return f"{seen}, {made} answers made of it"


async def users(stage: Stage) -> str:
    wanted = [("headers", {})]
    await stage.run(wanted, user="ada")
    await stage.run(wanted, user="bob")
    calls = await stage.kit.requests("tools/call")
    tokens = [call.headers.get("authorization") for call in calls]
    right = tokens == ["Bearer token-of-ada", "Bearer token-of-bob"]
    return "own token" if right else f"sent: {tokens}"


async def progress(stage: Stage) -> str:
    events = await stage.run([("steps", {"count": 3})])
    called = [bool(event.get_function_calls()) for event in events].index(True)
    answered = [bool(event.get_function_responses()) for event in events].index(True)
    also = "" if stage.called is None else f", {len(stage.called)} to a callback of one's own"
    return f"{answered - called - 1} of 3 steps in the stream{also}"


async def changes(stage: Stage) -> str:
    async def change() -> None:
        await stage.kit.set_tools([ADDED])
        with contextlib.suppress(TimeoutError):
            await stage.kit.notify("notifications/tools/list_changed", within=1)
        await asyncio.sleep(0.3)

    await stage.run([("echo", {"text": "hello"})], between=change)
    return "seen in the next turn" if "added" in stage.model._offered[-1] else "not seen"


async def traffic(stage: Stage) -> str:
    await stage.run([("echo", {"text": "hello"})])
    await stage.kit.clear()
    await stage.run(*[[("echo", {"text": "hello"})]] * 5)
    seen = [one.rpc_method or one.http_method for one in await stage.kit.requests()]
    return f"{len(seen)} requests, {seen.count('tools/list')} of them lists"


def told(events: list[Event]) -> str:
    found = [answer for answer in answers(events) if not is_good(answer)]
    return f"model told: {str(found[-1].get('error', found[-1]))[:90]}" if found else "no error"


ROWS: dict[str, Callable[[Stage], Awaitable[str]]] = {
    "session lost between two calls": lost_session,
    "server restarted between two turns": restart,
    "connection lost after the tool ran": unknown_outcome,
    "a sibling of a lost call": sibling,
    "server gone between two calls": unavailable,
    "cancelled run": cancelled,
    "two users": users,
    "progress": progress,
    "list changed during a run": changes,
    "five calls of one run": traffic,
    "as it comes, without any switch": by_default,
}


async def measure(row: Callable[[Stage], Awaitable[str]], who: str, era: Any) -> str:
    settings: dict[str, Any] = {"era": era, "encoding": "sse"}
    os.environ.pop(MODERN, None)
    if era == "modern":
        os.environ[MODERN] = "1"
    async with contextlib.AsyncExitStack() as servers:
        kit = await servers.enter_async_context(ScriptedServer.spawn(**settings))
        try:
            async with asyncio.timeout(3 * BOUND), CONTENDERS[who](kit) as stage:
                stage.stop = servers.aclose
                return await row(stage)
        except TimeoutError:
            return f"hangs for {BOUND:.0f} s"
        except Exception as error:
            return f"run fails: {type(error).__name__}: {str(error)[:60]}"


async def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # ADK calls most of what it has experimental
    os.environ["GOOGLE_API_USE_CLIENT_CERTIFICATE"] = "false"
    print(f"google-adk {version('google-adk')}, mcp {version('mcp')}")
    found: dict[str, dict[str, str]] = {}
    for name, row in ROWS.items():
        print(f"\n{name}")
        for who in CONTENDERS:
            for era in ("legacy", "modern"):
                said = await measure(row, who, era)
                found.setdefault(name, {})[f"{who} {era}"] = said
                print(f"  {who:9}{era:8}{said}", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    asyncio.run(main())
