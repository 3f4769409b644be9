"""How often, how long and until when: the budgets of calls, and of what servers have us do.

`TokenBucket` bounds the replays of a whole server, so that an outage causes no storm;
`take_tokens` is the same bucket as one number, for those that processes share. `Backoff`
says how long to wait before the next attempt. `Deadline` is the one deadline of a call, handed down
instead of nested timeouts. `reopening_pause` and `Pace` bound how often a server can make us open a
stream or list again, whatever it says. Nothing here reads a clock or throws dice: `now` is any
monotonic number of seconds, always the same clock, and `jitter` is a number in [0, 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = [
    "LEAST_PAUSE",
    "Backoff",
    "Deadline",
    "Pace",
    "TokenBucket",
    "reopening_pause",
    "take_tokens",
]

ROUNDING = 1e-9
"""Ten refills of a tenth are a whole token, whatever floating point makes of the sum."""

LEAST_PAUSE = 0.1
"""Seconds: the floor under every pause whose length a server chooses (`retry`, Retry-After)."""
_HIGHEST_FLOOR = 1.0
"""Seconds: the floor under the pause after a row of streams that ended at once."""
_MOST_DOUBLINGS = 10

SHARED_ROUNDING = 1e-6
"""Seconds. A float that holds the time since the epoch is exact to a quarter of this."""


class TokenBucket:
    """At most `capacity` at once, and `per_second` in the long run. Starts full.

    One for each server, for as long as the server is configured. A clock that goes
    backwards neither gives nor takes tokens.
    """

    def __init__(self, capacity: float, per_second: float) -> None:
        if capacity < 0 or per_second < 0:
            raise ValueError("a token bucket needs a capacity and a rate of zero or more")
        self.capacity, self.per_second = capacity, per_second
        self._tokens = float(capacity)
        self._at: float | None = None

    def __repr__(self) -> str:
        return f"<TokenBucket {self._tokens:g} of {self.capacity:g}, {self.per_second:g}/s>"

    def available(self, now: float) -> float:
        """The tokens there would be at `now`."""
        elapsed = 0.0 if self._at is None else max(0.0, now - self._at)
        return min(self.capacity, self._tokens + elapsed * self.per_second)

    def take(self, now: float) -> bool:
        """Takes one token, or says that there is none."""
        self._tokens = self.available(now)
        self._at = now if self._at is None else max(self._at, now)
        if self._tokens < 1 - ROUNDING:
            return False
        self._tokens = max(0.0, self._tokens - 1)
        return True


def take_tokens(
    full_at: float, now: float, *, rate: float, burst: float, cost: float
) -> tuple[float, float]:
    """Take `cost` tokens from a bucket that is full at the time `full_at`.

    Returns the new `full_at` and 0, or the old one and the seconds until the tokens are there. A
    bucket is never further from full than `burst` tokens, so that a clock that was set back costs
    one burst at most.
    """
    full_at = min(max(full_at, now), now + burst / rate)
    wait = full_at + (cost - burst) / rate - now
    if wait > SHARED_ROUNDING:
        return full_at, wait
    return full_at + cost / rate, 0.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential, capped and jittered.

    Jitter moves a delay between half and all of its exponential value. The AWS Architecture Blog,
    "Exponential Backoff And Jitter" (2015), calls this "equal jitter"; full jitter, from zero,
    would sometimes send the next attempt at once.
    """

    first: float = 0.2
    factor: float = 2.0
    cap: float = 10.0

    def __post_init__(self) -> None:
        if self.first < 0 or self.factor < 1 or self.cap < 0:
            raise ValueError("a backoff needs first >= 0, factor >= 1 and cap >= 0")

    def delay(self, attempt: int, jitter: float) -> float:
        """Seconds to wait after attempt number `attempt` (the first is 1) failed."""
        return self._full(max(0, attempt - 1)) * (0.5 + 0.5 * jitter)

    def _full(self, doublings: int) -> float:
        if not self.first:
            return 0.0
        try:
            return min(self.cap, self.first * self.factor**doublings)
        except OverflowError:
            return self.cap


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a call's time is over. `at=None`: never.

    `cap` bounds what progress may add; without one, progress may add for ever. `at` fits
    `asyncio.timeout_at` as it is.
    """

    at: float | None
    cap: float | None = None

    def __post_init__(self) -> None:
        if self.at is not None and self.cap is not None and self.cap < self.at:
            object.__setattr__(self, "at", self.cap)

    def remaining(self, now: float) -> float:
        """Seconds left: never negative, infinite when there is no deadline."""
        return math.inf if self.at is None else max(0.0, self.at - now)

    def passed(self, now: float) -> bool:
        return self.at is not None and now >= self.at

    def extended(self, now: float, by: float) -> Deadline:
        """The deadline after progress at `now`: `by` seconds from then, if that is later.

        Never shorter than before, never beyond the cap, and a deadline that has passed stays so:
        progress that comes too late revives nothing.
        """
        if self.at is None or self.passed(now):
            return self
        later = now + by if self.cap is None else min(now + by, self.cap)
        return Deadline(max(self.at, later), self.cap)

    def later(self, by: float) -> Deadline:
        """The same deadline when the clock stood still for so long; never beyond the cap."""
        return self if self.at is None else Deadline(self.at + by, self.cap)


def reopening_pause(wish: float, *, short: int, empty: int) -> float:
    """Seconds to wait before a stream that ended is opened again.

    `wish` is what the server asks for. `short` counts the streams before the last one, in a row,
    that ended at once: they raise the floor under the wish, to a second at most, because a server
    may well end its streams after each message. `empty` counts those, the last one included, that
    did not even bring a message: each of them doubles the pause.
    """
    floor = min(LEAST_PAUSE * 2 ** min(short, _MOST_DOUBLINGS), _HIGHEST_FLOOR)
    return max(wish, floor) * 2 ** min(empty, _MOST_DOUBLINGS)


class Pace:
    """Spaces out work that a server can cause as often as it likes.

    The first time it is done at once. While it goes on, the pauses double, up to `longest` seconds;
    after a quiet time of that length it starts over.
    """

    def __init__(self, longest: float, first: float = 0.02) -> None:
        self._longest, self._first = longest, first
        self._rounds, self._ended = 0, -math.inf

    def wait(self, now: float) -> float:
        """Seconds to wait before the work is done once more."""
        if now - self._ended > self._longest:
            self._rounds = 0
        return min(self._first * (2**self._rounds - 1), self._longest)

    def done(self, now: float) -> None:
        """The work ended now."""
        self._rounds, self._ended = min(self._rounds + 1, 20), now
