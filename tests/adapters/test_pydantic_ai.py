"""The whole loop of a Pydantic AI agent over real servers, when all is well and when it is not."""

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent, AgentRunResultEvent
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import FunctionToolResultEvent

from tests.adapters._pydantic_ai import Script, run
from tests.adapters._servers import (
    ADA,
    BOB,
    BOUND,
    LONG,
    WAYS,
    breaks_off,
    deserted,
    eras,
    given_up,
    house,
    reached,
)
from toolkeep import CallContext, CallOutcomeUnknown, ConfigError, NotPermitted, ServerUnavailable
from toolkeep.adapters._common import error_message
from toolkeep.adapters.pydantic_ai import RuntimeToolset, ToolProgress
from toolkeep.errors import Delivery

pytestmark = pytest.mark.requirement("A4", "A5")

UNKNOWN = CallOutcomeUnknown("", server="kit", delivery=Delivery.UNKNOWN)


@pytest.mark.parametrize("way", WAYS)
async def test_a_tool_found_by_its_name_is_called_over_every_transport(way: str):
    async with reached(way) as runtime:
        (tool,) = await runtime.resolve(["add"])
        script = Script([(tool.model_name, {"a": 2, "b": 3})], "It is 5.")
        assert await run(script, RuntimeToolset(runtime, ["add"])) == "It is 5."
    assert script.outcomes["1"] in (("success", {"sum": 5}), ("success", {"result": 5}))
    assert list(script.offered[0]) == [tool.model_name]


@eras
async def test_two_calls_of_one_turn_run_at_the_same_time(era: str):
    async with house(era) as (kit, runtime):
        both = [("kit__echo", {"text": "one"}), ("kit__echo", {"text": "two"})]
        script = Script(both, [("kit__slow", LONG), ("kit__slow", LONG)])
        going = asyncio.create_task(run(script, RuntimeToolset(runtime)))
        await kit.requests(tool="slow", at_least=2)
        assert script.outcomes == {"1": ("success", "one"), "2": ("success", "two")}
        await given_up(going)


@eras
@pytest.mark.parametrize("trouble", ["forget_sessions", "restart"])
async def test_a_session_lost_or_a_restart_between_turns_is_not_noticed(era: str, trouble: str):
    async with house(era) as (kit, runtime):
        script = Script(
            [("kit__record", {"key": "first"})],
            getattr(kit, trouble),
            [("kit__record", {"key": "second"}), ("kit__record", {"key": "third"})],
            "Done.",
        )
        assert await run(script, RuntimeToolset(runtime)) == "Done."
        assert {outcome for outcome, _ in script.outcomes.values()} == {"success"}
        assert await kit.ledger() == {"first": 1, "second": 1, "third": 1}


@eras
async def test_a_cancelled_run_cancels_its_call_and_makes_no_output_of_it(era: str):
    async with house(era) as (kit, runtime):
        script = Script([("kit__slow", LONG)], "never")
        going = asyncio.create_task(run(script, RuntimeToolset(runtime)))
        await kit.requests(tool="slow", at_least=1)
        await given_up(going)
        assert going.cancelled()
        assert {one.tool for one in await kit.cancelled(at_least=1)} == {"slow"}
        assert (script.outcomes, script.left) == ({}, 1)


# -- what the model is told -----------------------------------------------------------------------


@pytest.mark.parametrize("errors", ["tell", "raise"])
async def test_a_tool_s_own_error_is_told_in_its_own_words_and_uses_up_no_retry(errors: Any):
    async with house() as (kit, runtime):
        fails = [("kit__fail", {"message": "The disk is full."})]
        script = Script(fails, fails, fails, "Sorry.")
        toolset = RuntimeToolset(runtime, errors=errors, max_retries=0)
        assert await run(script, toolset) == "Sorry."
        assert script.outcomes["3"] == ("failed", "The disk is full.")
        assert await kit.executions("fail") == 3


@pytest.mark.parametrize("errors", ["tell", "raise"])
@pytest.mark.parametrize("given", [{"a": "two", "b": 3}, "[1]", "{", {"a": 1}])
async def test_a_wrong_argument_is_the_model_s_to_mend_and_costs_no_request(
    given: Any, errors: Any
):
    async with house() as (kit, runtime):
        script = Script([("kit__add", given)], [("kit__add", {"a": 2, "b": 3})], "It is 5.")
        assert await run(script, RuntimeToolset(runtime, errors=errors)) == "It is 5."
        assert [outcome for outcome, _ in script.outcomes.values()] == ["retried", "success"]
        assert await kit.executions("add") == 1


async def test_how_often_the_model_may_mend_it_is_a_setting():
    async with house() as (kit, runtime):
        script = Script(*[[("kit__add", {"a": 1})]] * 3)
        with pytest.raises(UnexpectedModelBehavior):
            await run(script, RuntimeToolset(runtime, max_retries=1))
        assert (script.left, await kit.executions("add")) == (1, 0)


@eras
async def test_an_unknown_outcome_is_told_invites_no_repeat_and_the_tool_ran_once(era: str):
    async with house(era) as (kit, runtime):
        await breaks_off(kit, "record")
        script = Script([("kit__record", {"key": "once"})], "I do not know.")
        assert await run(script, RuntimeToolset(runtime)) == "I do not know."
        assert script.outcomes == {"1": ("failed", error_message(UNKNOWN, "kit__record"))}
        assert script.returns["1"].retry is None
        assert await kit.executions("once") == 1


async def test_a_server_out_of_reach_is_told_and_the_run_goes_on():
    async with deserted() as runtime:
        script = Script([("kit__record", {})], "Later, then.")
        assert await run(script, RuntimeToolset(runtime)) == "Later, then."
    gone = ServerUnavailable("", server="kit")
    assert script.outcomes == {"1": ("failed", error_message(gone, "kit__record"))}


async def test_errors_can_be_raised_instead():
    async with house() as (kit, runtime):
        await breaks_off(kit, "record")
        script = Script([("kit__record", {"key": "once"})], "never")
        with pytest.raises(CallOutcomeUnknown):
            await run(script, RuntimeToolset(runtime, errors="raise"))
        assert (await kit.executions("once"), script.left) == (1, 1)


@pytest.mark.parametrize("errors", ["tell", "raise"])
async def test_what_only_the_program_s_author_can_mend_is_always_raised(errors: Any):
    def whose(run: Any) -> CallContext:
        return CallContext(principal="" if run.tool_name else "ada")

    async with house() as (kit, runtime):
        toolset: Any = RuntimeToolset(runtime, context=whose, errors=errors)
        script = Script([("kit__record", {})], "never")
        with pytest.raises(ConfigError):
            await run(script, toolset)
        assert (script.left, await kit.requests("tools/call")) == (1, [])


# -- progress -------------------------------------------------------------------------------------


@eras
async def test_progress_is_in_the_stream_before_the_result(era: str):
    async with house(era) as (_, runtime):
        script = Script([("kit__steps", {"count": 3})], "Done.")
        agent: Agent[Any, str] = Agent(script.model, toolsets=[RuntimeToolset(runtime)])
        async with asyncio.timeout(BOUND), agent.run_stream_events("Go on.") as stream:
            events = [event async for event in stream]
    steps = [event for event in events if isinstance(event, ToolProgress)]
    assert [(one.progress, one.total, one.message) for one in steps] == [
        (step, 3, f"step {step} of 3") for step in (1, 2, 3)
    ]
    assert {(one.tool_name, one.tool_call_id) for one in steps} == {("kit__steps", "1")}
    (result,) = [event for event in events if isinstance(event, FunctionToolResultEvent)]
    assert events.index(steps[-1]) < events.index(result)
    assert isinstance(events[-1], AgentRunResultEvent)


# -- users ----------------------------------------------------------------------------------------


async def by_deps(context: Any) -> CallContext:
    return {"ada": ADA, "bob": BOB}[context.deps]


@eras
@pytest.mark.parametrize("way", ["the deps themselves", "a function of the run"])
async def test_two_users_in_one_process_call_with_their_own_tokens(era: str, way: str):
    async with house(era) as (kit, runtime):
        own = way == "the deps themselves"
        toolset = RuntimeToolset(runtime, context=None if own else by_deps)
        turn = [("kit__record", {}), ("kit__headers", {})]
        scripts = {who: Script(turn, turn, "Done.") for who in ("ada", "bob")}
        deps: dict[str, Any] = {"ada": ADA, "bob": BOB} if own else {"ada": "ada", "bob": "bob"}
        await asyncio.gather(*(run(scripts[who], toolset, deps=deps[who]) for who in scripts))
        calls = await kit.requests("tools/call")
        assert sorted(call.headers["authorization"] for call in calls) == [
            *(["Bearer ada"] * 4),
            *(["Bearer bob"] * 4),
        ]
        for who, script in scripts.items():
            assert script.outcomes["2"][1]["authorization"] == f"Bearer {who}"
        if era == "legacy":
            told = {(call.session_id, call.headers["authorization"]) for call in calls}
            assert len({session for session, _ in told}) == len(told) == 2


@pytest.mark.parametrize("context", [by_deps, lambda run: None, lambda run: "ada"])
async def test_when_the_user_cannot_be_found_out_nothing_is_shown_or_called(context: Any):
    async with house() as (kit, runtime):
        script = Script([("kit__record", {})], "never")
        with pytest.raises(NotPermitted):
            await run(script, RuntimeToolset(runtime, context=context), deps="mallory")
        assert (script.left, await kit.requests("tools/call")) == (2, [])


async def test_tools_that_were_resolved_speak_for_whom_they_were_resolved():
    async with house() as (kit, runtime):
        toolset = RuntimeToolset(await runtime.resolve(["headers"], ADA))
        script = Script([("kit__headers", {})], "Done.")
        await run(script, toolset)
        (call,) = await kit.requests("tools/call")
        assert call.headers["authorization"] == "Bearer ada"
        assert list(script.offered[0]) == ["kit__headers"]
