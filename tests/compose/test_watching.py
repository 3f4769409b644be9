"""A plan that is watched: every event as it happens, in order, and the account at the end."""

import asyncio
import json
import logging
import time
from typing import Any

import pytest

from tests.compose._plans import PATIENCE, echo, fail, given_up, opened, record, slow
from toolkeep.compose import (
    Equals,
    Finished,
    ForEach,
    Parallel,
    Plan,
    PlanEvent,
    PlanRefused,
    State,
    Step,
    StepEnded,
    StepProgress,
    StepStarted,
    ref,
    run,
    stream,
)

STEPS = Step("steps", "one.steps", {"count": 3, "gap": 0.5})


def told(events: list[PlanEvent]) -> list[str]:
    """The events in short: `started a`."""
    return [
        f"{type(event).__name__.removeprefix('Step').lower()} {getattr(event, 'step', '')}".strip()
        for event in events
    ]


@pytest.mark.requirement("F2")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_progress_of_a_step_is_heard_as_it_happens(era: Any) -> None:
    plan = Plan(STEPS, record("after"))
    async with opened({"era": era, "encoding": "sse"}) as (runtime, _), asyncio.timeout(PATIENCE):
        heard: list[tuple[float, PlanEvent]] = []
        async with stream(runtime, plan) as running:
            async for event in running:
                heard.append((time.monotonic(), event))
            account = await running.result()
    events = [event for _, event in heard]
    assert account.ok
    assert running.account is account
    assert told(events) == [
        "started steps",
        *["progress steps"] * 3,
        "ended steps",
        "started after",
        "ended after",
        "finished",
    ]
    steps = [event for event in events if isinstance(event, StepProgress)]
    assert [(one.progress, one.total) for one in steps] == [(1, 3), (2, 3), (3, 3)]
    assert all(one.message and one.server == "one" for one in steps)
    times = [at for at, event in heard if isinstance(event, StepProgress)]
    assert times[2] - times[0] >= 0.5  # spaced as the server spaced them


async def test_events_are_json_and_say_for_which_element_they_are() -> None:
    each = ForEach("each", ["a", "b"], echo("say", ref("item")), limit=2, at_once=1)
    plan = Plan(each, record("no", when=Equals(1, 2)), fail("bad", on_failure="go_on"))
    events: list[PlanEvent] = []
    async with opened() as (runtime, _):
        await run(runtime, plan, on_event=events.append)
    assert told(events) == [
        "started say",
        "ended say",
        "started say",
        "ended say",
        "ended each",
        "ended no",
        "started bad",
        "ended bad",
        "finished",
    ]
    items = [event.items for event in events if isinstance(event, StepStarted)]
    assert items == [(0,), (1,), ()]
    ended = [event for event in events if isinstance(event, StepEnded)]
    assert [one.server for one in ended] == ["one", "one", "", "one", "one"]
    said = [json.loads(event.to_json()) for event in events]
    assert said[1]["record"]["path"] == "each[0].say"
    assert said[5]["record"]["state"] == "skipped"
    assert said[-1]["event"] == "finished"
    assert said[-1]["account"]["ok"] is True
    assert [event.is_final for event in events] == [False] * 8 + [True]


async def test_a_listener_that_fails_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: PlanEvent) -> None:
        raise RuntimeError("no ear")

    with caplog.at_level(logging.ERROR, "toolkeep.compose"):
        async with opened() as (runtime, _):
            assert (await run(runtime, Plan(record("a")), on_event=broken)).ok
    assert len(caplog.records) == 3


async def test_the_result_alone_can_be_waited_for() -> None:
    async with opened() as (runtime, _), stream(runtime, Plan(record("a"))) as running:
        assert (await running.result()).ok
        assert (await running.result()) is running.account


@pytest.mark.parametrize("turns", range(4))
async def test_who_leaves_before_anything_began_has_an_account_that_says_so(turns: int) -> None:
    plan = Plan(slow("a"), Parallel(record("b"), ForEach("each", [1], record("c"), limit=1)))
    async with opened() as (runtime, _), asyncio.timeout(PATIENCE):
        async with stream(runtime, plan) as running:
            for _ in range(turns):
                await asyncio.sleep(0)
        events = [event async for event in running]
        account = await running.result() if turns % 2 else running.account
    assert account.cancelled
    assert [step.name for step in account.steps] == ["a", "b", "each"]
    assert {step.state for step in account.steps[1:]} == {State.NOT_REACHED}
    assert isinstance(events[-1], Finished)
    assert events[-1].account is account


async def test_a_plan_that_is_cancelled_while_its_tools_are_looked_for_has_an_account() -> None:
    heard: list[PlanEvent] = []
    plan = Plan(record("a"), ForEach("each", [1], record("c"), limit=1))
    looking = asyncio.Event()

    async def permissions(action: Any, what: Any, context: Any) -> bool:
        looking.set()
        await asyncio.Event().wait()
        return True

    async with opened(permissions=permissions) as (runtime, (one,)), asyncio.timeout(PATIENCE):
        running = asyncio.create_task(run(runtime, plan, on_event=heard.append))
        await looking.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await one.ledger() == {}
    (finished,) = heard
    assert isinstance(finished, Finished)
    assert {step.state for step in finished.account.steps} == {State.NOT_REACHED}
    assert finished.account.cancelled


async def test_leaving_early_cancels_the_plan_and_says_what_was_under_way() -> None:
    plan = Plan(record("a"), Parallel(slow("b"), slow("c")), record("d"))
    async with opened() as (runtime, (one,)), asyncio.timeout(PATIENCE):
        async with stream(runtime, plan) as running:
            async for event in running:
                if isinstance(event, StepStarted) and event.step == "c":
                    break
            await one.requests("tools/call", at_least=3, within=PATIENCE)
            with pytest.raises(RuntimeError):
                print(running.account)
        assert await given_up(one, 2) == {"slow"}
    account = running.account
    assert account.cancelled
    assert [call.state.name for call in account.calls] == [
        "COMPLETED",
        "CANCELLED",
        "CANCELLED",
        "NOT_REACHED",
    ]
    rest = [event async for event in running]
    assert isinstance(rest[-1], Finished)
    assert (await running.result()) is account


async def test_an_error_in_the_block_cancels_the_plan_and_goes_on_up() -> None:
    async with opened() as (runtime, (one,)), asyncio.timeout(PATIENCE):
        running = stream(runtime, Plan(slow("a")))
        with pytest.raises(LookupError):
            async with running:
                await one.requests("tools/call", at_least=1, within=PATIENCE)
                raise LookupError
        assert running.account["a"].state is State.CANCELLED


async def test_a_plan_that_is_refused_is_told_to_whoever_iterates_or_waits() -> None:
    bad = Plan(Step("a", "one.nothing"))
    async with opened() as (runtime, _):
        async with stream(runtime, bad) as running:
            with pytest.raises(PlanRefused):
                await anext(running)
            with pytest.raises(PlanRefused):
                await running.result()
        with pytest.raises(RuntimeError):
            print(running.account)
        async with stream(runtime, bad):
            pass  # nobody asks, and nothing is left behind


async def test_a_plan_is_entered_once_and_before_it_is_used() -> None:
    async with opened() as (runtime, _):
        running = stream(runtime, Plan(record("a")))
        with pytest.raises(RuntimeError):
            await running.result()
        async with running:
            await running.result()
        with pytest.raises(RuntimeError):
            async with running:
                pass
