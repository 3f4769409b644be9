"""The circuit breaker: stops calls to a server that does not answer.

`now` is a time in seconds, always of the same monotonic clock.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class BreakerState(enum.Enum):
    CLOSED = "closed"
    """Calls pass."""
    OPEN = "open"
    """Calls are refused until the cooldown has passed; the first call after it is the probe."""
    HALF_OPEN = "half open"
    """The probe is running; other calls are refused."""


@dataclass(frozen=True, slots=True)
class BreakerPermit:
    """Whether one call may pass."""

    allowed: bool
    probe: bool = False
    """This call is the probe: pass this flag to `record` or `cancel`."""
    wait: float = 0.0
    """If refused, seconds until the next try: always more than zero, so callers do not spin."""


@dataclass(frozen=True, slots=True)
class BreakerHint:
    """What the breaker of one process tells those of others. All zero: it is closed."""

    wait: float = 0.0
    """Seconds until the next probe."""
    cooldown: float = 0.0
    failing: float = 0.0
    """Seconds since the first of its faults."""


_PASS = BreakerPermit(allowed=True)
_PROBE = BreakerPermit(allowed=True, probe=True)


class Breaker:
    """A circuit breaker: refuses calls after `threshold` consecutive faults. 0 or None: off.

    One for each endpoint, for as long as the server is configured. The cooldown starts at
    `cooldown` seconds, grows by `factor` with every failed probe up to `max_cooldown`, and is
    reset by a success.
    """

    def __init__(
        self,
        threshold: int | None = 10,
        cooldown: float = 1.0,
        factor: float = 2.0,
        max_cooldown: float = 30.0,
    ) -> None:
        if (threshold or 0) < 0 or cooldown <= 0 or factor < 1 or max_cooldown < cooldown:
            raise ValueError(
                "a breaker needs threshold >= 0, cooldown > 0, factor >= 1 and "
                "max_cooldown >= cooldown"
            )
        self.threshold = threshold or 0
        self.cooldown, self.factor, self.max_cooldown = cooldown, factor, max_cooldown
        self._state = BreakerState.CLOSED
        self._faults = 0
        self._current_cooldown = cooldown
        self._until = 0.0
        self._failing_since = self._succeeded_at = float("-inf")

    def __repr__(self) -> str:
        limit = self.threshold or "off"
        return f"<Breaker {self._state.value}, faults {self._faults}/{limit}>"

    @property
    def state(self) -> BreakerState:
        return self._state

    def would_admit(self, now: float) -> bool:
        """Whether a call may pass. Changes nothing."""
        if self._state is BreakerState.OPEN:
            return now >= self._until
        return self._state is BreakerState.CLOSED

    def admit(self, now: float) -> BreakerPermit:
        """Ask for one call. If it is the probe, the caller must `record` or `cancel` it."""
        if self._state is BreakerState.CLOSED:
            return _PASS
        if self._state is BreakerState.HALF_OPEN:
            return BreakerPermit(allowed=False, wait=self.cooldown)
        if now < self._until:
            return BreakerPermit(allowed=False, wait=self._until - now)
        self._state = BreakerState.HALF_OPEN
        return _PROBE

    def record(self, success: bool, now: float, probe: bool = False) -> None:
        """Record how a call ended: `success` unless a transport fault ended it."""
        if not self.threshold:
            return
        if probe and self._state is BreakerState.HALF_OPEN:
            self._finish_probe(success, now)
        elif self._state is BreakerState.CLOSED:
            self._count(success, now)
        elif self._state is BreakerState.OPEN and success:
            self._until = min(self._until, now)

    def cancel(self, probe: bool = False) -> None:
        """Record that a call ended undecided. After a probe, the next call may probe at once."""
        if probe and self._state is BreakerState.HALF_OPEN:
            self._state = BreakerState.OPEN

    def defer(self, now: float) -> BreakerPermit:
        """Give the probe up, because another process probes: refuse calls for one cooldown."""
        if self._state is BreakerState.HALF_OPEN:
            self._state, self._until = BreakerState.OPEN, now + self.cooldown
        return BreakerPermit(allowed=False, wait=self.cooldown)

    def hint(self, now: float) -> BreakerHint:
        """What other processes should know."""
        if self._state is BreakerState.CLOSED:
            return BreakerHint()
        wait, failing = max(0.0, self._until - now), max(0.0, now - self._failing_since)
        return BreakerHint(wait=wait, cooldown=self._current_cooldown, failing=failing)

    def hear(self, hint: BreakerHint, now: float) -> None:
        """Take the hint of another process. That it has opened does not count here if a call has
        succeeded since its faults began: then the fault is its own."""
        if not self.threshold:
            return
        if not hint.wait:
            self._close()
        elif self._state is not BreakerState.HALF_OPEN and (
            self._state is BreakerState.OPEN or now - self._succeeded_at > hint.failing
        ):
            wait, cooldown = (
                min(seconds, self.max_cooldown) for seconds in (hint.wait, hint.cooldown)
            )
            until = self._until if self._state is BreakerState.OPEN else now
            self._state, self._until = BreakerState.OPEN, max(until, now + wait)
            self._current_cooldown = max(self._current_cooldown, cooldown)

    def _count(self, success: bool, now: float) -> None:
        if success:
            self._faults, self._succeeded_at = 0, now
            return
        self._failing_since = self._failing_since if self._faults else now
        self._faults += 1
        if self._faults >= self.threshold:
            self._open(now)

    def _finish_probe(self, success: bool, now: float) -> None:
        if success:
            self._close()
            self._succeeded_at = now
        else:
            self._current_cooldown = min(self.max_cooldown, self._current_cooldown * self.factor)
            self._open(now)

    def _close(self) -> None:
        self._state, self._faults = BreakerState.CLOSED, 0
        self._current_cooldown = self.cooldown

    def _open(self, now: float) -> None:
        self._state, self._until = BreakerState.OPEN, now + self._current_cooldown
