"""`EventQueue`: runs a task and queues the events that it emits, for a reader that may be slow.

Owns the task and the events that are not read yet, within a bound of bytes. Knows nothing of calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from toolkeep._rules.limits import ReportBuffer, report_size
from toolkeep.events import Event

logger = logging.getLogger("toolkeep.client")

EventT = TypeVar("EventT", bound=Event)
Result = TypeVar("Result")


class EventQueue(Generic[EventT, Result]):
    """A task and the events that it emits. Started once; read by one task; stopped by its owner.

    `run` is given the function that takes an event. `what` names it in errors, and `made_by` the
    function that makes another.
    """

    def __init__(
        self,
        run: Callable[[Callable[[EventT], None]], Awaitable[Result]],
        *,
        what: str,
        made_by: str,
    ) -> None:
        self._run, self._what, self._made_by = run, what, made_by
        self._task: asyncio.Task[Result] | None = None
        self._events = ReportBuffer[EventT](report_size)
        self._changed = asyncio.Event()

    def __str__(self) -> str:
        task = self._task
        if task is None:
            return "not entered"
        state = "running" if not task.done() else "cancelled" if task.cancelled() else "ended"
        return f"{state}, {len(self._events)} events not read"

    @property
    def dropped(self) -> int:
        """How many unread events were dropped."""
        return self._events.dropped

    @property
    def task(self) -> asyncio.Task[Result]:
        if self._task is None:
            text = f"enter the {self._what} first: async with {self._made_by}(…) as {self._what}"
            raise RuntimeError(text)
        return self._task

    def start(self) -> None:
        if self._task is not None:
            text = f"a {self._what} can be entered only once; use {self._made_by}(…) for another"
            raise RuntimeError(text)
        self._task = asyncio.ensure_future(self._run(self._on_event))
        self._task.add_done_callback(lambda _: self._changed.set())

    async def next_event(self) -> EventT | None:
        """The next event, once there is one; None after the last."""
        task = self.task
        while not self._events:
            if task.done():
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._events.popleft()

    async def wait(self) -> asyncio.Task[Result]:
        """The ended task."""
        await asyncio.wait((self.task,))
        return self.task

    async def stop(self) -> None:
        """Cancel the task if it still runs, and wait for its end."""
        task = self.task
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # retrieved: the reader of the result reports it

    def _on_event(self, event: EventT) -> None:
        dropped = self._events.dropped
        self._events.append(event)
        if self._events.dropped and not dropped:
            text = "%s: events of %s come faster than they are read; the oldest are dropped"
            logger.warning(text, event.server, getattr(event, "tool", self._what))
        self._changed.set()
