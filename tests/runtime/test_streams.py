"""Watched calls through a runtime: a beginning, what happens, and exactly one end, whatever it is.

And the questions that a server asks in between: whoever answers is told on whose behalf.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.engine.helpers_rounds import ELICIT, LEGACY, MODERN, Way, every_way, server_of
from tests.runtime._life import LONG, PATIENCE, Ear, config_of, ended, failure_of
from toolkeep import (
    AmbiguousTool,
    CallContext,
    CallResult,
    InvalidArguments,
    NotPermitted,
    Runtime,
    ServerUnavailable,
    ToolkeepError,
    UnknownTool,
)
from toolkeep.client import Call
from toolkeep.events import CallEvent, Completed, Failed, InputNeeded, Log, Progress, Started
from toolkeep.testing import ScriptedServer

ADA = CallContext(principal="ada")
contexts = pytest.mark.parametrize("context", [None, ADA], ids=["nobody", "ada"])
SPEAKING = [way for way in (*LEGACY, *MODERN) if way.transport != "json"]
"""Over HTTP, an answer in JSON leaves no room for what happens in between."""
speaking_ways = pytest.mark.parametrize("way", SPEAKING, ids=str)


@asynccontextmanager
async def meeting(way: Way, **options: Any) -> AsyncIterator[tuple[ScriptedServer, Runtime]]:
    async with server_of(way) as server:
        where = (
            {"url": server.url, "transport": "sse"} if way.transport == "http+sse" else server.spec
        )
        config = config_of(kit={**where, "mode": way.era})
        async with Runtime.open(config, **options) as runtime:
            yield server, runtime


async def watched(call: Call) -> list[CallEvent]:
    async with asyncio.timeout(PATIENCE), call:
        return [event async for event in call]


@pytest.mark.requirement("L1")
@speaking_ways
@contexts
async def test_every_step_is_told(way: Way, context: Any):
    async with meeting(way) as (_, runtime):
        call = runtime.stream("kit.steps", {"count": 4}, context=context)
        first, *steps, last = await watched(call)
        assert isinstance(first, Started)
        assert isinstance(last, Completed)
        assert [one.fraction for one in steps if isinstance(one, Progress)] == [0.25, 0.5, 0.75, 1]
        assert {(one.server, one.tool, one.call_id) for one in (*steps, last)} == {
            ("kit", "steps", first.call_id)
        }
        assert (await call.result()).text == "4 steps"
        assert runtime.catalogue.tool("kit.steps").supports_streaming


@pytest.mark.requirement("L2")
@speaking_ways
async def test_steps_are_told_while_the_tool_is_at_work(way: Way):
    async with meeting(way) as (_, runtime), asyncio.timeout(PATIENCE):
        told = list[tuple[float, int]]()
        async with runtime.stream("kit.steps", {"count": 3, "gap": 0.05}) as call:
            async for event in call:
                if isinstance(event, Progress):
                    told.append((event.progress, runtime.stats.tool("kit", "steps").in_flight))
        assert told == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.requirement("L1", "L3")
@every_way
async def test_a_tool_that_says_nothing_is_started_and_completed(way: Way):
    async with meeting(way) as (_, runtime):
        events = await watched(runtime.stream("kit.record"))
        assert [type(event) for event in events] == [Started, Completed]
        (tool,) = await runtime.resolve(["record"])
        assert [type(event) for event in await watched(tool.stream())] == [Started, Completed]


@pytest.mark.requirement("L4")
async def test_log_lines_of_a_call_are_told_with_it():
    async with meeting(Way("sse-answers", "legacy")) as (_, runtime):
        ear = Ear(runtime)
        events = await watched(runtime.stream("kit.logs", {"count": 2}))
        assert [one.data for one in events if isinstance(one, Log)] == ["line 1", "line 2"]
        assert [one.data for one in ear.of(Log)] == ["line 1", "line 2"]


FAILURES: dict[str, tuple[dict[str, Any], type[ToolkeepError]]] = {
    "unknown tool": ({"name": "kit.nonesuch"}, UnknownTool),
    "unknown server": ({"name": "other.echo"}, UnknownTool),
    "ambiguous": ({"name": "echo", "arguments": {"text": "a"}}, AmbiguousTool),
    "not permitted": ({"name": "kit.record"}, NotPermitted),
    "hidden": ({"name": "kit.big", "arguments": {"bytes": 1}}, UnknownTool),
    "bad arguments": ({"name": "kit.echo", "arguments": {}}, InvalidArguments),
    "bad headers": (
        {"name": "kit.echo", "arguments": {"text": "a"}, "headers": {"host": "x"}},
        InvalidArguments,
    ),
    "bad deadline": ({"name": "kit.fail", "timeout": -1}, InvalidArguments),
    "a server that is down": ({"name": "gone.echo", "timeout": 1}, ServerUnavailable),
    "no answer in time": (
        {"name": "kit.slow", "arguments": {"seconds": LONG}, "timeout": 0.2},
        ToolkeepError,
    ),
}


async def allow(action: str, what: Any, context: CallContext) -> bool:
    if what.name.endswith(".big"):
        return False
    return action == "see" or not what.name.endswith(".record")


@pytest.mark.requirement("L1")
@pytest.mark.parametrize("why", FAILURES)
@contexts
async def test_a_call_that_comes_to_nothing_is_started_and_failed(why: str, context: Any):
    wanted, kind = FAILURES[why]
    async with ScriptedServer.local() as kit, ScriptedServer.local() as more:
        gone = {"gone": {"url": "http://127.0.0.1:1/mcp"}} if "down" in why else {}
        config = config_of(kit=kit, more=more, **gone)
        async with Runtime.open(config, permissions=allow, backoff=None) as runtime:
            ear = Ear(runtime)
            call = runtime.stream(**wanted, context=context)
            events = await watched(call)
            assert [type(event) for event in events] == [Started, Failed]
            assert [type(event) for event in ear.of(CallEvent)] == [Started, Failed]
            assert len({event.call_id for event in (*events, *ear.of(CallEvent))}) == 1
            error = await failure_of(call.result())
            assert isinstance(error, kind)
            assert error is events[-1].error  # pyright: ignore
            if why != "no answer in time":
                assert await kit.ledger() == {}


@pytest.mark.requirement("L3", "P5")
@every_way
async def test_leaving_early_cancels(way: Way):
    async with meeting(way) as (server, runtime):
        async with runtime.stream("kit.slow", {"seconds": LONG}) as call:
            async for event in call:
                assert isinstance(event, Started)
                await server.requests(tool="slow", at_least=1)
                break
        assert {one.tool for one in await server.cancelled(at_least=1)} == {"slow"}
        assert isinstance(await failure_of(call.result()), ToolkeepError)
        assert runtime.stats.tool("kit", "slow").cancelled == 1
        assert runtime.stats.tool("kit", "slow").in_flight == 0
        assert (await runtime.call("kit.echo", {"text": "a"})).text == "a"


@pytest.mark.requirement("L1")
@speaking_ways
async def test_progress_can_be_had_without_watching(way: Way):
    async with meeting(way) as (_, runtime):
        told = list[tuple[float, float | None]]()

        async def note(progress: float, total: float | None, message: str | None) -> None:
            told.append((progress, total))

        await runtime.call("kit.steps", {"count": 2}, on_progress=note)
        assert told == [(1, 2), (2, 2)]

        def fail(*_: Any) -> None:
            raise ValueError("not my day")

        assert (await runtime.call("kit.steps", {"count": 2}, on_progress=fail)).success


def about(requests: dict[str, Any], key: str) -> dict[str, Any]:
    return {"requests": requests, "key": key}


@pytest.mark.requirement("F3")
@every_way
async def test_who_answers_is_told_on_whose_behalf(way: Way):
    """Several principals, and nobody, at once: each answer goes where it belongs. A server that has
    one pipe does not say during which call it asks: then the principal is all that is known."""
    people = [None, *(CallContext(principal=f"p{n}", metadata={"n": n}) for n in range(5))]
    asked = list[CallContext | None]()
    known = way.era == "modern" or way.transport in ("json", "sse-answers")

    async def answer(needed: InputNeeded) -> Any:
        asked.append(needed.context)
        await asyncio.sleep(0)
        assert needed.server == "kit"
        who = needed.context.principal if needed.context else "nobody"
        return {"action": "accept", "content": {"name": who}}

    async with meeting(way, elicitation=answer) as (_, runtime):

        async def call(context: CallContext | None) -> CallResult:
            name = context.principal if context else "nobody"
            return await runtime.call("kit.ask", about({"who": ELICIT}, str(name)), context=context)

        tasks = [asyncio.create_task(call(each)) for each in people for _ in range(2)]
        results = await ended(*tasks)
        said = [one.data["answers"][0]["who"]["content"]["name"] for one in results]
        assert said == [each.principal if each else "nobody" for each in people for _ in range(2)]
        if known:
            assert all(context in asked for context in people)


@pytest.mark.parametrize("way", [Way("sse-answers", "legacy"), Way("json", "modern")], ids=str)
async def test_questions_are_answered_by_who_watches_and_observers_hear_of_them(way: Way):
    async with meeting(way, elicitation="caller") as (_, runtime):
        ear = Ear(runtime)
        async with runtime.stream("kit.ask", about({"who": ELICIT}, "a"), context=ADA) as call:
            async for event in call:
                if isinstance(event, InputNeeded):
                    assert event.context == ADA
                    event.accept({"name": "Ada"})
            assert (await call.result()).data["answers"][0]["who"]["action"] == "accept"
        assert len(ear.of(InputNeeded)) == 1


async def test_a_call_that_returns_its_questions_is_continued_by_hand():
    async with meeting(Way("json", "modern"), elicitation="caller") as (_, runtime):
        arguments = about({"who": ELICIT}, "a")
        first = await runtime.call("kit.ask", arguments, context=ADA, input="return")
        assert first.needs_input
        answers = {"who": {"action": "accept", "content": {"name": "Ada"}}}
        second = await runtime.call(
            "kit.ask",
            arguments,
            context=ADA,
            input="return",
            input_responses=answers,
            request_state=first.request_state,
        )
        assert second.success
