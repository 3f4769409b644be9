"""What all clients of one server have in common at one of its addresses, whoever they speak for.

Its HTTP client with its sockets (phase 1 of an opening), the limit of calls in flight, the breaker,
the budget of replays, and what one of them has learned about the server's era. Sessions are never
here: each client makes its own (phase 2). A client that stands alone has a ground to itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from toolkeep._rules.breaker import Breaker
from toolkeep._rules.budget import TokenBucket
from toolkeep._rules.era import Era
from toolkeep.config import ServerSpec
from toolkeep.errors import ToolkeepError

if TYPE_CHECKING:
    from mcp_types import DiscoverResult

    from toolkeep._wire.link import Link

_MOST_TERMINATIONS = 16
"""Sessions that are ended at the server at the same time."""


class Ground:
    """Lives in one event loop, from the first opening until the last client is closed."""

    def __init__(
        self,
        spec: ServerSpec,
        *,
        shared: bool = True,
        on_trouble: Callable[[], None] | None = None,
    ) -> None:
        self.spec, self._shared, self._on_trouble = spec, shared, on_trouble
        self.failing: ToolkeepError | None = None
        """Why the last request failed, if it was the transport; until something is answered."""
        # A program is a process for each client: there each has a line of its own.
        one_by_one = spec.serialize and bool(spec.url)
        self.gate = asyncio.Semaphore(1 if one_by_one else spec.max_in_flight)
        self.terminations = asyncio.Semaphore(_MOST_TERMINATIONS)
        """For the requests that end sessions: a runtime may close thousands at once."""
        cooldown = spec.breaker_cooldown
        self.breaker = Breaker(spec.breaker_threshold, cooldown, longest=max(30.0, cooldown))
        self.bucket = TokenBucket(spec.replay_burst, spec.replay_rate)
        self.busy = self.sent = self.faults = 0
        """Attempts under way, so far, and failed by the transport."""
        self.turn = 0
        """Another number, always larger, whenever something is given to it to do."""
        self._quiet_until = 0.0
        self.troubled_since: float | None = None
        """Since when nothing but transport faults came back (seconds since the epoch)."""
        self.era: Era | None = None
        """The server's era, once it is known."""
        self.older = False
        """Whether its HTTP turned out to be that of 2024-11-05."""
        self.discovery: DiscoverResult | None = None
        """What a modern server said of itself to one of them: the others need not ask."""
        self._link: Link | None = None

    def admits(self, now: float) -> bool:
        """Whether it may be asked something: nothing that it met says that it is to rest."""
        return now >= self._quiet_until and self.breaker.would_admit(now)

    def rest(self, seconds: float, now: float) -> None:
        """Leave it alone for so long, while there are others."""
        self._quiet_until = max(self._quiet_until, now + min(seconds, self.breaker.longest))

    def note_failure(self, error: ToolkeepError) -> None:
        """A request failed for good, and its transport was to blame."""
        self.failing = error
        if self._on_trouble is not None:
            self._on_trouble()

    def note_answer(self) -> None:
        """After a failure, something was answered."""
        self.failing = None
        if self._on_trouble is not None:
            self._on_trouble()

    def link(self) -> Link | None:
        """The HTTP client for all; None: each has its own, or there is no HTTP."""
        if self._link is None and self._shared and self.spec.url:
            from toolkeep._wire.link import Link

            self._link = Link(self.spec)
        return self._link

    async def aclose(self) -> None:
        """Ends whatever is still under way. Its clients are closed by now."""
        link, self._link = self._link, None
        if link is not None:
            await link.aclose()

    def forget(self) -> None:
        """The loop is gone, or belongs to the parent process."""
        link, self._link = self._link, None
        if link is not None:
            link.forget()


def trouble_of(grounds: Iterable[Ground]) -> ToolkeepError | None:
    """Why a server cannot be used: while requests fail at all of its addresses."""
    errors = [ground.failing for ground in grounds]
    return errors[0] if errors and all(errors) else None
