"""`RequestDeadline`: the one deadline of a request, over all its steps.

Made when the request begins, by `Client` or `Runtime`, and passed down. Progress extends it, up
to a cap; it stands still while the client answers the server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING

from toolkeep._rules.limits import Deadline

if TYPE_CHECKING:
    from toolkeep.config.spec import Timeouts


class DeadlineExceeded(Exception):
    """The deadline of the request has passed."""


class RequestDeadline:
    """The deadline of one request over all its steps: resolving, connecting, retries and rounds.

    It counts from its making, but limits a task only while that task has entered it; other tasks
    may extend or pause it. Leaving it raises `DeadlineExceeded` when the deadline has passed.
    """

    __slots__ = (
        "_deadline",
        "_loop",
        "_paused_since",
        "_pauses",
        "_started",
        "_timeout",
        "seconds",
    )

    def __init__(self, seconds: float | None, timeouts: Timeouts | None = None) -> None:
        """`seconds` None: as long as the server's `timeouts` say, once they are known."""
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self.seconds = seconds
        self._deadline = Deadline(None if seconds is None else self._started + seconds)
        self._timeout: asyncio.Timeout | None = None
        self._pauses, self._paused_since = 0, 0.0
        if timeouts is not None:
            self.apply(timeouts)

    def apply(self, timeouts: Timeouts) -> None:
        """Take the default and the cap from the server that the request goes to."""
        if self.seconds is None:
            self.seconds = timeouts.call
        at = self._started + self.seconds
        self._deadline = Deadline(at, cap=max(at, self._started + timeouts.max_call))

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; infinite while none is known."""
        return self._deadline.remaining(self._loop.time())

    @property
    def until_cap(self) -> float:
        """Seconds until the request must end, even with progress and pauses."""
        cap = self._deadline.cap
        return self.remaining if cap is None else max(cap - self._loop.time(), 0.0)

    @property
    def elapsed(self) -> float:
        return self._loop.time() - self._started

    def remaining_or(self, default: float) -> float:
        """Seconds until the deadline, or the default while none is known."""
        return default if self._deadline.at is None else self.remaining

    async def __aenter__(self) -> None:
        self._timeout = asyncio.timeout_at(self._deadline.at)
        await self._timeout.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        running, self._timeout = self._timeout, None
        assert running is not None
        try:
            await running.__aexit__(kind, error, traceback)
        except TimeoutError:  # leaving raises only the TimeoutError of this timeout
            raise DeadlineExceeded from None

    def extend(self) -> None:
        """Give the request its full time again from now on, up to the cap."""
        assert self.seconds is not None
        self._deadline = self._deadline.extended(self._loop.time(), self.seconds)
        self.resume()

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """Pause the deadline while the client answers the server. Pauses may overlap."""
        if not self._pauses:
            self._paused_since = self._loop.time()
        self._pauses += 1
        self._reschedule(None)
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._deadline = self._deadline.shifted(self._loop.time() - self._paused_since)
                self.resume()

    def stop(self) -> None:
        """Do not end the request any more: its answer is here."""
        self._reschedule(None)

    def resume(self) -> None:
        self._reschedule(self._deadline.at)

    def _reschedule(self, when: float | None) -> None:
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(self._deadline.cap if self._pauses else when)
