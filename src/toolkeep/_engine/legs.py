"""One deadline, and one count of attempts, for a request that is sent in several legs."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from toolkeep._rules.era import Era

if TYPE_CHECKING:
    from toolkeep._engine.core import Core
    from toolkeep._engine.outgoing import Outgoing
    from toolkeep._engine.pursuit import Pursuit
    from toolkeep._engine.rounds import Bounds


class Legs:
    """Belongs to the task that goes them. What is done between two legs takes no time of theirs."""

    def __init__(self, core: Core, timeout: float) -> None:
        self._core = core
        self.left = self._total = timeout
        self._began = time.monotonic()
        self.attempts = 0
        self.pursuit: Pursuit | None = None
        """The leg under way, or the last one."""

    @property
    def modern(self) -> bool:
        """Whether the last one ended at a modern server: of two addresses, one may be."""
        return self.pursuit is not None and self.pursuit.era is Era.MODERN

    @property
    def bounds(self) -> Bounds:
        """Of what may be asked between two legs."""
        from toolkeep._engine.rounds import Bounds

        spec = self._core.spec
        end = self._began + max(self._total, spec.timeouts.longest_call)
        return Bounds(spec.max_input_rounds, lambda: max(end - time.monotonic(), 0.0))

    async def go(self, outgoing: Outgoing) -> dict[str, Any]:
        outgoing.timeout = self.left if self.left > 0 else self._total
        pursuit = self._core.pursuit(outgoing, self.pursuit)
        if self.left <= 0:
            raise pursuit.out_of_time()
        self.pursuit = pursuit
        try:
            return await pursuit.run()
        finally:
            self.attempts += pursuit.attempts
            self.left = pursuit.clock.left

    async def pause(self, seconds: float) -> None:
        """Wait, at the expense of the legs to come."""
        await asyncio.sleep(min(seconds, self.left))
        self.left -= seconds
