"""The whole loop of an ADK agent over real servers, when all is well and when it is not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.adapters._adk import (
    BOUND,
    Conversation,
    ScriptedModel,
    conversation,
    house,
    progress,
    responses,
)
from toolkeep import CallContext, CallNotDelivered, CallOutcomeUnknown, InvalidArguments, Runtime
from toolkeep.adapters import adk
from toolkeep.adapters._common import error_message
from toolkeep.errors import Delivery
from toolkeep.testing import Behaviour, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("A5")

eras = pytest.mark.parametrize("era", ["legacy", "modern"])
LONG = {"seconds": 30}
ABOUT: dict[str, Any] = {"server": "kit", "delivery": Delivery.UNKNOWN}


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@asynccontextmanager
async def reached(way: str) -> AsyncIterator[Runtime]:
    """A runtime with a tool `kit.add`, over each transport."""
    if way == "in this process":
        async with Runtime({}, functions=[add]) as runtime:
            yield runtime
        return
    transport, era = way.split()
    made: Any = ScriptedServer.stdio if transport == "stdio" else ScriptedServer.local
    more = {"transport": "sse"} if transport == "sse" else {}
    async with made(era=era, **more) as kit, Runtime({"mcpServers": {"kit": kit.spec}}) as runtime:
        yield runtime


WAYS = ["http legacy", "http modern", "stdio legacy", "stdio modern", "sse legacy"]


@pytest.mark.requirement("A2")
@pytest.mark.parametrize("way", [*WAYS, "in this process"])
async def test_a_tool_found_by_its_name_is_called_over_every_transport(way: str):
    async with reached(way) as runtime:
        (tool,) = made = await adk.tools(runtime, ["add"])
        model = ScriptedModel.saying([(tool.name, {"a": 2, "b": 3})], "It is 5.")
        async with conversation(model, made) as talk:
            events = await talk.say("What is 2 + 3?")
    (answer,) = model.answers
    assert answer["status"] == "success"
    assert answer["result"] in ({"sum": 5}, {"result": 5})
    server = tool.tool.server
    assert (answer["tool_name"], answer["namespace"]) == (f"{server}.add", server)
    assert 0 < answer["execution_time"] < BOUND
    assert events[-1].is_final_response()


@eras
async def test_two_calls_of_one_turn_run_at_the_same_time(era: str):
    async with house({"era": era}) as (kit, runtime):
        together = [("kit__echo", {"text": "one"}), ("kit__echo", {"text": "two"})]
        waiting = [("kit__slow", LONG), ("kit__slow", LONG)]
        model = ScriptedModel.saying(together, "Both.", waiting)
        async with conversation(model, await adk.tools(runtime)) as talk:
            await talk.say()
            assert [answer["result"] for answer in model.answers] == ["one", "two"]
            run = asyncio.create_task(talk.say())
            await kit.requests(tool="slow", at_least=2)
            await given_up(run)


async def forget(kit: ScriptedServer) -> None:
    await kit.forget_sessions()


async def restart(kit: ScriptedServer) -> None:
    await kit.restart()


@eras
@pytest.mark.parametrize("trouble", [forget, restart])
async def test_a_session_lost_or_a_restart_in_the_middle_of_a_run_is_not_noticed(
    era: str, trouble: Callable[[ScriptedServer], Awaitable[None]]
):
    async with house({"era": era}) as (kit, runtime):
        once = [("kit__record", {"key": "first"})]
        model = ScriptedModel.saying(once, [("kit__record", {"key": "second"})], "Done.")
        async with conversation(model, [adk.Toolset(runtime)]) as talk:
            async with asyncio.timeout(BOUND):
                async for event in talk.events():
                    if event.get_function_responses() and await kit.executions("second") == 0:
                        await trouble(kit)
        assert [answer["status"] for answer in model.answers] == ["success", "success"]
        assert (await kit.executions("first"), await kit.executions("second")) == (1, 1)


# -- cancelling -----------------------------------------------------------------------------------


async def given_up(run: "asyncio.Task[Any]") -> None:
    run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.timeout(BOUND):
            await run


@eras
async def test_a_cancelled_run_cancels_its_call_and_makes_no_answer_of_it(era: str):
    async with house({"era": era, "encoding": "sse"}) as (kit, runtime):
        model = ScriptedModel.saying([("kit__slow", LONG)])
        async with conversation(model, [adk.Toolset(runtime)]) as talk:
            run = asyncio.create_task(talk.say())
            await kit.requests(tool="slow", at_least=1)
            await given_up(run)
            assert run.cancelled()
            assert {gone.tool for gone in await kit.cancelled(at_least=1)} == {"slow"}
            assert responses(await talk.kept()) == []


# -- progress -------------------------------------------------------------------------------------


@eras
async def test_progress_is_in_adks_stream_while_the_tool_runs_and_not_in_the_session(era: str):
    async with house({"era": era, "encoding": "sse"}) as (_, runtime):
        model = ScriptedModel.saying([("kit__steps", {"count": 3})], "Done.")
        async with conversation(model, [adk.Toolset(runtime)]) as talk:
            events = await talk.say()
            seen = progress(events)
            (call,) = [call for event in events for call in event.get_function_calls()]
            assert [(one["event"], one["progress"], one["total"]) for one in seen] == [
                ("progress", step, 3) for step in (1, 2, 3)
            ]
            assert {one["function_call_id"] for one in seen} == {call.id}
            assert {event.author for event in events} == {"helper"}
            assert progress(await talk.kept()) == []


async def test_who_leaves_the_stream_at_the_first_progress_cancels_the_call():
    async with house({"encoding": "sse"}) as (kit, runtime):
        model = ScriptedModel.saying([("kit__steps", {"count": 2, "gap": 30})])
        async with conversation(model, [adk.Toolset(runtime)]) as talk:
            async with asyncio.timeout(BOUND):
                async with contextlib.aclosing(talk.events()) as events:
                    async for event in events:
                        if progress([event]):
                            break
            await kit.cancelled(at_least=1)
            assert responses(await talk.kept()) == []


async def test_log_lines_and_replays_are_in_adks_stream_too():
    async with house({"era": "legacy", "encoding": "sse"}) as (kit, runtime):
        await kit.script(Rule(do=Behaviour(status=429, headers={"Retry-After": "0"}), times=1))
        model = ScriptedModel.saying([("kit__logs", {"count": 1})], "Done.")
        async with conversation(model, [adk.Toolset(runtime, context=nobody)]) as talk:
            kinds = [one["event"] for one in progress(await talk.say())]
    assert kinds == ["retrying", "log"]


def nobody(context: Any) -> CallContext:
    """Calls use the server's own session: no other has to be opened first."""
    return CallContext()


# -- what the model is told -----------------------------------------------------------------------


async def told(talk: Conversation, model: ScriptedModel) -> str:
    """What the model was told of its one call; the run goes on to its end."""
    events = await talk.say()
    assert events[-1].is_final_response()
    (answer,) = model.answers
    assert answer["status"] == "error"
    assert set(answer) == {"status", "error", "tool_name", "namespace"}
    assert answer["tool_name"].startswith(f"{answer['namespace']}.")
    return answer["error"]


async def test_the_model_sees_a_tools_own_error_in_its_own_words():
    async with house() as (_, runtime):
        model = ScriptedModel.saying([("kit__fail", {"message": "no such row"})], "Sorry.")
        async with conversation(model, [adk.Toolset(runtime)]) as talk:
            assert await told(talk, model) == "no such row"


async def test_the_model_is_told_which_argument_is_wrong_and_nothing_is_sent():
    async with house() as (kit, runtime):
        model = ScriptedModel.saying([("kit__add", {"a": "two", "b": 3})], "Sorry.")
        async with conversation(model, [adk.Toolset(runtime)]) as talk:
            said = await told(talk, model)
        with pytest.raises(InvalidArguments) as refused:
            await runtime.call("kit.add", {"a": "two", "b": 3})
        assert said == error_message(refused.value, "kit__add")
        assert await kit.requests("tools/call") == []


async def test_an_argument_that_is_null_without_need_is_left_out():
    async with house() as (kit, runtime):
        model = ScriptedModel.saying([("kit__echo", {"text": "hello", "key": None})], "Done.")
        async with conversation(model, [adk.Toolset(runtime)]) as talk:
            await talk.say()
        (sent,) = await kit.requests("tools/call")
    assert sent.body["params"]["arguments"] == {"text": "hello"}


async def test_the_model_is_told_that_a_server_is_out_of_reach_and_that_nothing_ran():
    async with contextlib.AsyncExitStack() as kits:
        kit = await kits.enter_async_context(ScriptedServer.local())
        spec = {**kit.spec, "timeouts": {"call": 0.5}}
        async with Runtime({"mcpServers": {"kit": spec}}) as runtime:
            model = ScriptedModel.saying([("kit__record", {})], "Sorry.")
            async with conversation(model, await adk.tools(runtime)) as talk:
                await kits.aclose()
                said = await told(talk, model)
    assert said == error_message(CallNotDelivered("", **ABOUT), "kit__record")


@eras
async def test_the_model_is_told_of_an_unknown_outcome_and_the_tool_ran_once(era: str):
    async with house({"era": era}) as (kit, runtime):
        await kit.script(Rule(tool="record", do=Behaviour(drop="after_run"), times=1))
        model = ScriptedModel.saying([("kit__record", {})], "I do not know.")
        async with conversation(model, [adk.Toolset(runtime)]) as talk:
            said = await told(talk, model)
        assert said == error_message(CallOutcomeUnknown("", **ABOUT), "kit__record")
        assert await kit.executions("record") == 1


async def test_who_asks_for_errors_gets_them_raised_and_may_answer_for_the_tool():
    async with house() as (kit, runtime):
        await kit.script(Rule(tool="record", do=Behaviour(drop="after_run"), times=2))
        made = await adk.tools(runtime, ["kit.record"], errors="raise")
        model = ScriptedModel.saying([("kit__record", {})])
        async with conversation(model, made) as talk:
            with pytest.raises(CallOutcomeUnknown):
                await talk.say()
        assert await kit.executions("record") == 1
