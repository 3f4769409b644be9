"""A task whose events are read while it runs: started once, read in order, stopped for good."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from toolkeep._client.event_queue import EventQueue
from toolkeep.events import Event, Progress

BOUND = 5.0
Emit = Callable[[Event], None]


def progress(number: int, text: str = "") -> Progress:
    return Progress(
        server="kit", tool="slow", call_id="1", progress=number, total=None, message=text
    )


async def three(emit: Emit) -> str:
    for number in range(3):
        emit(progress(number))
        await asyncio.sleep(0)
    return "done"


async def forever(emit: Emit) -> str:
    emit(progress(0))
    await asyncio.Event().wait()
    return "never"


async def events_of(task: EventQueue[Event, str]) -> AsyncIterator[Event]:
    while (event := await task.next_event()) is not None:
        yield event


async def test_events_are_read_in_order_and_end_with_the_task() -> None:
    task = EventQueue[Event, str](three, what="call", made_by="stream")
    task.start()
    async with asyncio.timeout(BOUND):
        read = [event async for event in events_of(task)]
        ended = await task.wait()
    assert [event.progress for event in read if isinstance(event, Progress)] == [0, 1, 2]
    assert ended.result() == "done"
    assert str(task) == "ended, 0 events not read"


async def test_events_that_were_emitted_before_the_end_are_read_after_it() -> None:
    task = EventQueue[Event, str](three, what="call", made_by="stream")
    task.start()
    async with asyncio.timeout(BOUND):
        await task.wait()
        assert len([event async for event in events_of(task)]) == 3


async def test_stopping_ends_the_task_and_wakes_its_reader() -> None:
    task = EventQueue[Event, str](forever, what="call", made_by="stream")
    task.start()
    async with asyncio.timeout(BOUND):
        assert await task.next_event() is not None
        reading = asyncio.ensure_future(task.next_event())
        await asyncio.sleep(0)
        await task.stop()
        assert await reading is None
        assert (await task.wait()).cancelled()
    assert str(task) == "cancelled, 0 events not read"


async def test_a_failure_is_kept_for_the_reader_of_the_result() -> None:
    async def fail(emit: Emit) -> str:
        raise LookupError("gone")

    task = EventQueue[Event, str](fail, what="call", made_by="stream")
    task.start()
    async with asyncio.timeout(BOUND):
        assert await task.next_event() is None
        await task.stop()
        assert isinstance((await task.wait()).exception(), LookupError)


async def test_a_task_starts_once_and_is_not_there_before() -> None:
    task = EventQueue[Event, str](three, what="run", made_by="stream_code")
    with pytest.raises(RuntimeError, match=r"enter the run first: .* stream_code\(…\) as run"):
        _ = task.task
    task.start()
    with pytest.raises(RuntimeError, match="a run can be entered only once"):
        task.start()
    await task.stop()


async def test_of_unread_reports_the_oldest_are_dropped_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def flood(emit: Emit) -> str:
        for number in range(5):
            emit(progress(number, "x" * 3_000_000))
        return "done"

    task = EventQueue[Event, str](flood, what="call", made_by="stream")
    task.start()
    async with asyncio.timeout(BOUND):
        await task.wait()
        read = [event async for event in events_of(task)]
    assert task.dropped == 5 - len(read) > 0
    assert isinstance(read[-1], Progress)
    assert read[-1].progress == 4
    assert caplog.messages == [
        "kit: events of slow come faster than they are read; the oldest are dropped"
    ]
