"""Delays before something is done again.

`Backoff` is the delay before the next attempt. `stream_reopen_delay` and `Pacer` limit how often a
server can make us open a stream or list again. `now` is a time in seconds, always of the same
monotonic clock. `jitter` is a number in [0, 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MIN_PAUSE = 0.1
"""Seconds. Minimum of every pause whose length a server chooses (`retry`, Retry-After)."""

_MAX_REOPEN_FLOOR = 1.0
"""Seconds. Maximum of the minimal pause after several streams that ended at once."""
_MAX_DOUBLINGS = 10


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays with a cap and jitter.

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
        return self._without_jitter(max(0, attempt - 1)) * (0.5 + 0.5 * jitter)

    def _without_jitter(self, doublings: int) -> float:
        if not self.first:
            return 0.0
        try:
            return min(self.cap, self.first * self.factor**doublings)
        except OverflowError:
            return self.cap


def stream_reopen_delay(wish: float, *, short: int, empty: int) -> float:
    """Seconds to wait before a stream that ended is opened again.

    `wish` is what the server asks for. `short` counts the consecutive streams before the last one
    that ended at once: they raise the minimal pause, to one second at most, because a server may
    legitimately end its stream after each message. `empty` counts the consecutive streams, with
    the last one, that ended without a message: each doubles the pause.
    """
    floor = min(MIN_PAUSE * 2 ** min(short, _MAX_DOUBLINGS), _MAX_REOPEN_FLOOR)
    return max(wish, floor) * 2 ** min(empty, _MAX_DOUBLINGS)


class Pacer:
    """Delays work that a server can trigger as often as it likes.

    The first run starts at once. Then the pauses double, up to `longest` seconds. After a quiet
    time of that length it starts over.
    """

    def __init__(self, longest: float, first: float = 0.02) -> None:
        self._longest, self._first = longest, first
        self._rounds, self._ended = 0, -math.inf

    def delay(self, now: float) -> float:
        """Seconds to wait before the work runs again."""
        if now - self._ended > self._longest:
            self._rounds = 0
        return min(self._first * (2**self._rounds - 1), self._longest)

    def mark_done(self, now: float) -> None:
        """Record that a run ended at `now`."""
        self._rounds, self._ended = min(self._rounds + 1, 20), now
