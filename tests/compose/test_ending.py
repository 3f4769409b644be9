"""How a plan ends before its end: by its deadline, or because whoever runs it is cancelled."""

import asyncio
import time
from typing import Any

import pytest

from tests.compose._plans import (
    PATIENCE,
    disagreements,
    echo,
    given_up,
    ledger_of,
    opened,
    record,
    slow,
    states,
)
from toolkeep import CallNotSentInTime, CallTimedOut, InputNeeded, Runtime, ServerUnavailable
from toolkeep.compose import (
    Account,
    Finished,
    ForEach,
    Parallel,
    Plan,
    PlanEvent,
    PlanRefused,
    Sequence,
    State,
    Step,
    StepStarted,
    ref,
    run,
)
from toolkeep.testing import Behaviour, Rule, ScriptedServer

eras = pytest.mark.parametrize("era", ["legacy", "modern"])
SOON = 1.5
"""Seconds in which a call is certainly sent, and none of half a minute ends."""


@pytest.mark.requirement("F2")
@eras
async def test_one_deadline_covers_the_whole_plan(era: Any) -> None:
    plan = Plan(
        slow("short", 0.1),
        Parallel(slow("long"), Sequence(slow("longer", on_failure="go_on"), record("next"))),
        record("after"),
    )
    async with opened({"era": era}) as (runtime, servers):
        began = time.monotonic()
        account = await run(runtime, plan, timeout=SOON)
        took = time.monotonic() - began
        assert disagreements(account, await ledger_of(servers)) == []
    assert SOON <= took + 0.01 < PATIENCE
    assert states(account) == {
        "short": State.COMPLETED,
        "long": State.UNKNOWN,
        "longer": State.UNKNOWN,
        "next": State.NOT_REACHED,
        "after": State.NOT_REACHED,
    }
    assert isinstance(account["long"].error, CallTimedOut)


async def test_steps_that_wait_for_their_turn_do_not_begin_after_the_deadline() -> None:
    waiting = [slow(f"s{n}", on_failure="go_on") for n in range(3)]
    async with opened() as (runtime, servers):
        account = await run(runtime, Plan(Parallel(*waiting), at_once=1), timeout=SOON)
        assert await ledger_of(servers) == {"s0": 1}
    assert list(states(account).values()) == [State.UNKNOWN, *[State.NOT_REACHED] * 2]
    assert account.ended == "its time was over"


async def test_a_step_may_have_less_time_than_the_plan_and_never_more() -> None:
    async with opened() as (runtime, _):
        plan = Plan(slow("a", timeout=1.0, on_failure="go_on"), record("b"))
        account = await run(runtime, plan, timeout=PATIENCE)
        assert states(account) == {"a": State.UNKNOWN, "b": State.COMPLETED}
        account = await run(runtime, Plan(slow("a", timeout=60)), timeout=SOON)
        assert account["a"].state is State.UNKNOWN
        assert account.seconds < PATIENCE


async def test_progress_does_not_carry_a_call_past_the_deadline_of_its_plan() -> None:
    reporting = Step("steps", "one.steps", {"count": 500, "gap": 0.05})
    patient = {"call": 20, "extend_on_progress": True, "longest_call": 60}
    async with (
        opened({"encoding": "sse"}, timeouts=patient) as (runtime, (one,)),
        asyncio.timeout(PATIENCE),
    ):
        account = await run(runtime, Plan(reporting, record("after")), timeout=SOON)
        assert await given_up(one, 1) == {"steps"}
    assert account["steps"].state is State.CANCELLED
    assert account["steps"].why == account.ended == "its time was over"
    assert account["after"].state is State.NOT_REACHED


async def test_a_question_that_nobody_answers_does_not_carry_a_call_past_the_deadline() -> None:
    async def ponder(needed: InputNeeded) -> Any:
        await asyncio.sleep(PATIENCE)

    asked = {"name": {"method": "elicitation/create", "params": FORM}}
    plan = Plan(Step("ask", "kit.ask", {"requests": asked}))
    async with ScriptedServer.local(era="modern") as kit, asyncio.timeout(PATIENCE):
        config = {"mcpServers": {"kit": kit.spec}}
        async with Runtime.open(config, elicitation=ponder) as runtime:
            account = await run(runtime, plan, timeout=SOON)
    assert account["ask"].state is State.CANCELLED


FORM = {"mode": "form", "message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}


async def test_a_deadline_that_passes_before_the_tools_are_known_is_nothing_ran() -> None:
    silent = Rule(method="tools/list", do=Behaviour(hang=True))
    async with ScriptedServer.local() as kit, asyncio.timeout(PATIENCE):
        await kit.script(silent)
        spec = {**kit.spec, "timeouts": {"connect": 5, "call": 5}}
        async with Runtime.open({"mcpServers": {"one": spec}}, connect_timeout=0.1) as runtime:
            events: list[PlanEvent] = []
            with pytest.raises(CallNotSentInTime):
                await run(runtime, Plan(record("a")), timeout=0.2, on_event=events.append)
        assert events == []
        assert await kit.ledger() == {}


async def test_a_server_that_cannot_be_asked_keeps_the_plan_from_starting() -> None:
    async with opened(timeouts={"call": 0.3}) as (runtime, _):
        await runtime.aclose()
        with pytest.raises(ServerUnavailable):
            await run(runtime, Plan(record("a")))


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
async def test_a_time_that_is_none_is_refused(timeout: float) -> None:
    async with opened() as (runtime, (one,)):
        with pytest.raises(PlanRefused):
            await run(runtime, Plan(record("a")), timeout=timeout)
        assert await one.ledger() == {}


# -- cancelled -----------------------------------------------------------------------------------


async def begun(events: list[PlanEvent], server: ScriptedServer, count: int) -> None:
    await server.requests("tools/call", at_least=count, within=PATIENCE)
    assert sum(isinstance(event, StepStarted) for event in events) >= count


@pytest.mark.requirement("F2")
@eras
async def test_cancelling_whoever_runs_a_plan_cancels_every_call_under_way(era: Any) -> None:
    each = ForEach("each", [1, 2], Step("wait", "one.slow", {"seconds": 30}), limit=2)
    plan = Plan(record("done"), Parallel(slow("a"), slow("b"), each), record("after"))
    events: list[PlanEvent] = []
    async with opened({"era": era}) as (runtime, (one,)), asyncio.timeout(PATIENCE):
        running = asyncio.create_task(run(runtime, plan, on_event=events.append))
        await begun(events, one, 5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await given_up(one, 4) == {"slow"}
        assert await one.executions("after") == 0
    account = the_account(events)
    assert account.cancelled
    assert not account.ok
    assert states(account) == {
        "done": State.COMPLETED,
        **dict.fromkeys(["a", "b", "each[0].wait", "each[1].wait"], State.CANCELLED),
        "after": State.NOT_REACHED,
    }
    assert account["each"].state is State.CANCELLED
    assert "cancelled" in account.text()


async def test_a_cancelled_plan_leaves_its_runtime_as_it_was() -> None:
    async with opened() as (runtime, (one,)), asyncio.timeout(PATIENCE):
        running = asyncio.create_task(run(runtime, Plan(slow("a"))))
        await one.requests("tools/call", at_least=1, within=PATIENCE)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await run(runtime, Plan(record("b")))).ok


async def test_a_result_that_is_there_when_everything_is_cancelled_is_a_result() -> None:
    events: list[PlanEvent] = []
    over = asyncio.Event()

    def hear(event: PlanEvent) -> None:
        events.append(event)
        if isinstance(event, StepStarted) and event.step == "b":
            over.set()

    plan = Plan(echo("a", "hi"), slow("b"), echo("c", ref("a.text")))
    async with opened() as (runtime, _), asyncio.timeout(PATIENCE):
        running = asyncio.create_task(run(runtime, plan, on_event=hear))
        await over.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    account = the_account(events)
    assert account.values["a"]["text"] == "hi"
    assert [one.name for one in account.completed] == ["a"]


def the_account(events: list[PlanEvent]) -> Account:
    """Of the last event, the only one of its kind."""
    finished = [event for event in events if isinstance(event, Finished)]
    assert finished == events[-1:]
    return finished[0].account
