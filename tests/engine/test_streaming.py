"""A watched call tells its story as it happens, and ends once."""

import asyncio
import dataclasses
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from tests.engine.helpers_wire import (
    BOUND,
    Encoding,
    Era,
    both_encodings,
    both_eras,
    client_of,
    methods,
    when,
)
from toolkeep import CallNotDelivered, Client, InvalidArguments
from toolkeep.events import (
    CallEvent,
    Changed,
    Completed,
    Event,
    Failed,
    Log,
    Progress,
    Retrying,
    ServerNotification,
    Started,
)
from toolkeep.testing import ScriptedServer

THROTTLED: dict[str, Any] = {"status": 429, "headers": {"retry-after": "0"}}


@asynccontextmanager
async def watching(era: Era, encoding: Encoding = "sse", **spec: Any) -> AsyncIterator[Any]:
    async with (
        ScriptedServer.local(era=era, encoding=encoding) as server,
        client_of(server, mode=era, **spec) as client,
    ):
        yield server, client


async def events_of(client: Client, tool: str, arguments: dict[str, Any]) -> list[CallEvent]:
    async with client.stream(tool, arguments) as call:
        return [event async for event in call]


def kinds(events: list[Any]) -> list[str]:
    return [event.kind for event in events]


@both_eras
@pytest.mark.requirement("L1", "L2")
async def test_steps_are_told_when_the_server_reports_them(era: Era) -> None:
    arrivals: list[tuple[CallEvent, float]] = []
    async with watching(era) as (_, client):
        await client.connect()
        async with client.stream("steps", {"count": 5, "gap": 0.1}) as call:
            async for event in call:
                arrivals.append((event, time.monotonic()))
            result = await call.result()
    reports = [(event, at) for event, at in arrivals if isinstance(event, Progress)]
    assert [event.progress for event, _ in reports] == [1, 2, 3, 4, 5]
    moments = [at for _, at in reports] + [arrivals[-1][1]]
    assert all(later - earlier >= 0.05 for earlier, later in pairwise(moments))
    assert kinds([event for event, _ in arrivals]) == ["started", *["progress"] * 5, "completed"]
    assert result.text == "5 steps"
    stamped = [event.at for event, _ in reports]
    assert all(later - earlier >= 0.05 for earlier, later in pairwise(stamped))


@both_eras
@pytest.mark.requirement("L1", "L2")
async def test_no_report_is_lost_or_told_twice_when_they_come_at_once(era: Era) -> None:
    async with watching(era) as (_, client):
        events = await events_of(client, "steps", {"count": 300})
    reported = [event.progress for event in events if isinstance(event, Progress)]
    assert reported == list(range(1, 301))
    assert [event for event in events if event.is_final] == [events[-1]]
    assert isinstance(events[-1], Completed)


@both_eras
@pytest.mark.requirement("L1")
async def test_a_report_tells_its_fraction_and_message(era: Era) -> None:
    async with watching(era) as (_, client):
        events = await events_of(client, "steps", {"count": 4})
    told = []
    for event in events:
        match event:
            case Progress(fraction, message):
                told.append((fraction, message))
    assert told[0] == (0.25, "step 1 of 4")
    assert [fraction for fraction, _ in told] == [0.25, 0.5, 0.75, 1.0]


@both_eras
@pytest.mark.requirement("L2")
async def test_full_progress_is_not_the_end(era: Era) -> None:
    async with watching(era) as (_, client):
        events = await events_of(client, "steps", {"count": 1, "gap": 0.1})
    assert kinds(events) == ["started", "progress", "completed"]
    assert isinstance(events[1], Progress)
    assert events[1].fraction == 1.0
    assert not events[1].is_final
    assert events[2].at - events[1].at >= 0.05


@both_eras
@both_encodings
@pytest.mark.requirement("L3")
async def test_a_silent_tool_starts_and_completes(era: Era, encoding: Encoding) -> None:
    async with (
        watching(era, encoding) as (_, client),
        client.stream("echo", {"text": "hi"}) as call,
    ):
        events = [event async for event in call]
        result = await call.result()
    assert [type(event) for event in events] == [Started, Completed]
    assert events[-1].result is result
    assert result.text == "hi"


@both_eras
@pytest.mark.requirement("L3")
async def test_leaving_the_loop_early_cancels_the_call(era: Era) -> None:
    async with watching(era) as (server, client):
        async with client.stream("steps", {"count": 100, "gap": 0.05}) as call:
            async for event in call:
                if isinstance(event, Progress):
                    break
        if era == "legacy":
            told = await server.requests("notifications/cancelled", at_least=1)
            (called,) = await server.requests("tools/call")
            assert [one.body["params"]["requestId"] for one in told] == [called.body["id"]]
        else:
            given_up = await server.cancelled(at_least=1)
            assert [(one.tool, one.how) for one in given_up] == [("steps", "disconnect")]
        assert (await client.call_tool("echo", {"text": "on"})).text == "on"


@both_eras
@both_encodings
@pytest.mark.requirement("L1")
async def test_a_call_that_fails_ends_with_one_failed_event(era: Era, encoding: Encoding) -> None:
    async with watching(era, encoding, max_retries=0) as (server, client):
        await client.connect()
        await server.script(when(tool="echo", status=429))
        async with client.stream("echo", {"text": "hi"}) as call:
            events = [event async for event in call]
            with pytest.raises(CallNotDelivered) as caught:
                await call.result()
    assert [type(event) for event in events] == [Started, Failed]
    assert events[-1].error is caught.value


@pytest.mark.requirement("L1")
async def test_a_call_that_is_never_sent_still_ends_with_failed() -> None:
    async with watching("modern") as (_, client):
        await client.list_tools()
        events = await events_of(client, "echo", {"text": 7})
    assert [type(event) for event in events] == [Started, Failed]
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, InvalidArguments)


@both_eras
@pytest.mark.requirement("L4")
async def test_logs_on_a_calls_stream_are_the_calls(era: Era) -> None:
    seen: list[Event] = []
    async with watching(era) as (_, client):
        await client.set_log_level("info")
        client.observe(seen.append, listen=False)
        events = await events_of(client, "logs", {"count": 3})
    logs = [event for event in events if isinstance(event, Log)]
    assert [(log.level, log.data, log.logger) for log in logs] == [
        ("info", f"line {n}", "kit") for n in (1, 2, 3)
    ]
    assert kinds(events) == ["started", "log", "log", "log", "completed"]
    assert len({event.call_id for event in events}) == 1
    assert not [event for event in seen if isinstance(event, ServerNotification)]


LOG_LINE = "notifications/message"
LINE = {"level": "warning", "data": "from nobody's call"}


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [
        (LOG_LINE, LINE, ServerNotification(server="", method=LOG_LINE, params=LINE)),
        ("notifications/tools/list_changed", {}, Changed(server="", what="tools")),
        ("notifications/prompts/list_changed", {}, Changed(server="", what="prompts")),
        ("notifications/resources/list_changed", {}, Changed(server="", what="resources")),
        (
            "notifications/resources/updated",
            {"uri": "kit://notes"},
            Changed(server="", what="resource", uri="kit://notes"),
        ),
    ],
)
@pytest.mark.requirement("L4")
async def test_what_the_session_says_goes_to_observers_and_to_no_call(
    method: str, params: dict[str, Any], expected: Event
) -> None:
    noticed = asyncio.Event()
    said: list[Event] = []

    def observer(event: Event) -> None:
        if type(event) is type(expected):
            said.append(event)
            noticed.set()

    async with watching("legacy") as (server, client):
        client.observe(observer)
        async with client.stream("steps", {"count": 50, "gap": 0.1}) as call:
            events = [await anext(call), await anext(call)]
            await server.notify(method, params)
            async with asyncio.timeout(BOUND):
                await noticed.wait()
            events.append(await anext(call))
    (event,) = said
    assert dataclasses.replace(event, server="", at=expected.at) == expected
    assert kinds(events) == ["started", "progress", "progress"]


@both_eras
@pytest.mark.requirement("L4")
async def test_every_event_has_a_time_and_becomes_json(era: Era) -> None:
    seen: list[Event] = []
    began = time.time()
    async with watching(era) as (server, client):
        client.observe(seen.append, listen=False)
        await client.set_log_level("info")
        await client.call_tool("logs", {"count": 1})
        await events_of(client, "steps", {"count": 1})
        await server.script(when(tool="content", times=1, **THROTTLED))
        await events_of(client, "content", {})
        await server.script(when(tool="echo", error={"code": -32000, "message": "no"}))
        await events_of(client, "echo", {"text": "hi"})
    assert {"connected", "started", "log", "progress", "retrying", "completed", "failed"} <= set(
        kinds(seen)
    )
    for event in [*seen, ServerNotification(server="kit", method="m", params={"a": [1, None]})]:
        plain = json.loads(event.to_json())
        assert plain == event.as_dict()
        assert plain["event"] == event.kind
        assert began <= plain["at"] <= time.time()


@both_eras
@pytest.mark.requirement("L1")
async def test_a_replay_is_told_before_it_happens(era: Era) -> None:
    async with watching(era) as (server, client):
        await client.connect()
        await server.script(when(tool="echo", times=2, **THROTTLED))
        events = await events_of(client, "echo", {"text": "hi"})
        assert await server.executions("echo") == 1
    assert kinds(events) == ["started", "retrying", "retrying", "completed"]
    replays = [event for event in events if isinstance(event, Retrying)]
    assert [(replay.attempt, replay.failure.status) for replay in replays] == [(1, 429), (2, 429)]


@both_eras
@pytest.mark.parametrize("awaitable", [False, True])
@pytest.mark.requirement("L1", "L2")
async def test_on_progress_hears_every_report_before_the_call_ends(
    era: Era, awaitable: bool
) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def listen_slowly(progress: float, total: float | None, message: str | None) -> None:
        await asyncio.sleep(0.01)
        heard.append((progress, total, message))

    def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with watching(era) as (_, client):
        callback = listen_slowly if awaitable else listen
        result = await client.call_tool("steps", {"count": 3}, on_progress=callback)
    assert heard == [(n, 3, f"step {n} of 3") for n in (1, 2, 3)]
    assert result.text == "3 steps"


@both_eras
@pytest.mark.requirement("L1")
async def test_an_on_progress_that_raises_does_not_harm_the_call(
    era: Era, caplog: pytest.LogCaptureFixture
) -> None:
    def listen(progress: float, total: float | None, message: str | None) -> None:
        raise LookupError("mine")

    async with watching(era) as (_, client):
        result = await client.call_tool("steps", {"count": 3}, on_progress=listen)
    assert result.text == "3 steps"
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3


@both_eras
@pytest.mark.requirement("L1")
async def test_an_observer_that_raises_harms_nobody(
    era: Era, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []

    def broken(event: Event) -> None:
        raise LookupError("mine")

    async with watching(era) as (_, client):
        client.observe(broken)
        client.observe(seen.append)
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
    assert {"connected", "started", "completed"} <= set(kinds(seen))
    assert all(record.exc_info for record in caplog.records if record.levelno >= logging.ERROR)
    assert len(caplog.records) >= 3


@both_eras
@both_encodings
@pytest.mark.requirement("L1")
async def test_awaiting_a_call_takes_the_path_of_watching_one(era: Era, encoding: Encoding) -> None:
    seen: list[Event] = []
    async with watching(era, encoding) as (server, client):
        handle = client.observe(seen.append, listen=False)
        awaited = await client.call_tool("echo", {"text": "hi"})
        watched = await events_of(client, "echo", {"text": "hi"})
        handle.close()
        await client.call_tool("echo", {"text": "unobserved"})
        calls = await server.requests("tools/call")
        assert "tools/list" not in await methods(server)
    told = [event for event in seen if isinstance(event, CallEvent)]
    assert kinds(told) == ["started", "completed"] * 2
    assert told[2:] == watched
    assert isinstance(told[1], Completed)
    assert told[1].result is awaited
    assert len(calls) == 3
    sent = [{**call.body["params"], "_meta": None} for call in calls]
    assert sent[0] == sent[1]


@pytest.mark.requirement("L1")
async def test_a_call_runs_once_and_only_when_entered() -> None:
    async with watching("modern") as (server, client):
        call = client.stream("echo", {"text": "hi"})
        with pytest.raises(RuntimeError):
            await call.result()
        async with call:
            assert (await call.result()).text == "hi"
        with pytest.raises(RuntimeError):
            async with call:
                pass
        assert await server.executions("echo") == 1


# -- events that are not read in time ------------------------------------------------------------


def lines_of_a_log(count: int, size: int) -> str:
    """Server-sent events, each with a log line of so many characters."""
    line = {"method": "notifications/message", "params": {"level": "info", "data": "x" * size}}
    return f"data: {json.dumps({'jsonrpc': '2.0', **line})}\n\n" * count


@both_eras
@pytest.mark.requirement("F5")
async def test_unread_events_are_bounded_and_the_first_and_the_last_are_kept(
    era: Era, caplog: pytest.LogCaptureFixture
) -> None:
    async with watching(era) as (server, client):
        await server.script(when(tool="echo", sse_prefix=lines_of_a_log(1_000, 20_000)))
        async with client.stream("echo", {"text": "hi"}) as call:
            result = await call.result()
            events = [event async for event in call]
    assert result.text == "hi"
    assert (events[0].kind, events[-1].kind) == ("started", "completed")
    lines = [event for event in events if isinstance(event, Log)]
    assert sum(len(line.data) for line in lines) <= 8 * 1024 * 1024
    assert call.dropped == 1_000 - len(lines)
    assert caplog.text.count("faster than they are read") == 1


@both_eras
async def test_events_that_are_read_are_never_dropped(era: Era) -> None:
    async with watching(era) as (server, client):
        await server.script(when(tool="echo", sse_prefix=lines_of_a_log(1_000, 20_000)))
        async with client.stream("echo", {"text": "hi"}) as call:
            events = []
            async for event in call:
                events.append(event.kind)
                await asyncio.sleep(0)
    assert events.count("log") + call.dropped == 1_000
    assert events[-1] == "completed"
