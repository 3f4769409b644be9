"""When to stop asking a server that does not answer, and when to try it again.

One breaker for each server. A run of `threshold` transport faults opens it; after a cooldown
exactly one call, the probe, is let through; its success closes the breaker, its failure opens it
again for longer. The caller decides what counts as a fault (never a tool's error) and reports every
admitted call exactly once: `record` with its verdict, or `abandon` when it ended without one
(cancelled).

Results of calls that were admitted before the breaker opened come late, and are judged so:

- a late failure changes nothing: it tells of the fault that is known already;
- a late success ends the cooldown, but does not close: the answer came over a connection from
  before the fault, so it shows life, not that new calls get through. The next call is the probe;
- while a probe is out, all else is ignored: its verdict is moments away, and one probe means one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Admission", "Breaker", "BreakerState"]


class BreakerState(enum.Enum):
    CLOSED = "closed"
    """Calls pass."""
    OPEN = "open"
    """Calls are refused until the cooldown is over; the first call after it is the probe."""
    HALF_OPEN = "half open"
    """The probe is out."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to one call that wants to pass."""

    allowed: bool
    probe: bool = False
    """This call is the probe: hand this back with its verdict."""
    wait: float = 0.0
    """Refused: ask again after so many seconds. Never zero then, so that nobody spins."""


PASS = Admission(allowed=True)
PROBE = Admission(allowed=True, probe=True)


class Breaker:
    """One for each server, for as long as the server is configured. `threshold` 0 or None: off.

    The cooldown starts at `cooldown` seconds, grows by `factor` with every failed probe up to
    `longest`, and starts anew after a success.
    """

    def __init__(
        self,
        threshold: int | None = 10,
        cooldown: float = 1.0,
        factor: float = 2.0,
        longest: float = 30.0,
    ) -> None:
        if (threshold or 0) < 0 or cooldown <= 0 or factor < 1 or longest < cooldown:
            raise ValueError(
                "a breaker needs threshold >= 0, cooldown > 0, factor >= 1 and longest >= cooldown"
            )
        self.threshold = threshold or 0
        self.cooldown, self.factor, self.longest = cooldown, factor, longest
        self._state = BreakerState.CLOSED
        self._faults = 0
        self._cooling = cooldown
        self._until = 0.0

    def __repr__(self) -> str:
        limit = self.threshold or "off"
        return f"<Breaker {self._state.value}, faults {self._faults}/{limit}>"

    @property
    def state(self) -> BreakerState:
        return self._state

    def would_admit(self, now: float) -> bool:
        """Whether a call may pass, without taking anything."""
        if self._state is BreakerState.OPEN:
            return now >= self._until
        return self._state is BreakerState.CLOSED

    def admit(self, now: float) -> Admission:
        """May one more call pass? A probe's admission must be reported back."""
        if self._state is BreakerState.CLOSED:
            return PASS
        if self._state is BreakerState.HALF_OPEN:
            return Admission(allowed=False, wait=self.cooldown)
        if now < self._until:
            return Admission(allowed=False, wait=self._until - now)
        self._state = BreakerState.HALF_OPEN
        return PROBE

    def record(self, success: bool, now: float, probe: bool = False) -> None:
        """The verdict of a call: True unless a transport fault ended it."""
        if not self.threshold:
            return
        if probe and self._state is BreakerState.HALF_OPEN:
            self._conclude(success, now)
        elif self._state is BreakerState.CLOSED:
            self._count(success, now)
        elif self._state is BreakerState.OPEN and success:
            self._until = min(self._until, now)

    def abandon(self, probe: bool = False) -> None:
        """A call ended without a verdict. If it was the probe, the next call may probe at once."""
        if probe and self._state is BreakerState.HALF_OPEN:
            self._state = BreakerState.OPEN

    def _count(self, success: bool, now: float) -> None:
        self._faults = 0 if success else self._faults + 1
        if self._faults >= self.threshold:
            self._open(now)

    def _conclude(self, success: bool, now: float) -> None:
        if success:
            self._state, self._faults, self._cooling = BreakerState.CLOSED, 0, self.cooldown
        else:
            self._cooling = min(self.longest, self._cooling * self.factor)
            self._open(now)

    def _open(self, now: float) -> None:
        self._state, self._until = BreakerState.OPEN, now + self._cooling
