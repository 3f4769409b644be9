"""What all clients of one server have in common, whoever they speak for.

Its HTTP client with its sockets (phase 1 of an opening), the limit of calls in flight, the breaker,
the budget of replays, and what one of them has learned about the server's era. Sessions are never
here: each client makes its own (phase 2). A client that stands alone has a ground to itself.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainstay._rules.breaker import Breaker
from mainstay._rules.budget import TokenBucket
from mainstay._rules.era import Era
from mainstay.config import ServerSpec

if TYPE_CHECKING:
    from mcp_types import DiscoverResult

    from mainstay._wire.link import Link


class Ground:
    """Lives in one event loop, from the first opening until the last client is closed."""

    def __init__(self, spec: ServerSpec, *, shared: bool = True) -> None:
        self.spec, self._shared = spec, shared
        # A program is a process for each client: there each has a line of its own.
        one_by_one = spec.serialize and bool(spec.url)
        self.gate = asyncio.Semaphore(1 if one_by_one else spec.max_in_flight)
        cooldown = spec.breaker_cooldown
        self.breaker = Breaker(spec.breaker_threshold, cooldown, longest=max(30.0, cooldown))
        self.bucket = TokenBucket(spec.replay_burst, spec.replay_rate)
        self.busy = self.sent = self.faults = 0
        """Attempts under way, so far, and failed by the transport."""
        self.troubled_since: float | None = None
        """Since when nothing but transport faults came back (seconds since the epoch)."""
        self.era: Era | None = None
        """The server's era, once it is known."""
        self.older = False
        """Whether its HTTP turned out to be that of 2024-11-05."""
        self.discovery: DiscoverResult | None = None
        """What a modern server said of itself to one of them: the others need not ask."""
        self._link: Link | None = None

    def link(self) -> Link | None:
        """The HTTP client for all; None: each has its own, or there is no HTTP."""
        if self._link is None and self._shared and self.spec.url:
            from mainstay._wire.link import Link

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
