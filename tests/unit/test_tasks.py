"""Tasks with an owner, and cancellations that were requested or not: code of others may raise one
that was not requested, which must not end its caller."""

import asyncio
from typing import NoReturn

import pytest

from toolkeep._tasks import (
    BackgroundTasks,
    PeriodicYield,
    StrayCancellation,
    cancellation_count,
    finish_or_cancel,
    foreign_code,
)

BOUND = 5.0


async def cancel_itself() -> NoReturn:
    raise asyncio.CancelledError


async def test_a_cancellation_that_was_not_requested_is_an_exception() -> None:
    with pytest.raises(StrayCancellation), foreign_code():
        await cancel_itself()


async def test_a_requested_cancellation_passes_through() -> None:
    async def work() -> None:
        with foreign_code():
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("inside", [True, False])
async def test_a_timeout_stays_a_timeout(inside: bool) -> None:
    async def wait() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        if inside:
            with foreign_code():
                await wait()
        else:
            async with asyncio.timeout(0.01):
                with foreign_code():
                    await asyncio.Event().wait()


async def test_a_cancellation_swallowed_earlier_does_not_excuse_a_stray_one() -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert cancellation_count() == 1
        with pytest.raises(StrayCancellation), foreign_code():
            await cancel_itself()
        with pytest.raises(asyncio.CancelledError), foreign_code(before=0):
            await cancel_itself()

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    await task


async def test_other_exceptions_pass_through() -> None:
    with pytest.raises(LookupError), foreign_code():
        raise LookupError


# -- tasks with an owner ------------------------------------------------------------------------


async def test_background_tasks_are_bounded_and_end_with_their_owner() -> None:
    tasks, before = BackgroundTasks(), asyncio.all_tasks()
    for _ in range(1001):
        tasks.start(asyncio.sleep(60))
    started = asyncio.all_tasks() - before
    assert len(started) == 1000
    tasks.cancel()
    done, _ = await asyncio.wait(started, timeout=BOUND)
    assert done == started
    tasks.start(asyncio.sleep(60))
    assert asyncio.all_tasks() == before


async def test_flushing_waits_for_what_is_sent_and_for_nothing_else() -> None:
    tasks, sent = BackgroundTasks(), asyncio.Event()
    listening = asyncio.Event()

    async def send() -> None:
        await asyncio.sleep(0)
        sent.set()

    async def listen() -> None:
        await listening.wait()

    tasks.start(listen(), flushable=False)
    tasks.start(send())
    await tasks.flush(timeout=BOUND)
    assert sent.is_set()
    tasks.cancel()


async def test_flushing_has_a_bound() -> None:
    tasks = BackgroundTasks()
    tasks.start(asyncio.sleep(60))
    async with asyncio.timeout(BOUND):
        await tasks.flush(timeout=0.01)
    tasks.cancel()


async def test_a_task_that_is_late_is_cancelled_and_one_in_time_is_not() -> None:
    async def quick() -> None:
        await asyncio.sleep(0)

    async def slow() -> None:
        await asyncio.Event().wait()

    in_time, late = asyncio.ensure_future(quick()), asyncio.ensure_future(slow())
    await finish_or_cancel(in_time, BOUND)
    await finish_or_cancel(late, 0.01)
    await asyncio.wait((late,), timeout=BOUND)
    assert not in_time.cancelled()
    assert late.cancelled()


async def test_a_reader_yields_to_others_after_every_few_messages() -> None:
    turns: list[int] = []
    pacing = PeriodicYield()

    async def other() -> None:
        turns.append(taken)

    taken, waiting = 0, asyncio.ensure_future(other())
    while not turns:
        taken += 1
        assert taken <= 16, "the other task never had its turn"
        await pacing.tick()
    await waiting
    assert turns == [16]
