"""Asyncio helpers: background tasks with an owner, and requested versus stray cancellation.

This module uses the standard library only, because `from toolkeep import Client` loads it. It must
never swallow a cancellation that the current task was asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from types import TracebackType
from typing import Any

logger = logging.getLogger("toolkeep.transport")

_MAX_TASKS = 1000
"""Background tasks of one transport. A server that sends more requests at once than this gets no
response to the rest."""
_MESSAGES_PER_YIELD = 16
"""Messages that a reader takes before it yields to other tasks."""


def cancellation_count() -> int:
    """The pending cancellation requests of the current task: `cancel()` calls less `uncancel()`."""
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def was_cancelled(before: int = 0) -> bool:
    """Whether the current task was asked to stop. False: a library raised `CancelledError` itself.

    `before`: the task's `cancellation_count` when the operation began. A task that swallowed a
    cancellation keeps it in its count for ever.
    """
    return asyncio.current_task() is None or cancellation_count() > before


class StrayCancellation(Exception):
    """Foreign code raised `CancelledError`, although the task was not asked to stop."""


class foreign_code:
    """A block that runs code of others: `with foreign_code(): await store.load()`.

    A `CancelledError` that the task was not asked for leaves it as `StrayCancellation`, which is an
    `Exception`: awaiting a cancelled task is enough to raise one, and it must not end the task that
    called. A requested cancellation, also that of a timeout around the block, passes through.
    `before`: the `cancellation_count` when the operation began, if that was earlier.
    """

    __slots__ = ("_before",)

    def __init__(self, before: int | None = None) -> None:
        self._before = cancellation_count() if before is None else before

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stray = kind is not None and issubclass(kind, asyncio.CancelledError)
        if stray and not was_cancelled(self._before):
            raise StrayCancellation("it was cancelled, but not by its caller") from None


class BackgroundTasks:
    """The background tasks of one transport. After `cancel` no task starts."""

    def __init__(self) -> None:
        self._closed = False
        self._running: set[asyncio.Task[None]] = set()
        self._flushable: set[asyncio.Task[None]] = set()

    def start(
        self,
        coroutine: Coroutine[Any, Any, None],
        *,
        context: Context | None = None,
        flushable: bool = True,
    ) -> None:
        """Start a task. `flushable`: it sends something to the server, so `flush` waits for it."""
        if self._closed or len(self._running) >= _MAX_TASKS:
            coroutine.close()
            logger.debug(
                "background task dropped: the transport is closed or runs %d tasks", _MAX_TASKS
            )
            return
        task = asyncio.get_running_loop().create_task(coroutine, context=context)
        for tasks in (self._running, self._flushable) if flushable else (self._running,):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def flush(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the flushable tasks."""
        if self._flushable:
            await asyncio.wait(tuple(self._flushable), timeout=timeout)

    def cancel(self) -> None:
        self._closed = True
        for task in tuple(self._running):
            task.cancel()


async def finish_or_cancel(task: asyncio.Task[None], within: float) -> None:
    """Wait up to `within` seconds for a task, then cancel it."""
    try:
        await asyncio.wait((task,), timeout=within)
    finally:
        task.cancel()


class PeriodicYield:
    """Yields to other tasks after every few messages. One for each reader.

    Messages that have arrived are taken without waiting, so a server that sends without end would
    otherwise block the event loop.
    """

    def __init__(self) -> None:
        self._count = 0

    async def tick(self) -> None:
        """Count one message, and yield if it is time."""
        self._count += 1
        if self._count >= _MESSAGES_PER_YIELD:
            self._count = 0
            await asyncio.sleep(0)
