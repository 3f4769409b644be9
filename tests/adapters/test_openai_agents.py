"""The whole loop of an OpenAI agent over real servers, when all is well and when it is not."""

import asyncio
import json
from typing import Any

import pytest
from agents import Runner
from agents.exceptions import AgentsException

from tests.adapters._openai_agents import (
    Offer,
    agent_of,
    as_server,
    offered_to,
    outputs,
    run,
    scripted,
    surfaces,
)
from tests.adapters._servers import (
    BOUND,
    LONG,
    WAYS,
    breaks_off,
    deserted,
    eras,
    given_up,
    house,
    reached,
    wait_for,
)
from toolkeep import (
    CallContext,
    CallOutcomeUnknown,
    CallResult,
    ConfigError,
    InvalidArguments,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep.adapters._common import error_message, tool_error_message
from toolkeep.adapters.openai_agents import ProgressFeed, ToolProgress
from toolkeep.errors import Delivery
from toolkeep.testing import Behaviour, Recorded, Rule

pytestmark = pytest.mark.requirement("A3", "A5")

UNKNOWN = CallOutcomeUnknown("", server="kit", delivery=Delivery.UNKNOWN)


@surfaces
@pytest.mark.parametrize("way", WAYS)
async def test_a_tool_found_by_its_name_is_called_over_every_transport(way: str, offer: Offer):
    async with reached(way) as runtime:
        (tool,) = await runtime.resolve(["add"])
        model = scripted([(tool.model_name, {"a": 2, "b": 3})], "It is 5.")
        result = await run(model, await offer(runtime, names=["add"], use_structured_content=True))
    assert result.final_output == "It is 5."
    assert json.loads(outputs(model)["1"]) in ({"sum": 5}, {"result": 5})
    assert list(offered_to(model)) == [tool.model_name]


@surfaces
@eras
async def test_two_calls_of_one_turn_run_at_the_same_time(era: str, offer: Offer):
    async with house(era) as (kit, runtime):
        both = [("kit__echo", {"text": "one"}), ("kit__echo", {"text": "two"})]
        model = scripted(both, [("kit__slow", LONG), ("kit__slow", LONG)])
        agent = agent_of(model, **await offer(runtime))
        going = asyncio.create_task(Runner.run(agent, "Go on."))
        await kit.requests(tool="slow", at_least=2)
        assert outputs(model) == {"1": "one", "2": "two"}
        await given_up(going)


@surfaces
@eras
@pytest.mark.parametrize("trouble", ["forget_sessions", "restart"])
async def test_a_session_lost_or_a_restart_between_turns_is_not_noticed(
    era: str, trouble: str, offer: Offer
):
    async with house(era) as (kit, runtime):
        model = scripted(
            [("kit__record", {"key": "first"})],
            getattr(kit, trouble),
            [("kit__record", {"key": "second"}), ("kit__record", {"key": "third"})],
            "Done.",
        )
        assert (await run(model, await offer(runtime))).final_output == "Done."
        assert outputs(model) == {"1": "recorded", "2": "recorded", "3": "recorded"}
        assert await kit.ledger() == {"first": 1, "second": 1, "third": 1}


# -- cancelling -----------------------------------------------------------------------------------


@surfaces
@eras
async def test_a_cancelled_run_cancels_its_call_and_makes_no_output_of_it(era: str, offer: Offer):
    async with house(era) as (kit, runtime):
        model = scripted([("kit__slow", LONG)], "never")
        agent = agent_of(model, **await offer(runtime))
        going = asyncio.create_task(Runner.run(agent, "Go on."))
        await kit.requests(tool="slow", at_least=1)
        await given_up(going)
        assert going.cancelled()
        assert {one.tool for one in await kit.cancelled(at_least=1)} == {"slow"}
        assert (outputs(model), model.remaining_steps) == ({}, 1)


@surfaces
async def test_a_streamed_run_that_is_cancelled_cancels_its_call(offer: Offer):
    async with house() as (kit, runtime):
        model = scripted([("kit__slow", LONG)], "never")
        result = Runner.run_streamed(agent_of(model, **await offer(runtime)), "Go on.")
        await kit.requests(tool="slow", at_least=1)
        result.cancel()
        events = await wait_for(all_of(result.stream_events()))
        assert "tool_output" not in [getattr(event, "name", None) for event in events]
        assert {one.tool for one in await kit.cancelled(at_least=1)} == {"slow"}


async def all_of(events: Any) -> list[Any]:
    return [event async for event in events]


# -- what the model is told -----------------------------------------------------------------------


@surfaces
async def test_a_tool_s_own_error_is_told_in_its_own_words(offer: Offer):
    async with house() as (_, runtime):
        model = scripted([("kit__fail", {"message": "The disk is full."})], "Sorry.")
        await run(model, await offer(runtime, use_structured_content=True))
    assert outputs(model) == {"1": "The disk is full."}


@surfaces
async def test_an_error_without_a_word_is_told_as_one(offer: Offer):
    silent = {"content": [], "isError": True}
    async with house() as (kit, runtime):
        await kit.script(Rule(do=Behaviour(result=silent), tool="record"))
        model = scripted([("kit__record", {})], "Sorry.")
        await run(model, await offer(runtime))
    told = tool_error_message(CallResult(silent, "kit", "record"), "kit__record")
    assert outputs(model) == {"1": told}


@surfaces
@pytest.mark.parametrize("given", [{"a": "two", "b": 3}, "[1]", "{", {"a": 1}])
async def test_a_wrong_argument_is_told_and_costs_no_request(given: Any, offer: Offer):
    async with house() as (kit, runtime):
        model = scripted([("kit__add", given)], [("kit__add", {"a": 2, "b": 3})], "It is 5.")
        await run(model, await offer(runtime))
        told = outputs(model)["1"]
        problems = told.partition("(")[2].rpartition(")")[0]
        wrong = InvalidArguments("", server="kit", tool="add", problems=(problems,))
        assert problems
        assert told == error_message(wrong, "kit__add")
        assert await kit.executions("add") == 1


@surfaces
@eras
async def test_an_unknown_outcome_is_told_and_the_tool_ran_once(era: str, offer: Offer):
    async with house(era) as (kit, runtime):
        await breaks_off(kit, "record")
        model = scripted([("kit__record", {"key": "once"})], "I do not know.")
        await run(model, await offer(runtime))
        assert outputs(model) == {"1": error_message(UNKNOWN, "kit__record")}
        assert await kit.executions("once") == 1


@surfaces
async def test_a_server_out_of_reach_is_told_and_the_run_goes_on(offer: Offer):
    async with deserted() as runtime:
        model = scripted([("kit__record", {})], "Later, then.")
        assert (await run(model, await offer(runtime))).final_output == "Later, then."
    gone = ServerUnavailable("", server="kit")
    assert outputs(model) == {"1": error_message(gone, "kit__record")}


@surfaces
async def test_without_a_failure_function_the_run_raises(offer: Offer):
    async with house() as (kit, runtime):
        await breaks_off(kit, "record")
        model = scripted([("kit__record", {"key": "once"})], "never")
        offered = await offer(runtime, failure_error_function=None)
        with pytest.raises(AgentsException) as raised:
            await run(model, offered)
        assert isinstance(behind(raised.value), CallOutcomeUnknown)
        assert (await kit.executions("once"), model.remaining_steps) == (1, 1)


def behind(error: BaseException | None) -> BaseException | None:
    while error is not None and not isinstance(error, ToolkeepError):
        error = error.__cause__
    return error


@surfaces
async def test_a_failure_function_gets_the_error_itself(offer: Offer):
    seen: list[Exception] = []

    async def told(context: Any, error: Exception) -> str:
        seen.append(error)
        return f"{context.tool_name}: ask me later"

    async with house() as (kit, runtime):
        await breaks_off(kit, "record")
        model = scripted([("kit__record", {})], "Well.")
        await run(model, await offer(runtime, failure_error_function=told))
    assert outputs(model) == {"1": "kit__record: ask me later"}
    assert [type(error) for error in seen] == [CallOutcomeUnknown]


@surfaces
@pytest.mark.parametrize("more", [{}, {"failure_error_function": lambda run, error: "Never mind."}])
async def test_what_only_the_program_s_author_can_mend_is_always_raised(offer: Offer, more: Any):
    who = {"name": "ada"}

    async def forget() -> None:
        who["name"] = ""

    async with house() as (kit, runtime):
        offered = await offer(
            runtime, context=lambda run: CallContext(principal=who["name"]), **more
        )
        model = scripted(forget, [("kit__record", {})], "never")
        with pytest.raises(AgentsException) as raised:
            await run(model, offered)
        assert isinstance(behind(raised.value), ConfigError)
        assert (model.remaining_steps, await kit.requests("tools/call")) == (1, [])


# -- progress -------------------------------------------------------------------------------------


@surfaces
@eras
async def test_progress_is_in_the_stream_while_the_tool_runs(era: str, offer: Offer):
    async with house(era) as (_, runtime):
        model = scripted([("kit__steps", {"count": 3}), ("kit__steps", {"count": 1})], "Done.")
        agent = agent_of(model, **await offer(runtime))
        with ProgressFeed() as feed:
            result = Runner.run_streamed(agent, "Go on.")
        events: list[Any] = await wait_for(all_of(feed.events(result)))
    steps = [event for event in events if isinstance(event, ToolProgress)]
    assert [(one.progress, one.total) for one in steps if one.tool_call_id == "1"] == [
        (1, 3),
        (2, 3),
        (3, 3),
    ]
    assert {(one.tool_name, one.tool_call_id) for one in steps} == {
        ("kit__steps", "1"),
        ("kit__steps", "2"),
    }
    kinds = [getattr(event, "name", event.type) for event in events]
    called, last = kinds.index("tool_called"), kinds.index("tool_output")
    assert all(called < events.index(step) < last for step in steps)
    assert result.final_output == "Done."


async def test_a_feed_raises_what_the_run_raises_and_asks_for_progress_only_while_it_is_open():
    async with house() as (kit, runtime):
        await breaks_off(kit, "record")
        turns = [("kit__steps", {"count": 1})], [("kit__record", {})]
        offered = await as_server(runtime, failure_error_function=None)
        with ProgressFeed() as feed:
            result = Runner.run_streamed(agent_of(scripted(*turns), **offered), "Go on.")
        with pytest.raises(AgentsException):
            await wait_for(all_of(feed.events(result)))
        await run(scripted([("kit__steps", {"count": 1})], "Done."), offered)
        heard, unheard = [asked(one) for one in await kit.requests(tool="steps")]
        assert (heard, unheard) == (True, False)


def asked(request: Recorded) -> bool:
    body: Any = request.body
    return "progressToken" in body["params"].get("_meta", {})


async def test_who_leaves_the_feed_early_leaves_nothing_behind():
    async with house() as (kit, runtime):
        model = scripted([("kit__steps", {"count": 2, "gap": 30})], "never")
        with ProgressFeed() as feed:
            result = Runner.run_streamed(agent_of(model, **await as_server(runtime)), "Go on.")
        async with asyncio.timeout(BOUND):
            events = feed.events(result)
            async for event in events:
                if isinstance(event, ToolProgress):
                    break
            await events.aclose()
            result.cancel()
            await kit.cancelled(at_least=1)
