"""A call that is watched over stdio, HTTP+SSE or in-process tells its story as it happens."""

import asyncio
import itertools
import time
from typing import Any

import pytest

from tests.engine.helpers_tasks import BOUND, LONG, outcome, until
from tests.engine.helpers_transports import Way, every_way, over_kit, serving
from toolkeep import CallOutcomeUnknown, CallTimedOut, Client
from toolkeep.events import (
    CallEvent,
    Changed,
    Completed,
    Event,
    Failed,
    Log,
    Progress,
    Retrying,
    Started,
)

pytestmark = pytest.mark.requirement("L2")

GAP = 0.08
"""Seconds between two steps of a tool."""
BLOCKED = 10.0


async def events_of(client: Client, tool: str, arguments: dict[str, Any]) -> list[CallEvent]:
    async with asyncio.timeout(BOUND), client.stream(tool, arguments) as call:
        return [event async for event in call]


def reported(events: list[Any]) -> list[float]:
    return [event.progress for event in events if isinstance(event, Progress)]


@every_way
@pytest.mark.requirement("L1")
async def test_steps_are_told_when_the_server_reports_them(way: Way):
    arrivals: list[tuple[CallEvent, float]] = []
    async with serving(way) as (_, client):
        await client.connect()
        async with asyncio.timeout(BOUND), client.stream("steps", {"count": 4, "gap": GAP}) as call:
            async for event in call:
                arrivals.append((event, time.monotonic()))
            result = await call.result()
    events = [event for event, _ in arrivals]
    assert [event.kind for event in events] == ["started", *["progress"] * 4, "completed"]
    assert reported(events) == [1, 2, 3, 4]
    moments = [at for event, at in arrivals if not isinstance(event, Started)]
    assert all(later - earlier >= GAP / 2 for earlier, later in itertools.pairwise(moments))
    stamps = [event.at for event in events[1:]]
    assert all(later - earlier >= GAP / 2 for earlier, later in itertools.pairwise(stamps))
    assert isinstance(events[-1], Completed)
    assert events[-1].result is result
    assert result.text == "4 steps"


@every_way
async def test_no_report_is_lost_or_told_twice_when_they_come_at_once(way: Way):
    async with serving(way) as (_, client):
        for _ in range(3):
            events = await events_of(client, "steps", {"count": 300})
            assert reported(events) == list(range(1, 301))
            assert [event for event in events if event.is_final] == [events[-1]]


@every_way
async def test_concurrent_calls_hear_their_own_reports_only(way: Way):
    async with serving(way) as (server, client):
        counts = range(3, 23)
        calls = (events_of(client, "steps", {"count": n, "gap": 0.005}) for n in counts)
        async with asyncio.timeout(BOUND):
            stories = await asyncio.gather(*calls)
        for count, events in zip(counts, stories, strict=True):
            assert reported(events) == list(range(1, count + 1))
            assert {e.total for e in events if isinstance(e, Progress)} == {count}
            assert len({event.call_id for event in events}) == 1
            assert isinstance(events[-1], Completed)
            assert events[-1].result.text == f"{count} steps"
        assert await server.openings() == 1


@every_way
async def test_a_slow_listener_holds_up_its_own_call_only_and_loses_nothing(way: Way):
    heard: list[float] = []
    stuck, go_on = asyncio.Event(), asyncio.Event()

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        stuck.set()
        await asyncio.wait_for(go_on.wait(), BLOCKED)
        heard.append(progress)

    async with serving(way) as (_, client):
        work = {"count": 200}
        slow = asyncio.create_task(client.call_tool("steps", work, on_progress=listen))
        await asyncio.wait_for(stuck.wait(), BOUND)
        for _ in range(3):
            assert (await outcome(client.call_tool("echo", {"text": "x"}))).text == "x"
            assert reported(await events_of(client, "steps", {"count": 50})) == [*range(1, 51)]
        assert not slow.done()
        go_on.set()
        assert (await outcome(slow)).text == "200 steps"
    assert heard == list(range(1, 201))


@every_way
async def test_full_progress_is_not_the_end(way: Way):
    async with serving(way) as (_, client):
        events = await events_of(client, "steps", {"count": 1, "gap": GAP})
    assert [event.kind for event in events] == ["started", "progress", "completed"]
    assert isinstance(events[1], Progress)
    assert events[1].fraction == 1.0
    assert events[2].at - events[1].at >= GAP / 2


@every_way
@pytest.mark.requirement("L3")
async def test_leaving_the_loop_early_cancels_the_call(way: Way):
    async with serving(way) as (server, client):
        async with client.stream("steps", {"count": 999, "gap": 0.02}) as call:
            async for event in call:
                if isinstance(event, Progress):
                    break
        assert await server.given_up(at_least=1) == ["steps"]
        assert (await client.call_tool("echo", {"text": "on"})).text == "on"
        assert await server.openings() == 1


@every_way
@pytest.mark.requirement("L1", "L3")
async def test_a_silent_tool_starts_and_completes(way: Way):
    async with serving(way) as (_, client):
        events = await events_of(client, "echo", {"text": "hi"})
    assert [type(event) for event in events] == [Started, Completed]


@every_way
@pytest.mark.requirement("L1")
async def test_a_call_whose_server_dies_ends_with_one_failure_after_all_reports(way: Way):
    events: list[CallEvent] = []
    async with (
        serving(way) as (server, client),
        asyncio.timeout(BOUND),
        client.stream("steps", {"count": 2, "gap": LONG}) as call,
    ):
        async for event in call:
            events.append(event)
            if isinstance(event, Progress):
                await server.die()
    assert [type(event) for event in events] == [Started, Progress, Failed]
    assert isinstance(events[-1], Failed)
    assert type(events[-1].error) is CallOutcomeUnknown


@every_way
@pytest.mark.requirement("L1")
async def test_a_replay_is_told_and_its_reports_begin_anew(way: Way):
    events: list[CallEvent] = []
    async with serving(way, {"retry_tools": {"steps": "always"}}) as (server, client):
        died = False
        async with asyncio.timeout(BOUND), client.stream("steps", {"count": 3, "gap": 0.1}) as call:
            async for event in call:
                events.append(event)
                if isinstance(event, Progress) and not died:
                    died = True
                    await server.die()
    assert [event.kind for event in events] == [
        *("started", "progress", "retrying"),
        *("progress", "progress", "progress", "completed"),
    ]
    assert [event.attempt for event in events if isinstance(event, Retrying)] == [1]


@every_way
@pytest.mark.requirement("P3")
async def test_progress_extends_the_deadline_if_asked_to(way: Way):
    timeouts = {"call": 0.3, "extend_on_progress": True}
    async with serving(way, {"timeouts": timeouts}) as (_, client):
        await client.connect()
        steady, halting = await asyncio.gather(
            events_of(client, "steps", {"count": 5, "gap": 0.08}),
            events_of(client, "steps", {"count": 2, "gap": LONG}),
        )
        assert isinstance(steady[-1], Completed)
        assert isinstance(halting[-1], Failed)
        assert type(halting[-1].error) is CallTimedOut


@every_way
async def test_a_callback_hears_every_report_before_the_call_ends(way: Way):
    heard: list[tuple[float, float | None, str | None]] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        await asyncio.sleep(0.005)
        heard.append((progress, total, message))

    async with serving(way) as (_, client):
        await client.call_tool("steps", {"count": 5}, on_progress=listen)
        assert heard == [(n, 5, f"step {n} of 5") for n in range(1, 6)]


@over_kit
@pytest.mark.requirement("L4")
async def test_what_the_server_says_outside_of_calls_goes_to_observers(way: Way):
    events: list[Event] = []
    async with serving(way) as (server, client):
        client.observe(events.append)
        await client.connect()
        async with (
            asyncio.timeout(BOUND),
            client.stream("steps", {"count": 5, "gap": 0.02}) as call,
        ):
            await server.server.notify("notifications/tools/list_changed")
            await server.server.notify("notifications/resources/list_changed")
            story = [event async for event in call]
        changed = ["tools", "resources"]
        await until(lambda: len([e for e in events if isinstance(e, Changed)]) >= 2, "changes")
        assert [event.what for event in events if isinstance(event, Changed)] == changed
    assert reported(story) == [1, 2, 3, 4, 5]
    assert not [event for event in story if isinstance(event, Changed | Log)]
