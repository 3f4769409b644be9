"""The time of one request: a deadline that may be extended, stand still, or stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from types import TracebackType

from toolkeep._rules.budget import Deadline


class Clock:
    """Belongs to one pursuit. Runs while it is entered, in one task; the rest is for any task.

    Leaving it raises `OutOfTime` when the deadline has passed.
    """

    def __init__(self, seconds: float, *, longest: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        at = self._started + seconds
        self._deadline = Deadline(at, cap=max(at, self._started + longest))
        self._running: asyncio.Timeout | None = None
        self._holds, self._held_since = 0, 0.0

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self._deadline.remaining(self._loop.time())

    @property
    def elapsed(self) -> float:
        return self._loop.time() - self._started

    async def __aenter__(self) -> None:
        self._running = asyncio.timeout_at(self._deadline.at)
        await self._running.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        running, self._running = self._running, None
        assert running is not None
        try:
            await running.__aexit__(kind, error, traceback)
        except TimeoutError:  # ours: nobody else's is raised by leaving
            raise OutOfTime from None

    def extend(self, by: float) -> None:
        """Give it so many seconds from now, up to the cap."""
        self._deadline = self._deadline.extended(self._loop.time(), by)
        self.go_on()

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """It stands still: it is our turn to do something. May overlap with others."""
        if not self._holds:
            self._held_since = self._loop.time()
        self._holds += 1
        self._reschedule(None)
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                self._deadline = self._deadline.later(self._loop.time() - self._held_since)
                self.go_on()

    def stop(self) -> None:
        self._reschedule(None)

    def go_on(self) -> None:
        self._reschedule(self._deadline.at)

    def _reschedule(self, when: float | None) -> None:
        if self._running is not None and not self._running.expired():
            self._running.reschedule(self._deadline.cap if self._holds else when)


class OutOfTime(Exception):
    """The deadline has passed."""
