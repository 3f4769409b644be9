"""One deadline, and one count of attempts, for a request that is sent in several legs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mainstay._engine.telling import timed_out

if TYPE_CHECKING:
    from mainstay._engine.core import Core
    from mainstay._engine.outgoing import Outgoing
    from mainstay._engine.pursuit import Pursuit


class Legs:
    """Belongs to the task that goes them. What is done between two legs takes no time of theirs."""

    def __init__(self, core: Core, timeout: float) -> None:
        self._core = core
        self.left = self._total = timeout
        self.attempts = 0
        self.pursuit: Pursuit | None = None
        """The leg under way, or the last one."""

    async def go(self, outgoing: Outgoing) -> dict[str, Any]:
        if self.pursuit is not None and self.left <= 0:
            outgoing.timeout = self._total
            raise timed_out(self._core.spec.name, outgoing, self.pursuit)
        outgoing.timeout = self.left
        # A client that was closed in between is not opened again for the next leg.
        epoch = self.pursuit.epoch if self.pursuit else None
        pursuit = self.pursuit = self._core.pursuit(outgoing, epoch)
        try:
            return await pursuit.run()
        finally:
            self.attempts += pursuit.attempts
            self.left = pursuit.left

    async def pause(self, seconds: float) -> None:
        """Wait, at the expense of the legs to come."""
        await asyncio.sleep(min(seconds, self.left))
        self.left -= seconds
