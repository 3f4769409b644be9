"""Limits on rate, time and size: token buckets, deadlines, buffers.

`now` is a time in seconds, always of the same monotonic clock.

- `TokenBucket` limits the retries of a whole server; `take_tokens` is the same bucket as one
  number, for buckets that processes share.
- `Deadline` is the one deadline of a call.
- `ReportBuffer` bounds the bytes of queued progress and log reports: it drops the oldest reports
  and keeps all other events. `json_size` estimates the memory that a JSON value takes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

PORTION_VALUES = 5_000
"""Values that `json_size_portions` counts between two yields: well under a millisecond."""

MIN_VALUE_SIZE = 16
"""Bytes added for each value: a small value takes more memory than it has characters."""

MAX_BUFFERED_BYTES = 8 * 1024 * 1024
"""Bytes of reports in one buffer: our choice. About 10,000 short reports."""

REPORT_OVERHEAD = 800
"""Bytes of memory that a report takes beside its contents."""

ROUNDING_TOLERANCE = 1e-9
"""Tokens. Ten refills of a tenth are a whole token despite floating-point rounding."""

SHARED_ROUNDING_TOLERANCE = 1e-6
"""Seconds. A float that holds the time since the epoch is exact to a quarter of this."""

Item = TypeVar("Item")


def json_size(value: Any, most: int) -> int:
    """The size of the value. Counting stops above `most`."""
    total = 0
    for portion in json_size_portions(value):
        total += portion
        if total > most:
            break
    return total


def json_size_portions(value: Any) -> Iterator[int]:
    """Yield the sizes of parts of the value, so that a caller can let other tasks run between."""
    waiting: list[Iterator[Any]] = [iter((value,))]
    counted = total = 0
    while waiting:
        for one in waiting[-1]:
            counted += 1
            total += MIN_VALUE_SIZE
            below = None
            if isinstance(one, str):
                total += len(one)
            elif isinstance(one, dict):
                total += sum(
                    len(str(name)) + MIN_VALUE_SIZE for name in cast("dict[str, Any]", one)
                )
                below = iter(cast("dict[str, Any]", one).values())
            elif isinstance(one, list):
                below = iter(cast("list[Any]", one))
            if counted >= PORTION_VALUES:
                yield total
                counted = total = 0
            if below is not None:
                waiting.append(below)
                break
        else:
            waiting.pop()
    yield total


class ReportBuffer(Generic[Item]):
    """A first-in, first-out queue. `size` returns the bytes of a report; None for other events,
    which are never dropped."""

    def __init__(
        self, size: Callable[[Item], int | None], max_bytes: int = MAX_BUFFERED_BYTES
    ) -> None:
        self._size, self._left = size, max_bytes
        self._waiting: deque[tuple[Item, int | None]] = deque()
        self.dropped = 0
        """Reports dropped so far."""

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, item: Item) -> None:
        size = self._size(item)
        self._waiting.append((item, size))
        self._left -= size or 0
        while self._left < 0:
            self._drop_oldest()

    def popleft(self) -> Item:
        item, size = self._waiting.popleft()
        self._left += size or 0
        return item

    def _drop_oldest(self) -> None:
        index = next(at for at, (_, size) in enumerate(self._waiting) if size)
        self._left += self._waiting[index][1] or 0
        del self._waiting[index]
        self.dropped += 1


def report_size(report: object) -> int | None:
    """The size of an event with a `message` or `data` from the server; None for all others."""
    held = getattr(report, "message", None), getattr(report, "data", None)
    if not hasattr(report, "message") and not hasattr(report, "data"):
        return None
    return REPORT_OVERHEAD + json_size(list(held), MAX_BUFFERED_BYTES)


class TokenBucket:
    """At most `capacity` tokens at once, and `per_second` in the long run. Starts full.

    One for each server, for as long as the server is configured. A clock that goes backwards
    neither adds nor removes tokens.
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
        """The number of tokens at `now`."""
        elapsed = 0.0 if self._at is None else max(0.0, now - self._at)
        return min(self.capacity, self._tokens + elapsed * self.per_second)

    def take(self, now: float) -> bool:
        """Take one token. False if there is none."""
        self._tokens = self.available(now)
        self._at = now if self._at is None else max(self._at, now)
        if self._tokens < 1 - ROUNDING_TOLERANCE:
            return False
        self._tokens = max(0.0, self._tokens - 1)
        return True


def take_tokens(
    full_at: float, now: float, *, rate: float, burst: float, cost: float
) -> tuple[float, float]:
    """Take `cost` tokens from a bucket that is full at the time `full_at`.

    Returns the new `full_at` and 0, or the old one and the seconds until enough tokens are there.
    A bucket is never further from full than `burst` tokens, so a clock that was set back costs at
    most one burst.
    """
    full_at = min(max(full_at, now), now + burst / rate)
    wait = full_at + (cost - burst) / rate - now
    if wait > SHARED_ROUNDING_TOLERANCE:
        return full_at, wait
    return full_at + cost / rate, 0.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time at which a call ends. `at=None`: no deadline.

    Progress may extend it up to `cap`; without a cap, for ever. `at` can be passed to
    `asyncio.timeout_at`.
    """

    at: float | None
    cap: float | None = None

    def __post_init__(self) -> None:
        if self.at is not None and self.cap is not None and self.cap < self.at:
            object.__setattr__(self, "at", self.cap)

    def remaining(self, now: float) -> float:
        """Seconds left: never negative, infinite when there is no deadline."""
        return math.inf if self.at is None else max(0.0, self.at - now)

    def has_passed(self, now: float) -> bool:
        return self.at is not None and now >= self.at

    def extended(self, now: float, by: float) -> Deadline:
        """The deadline after progress at `now`: `by` seconds from then, if that is later.

        Never earlier than before and never beyond the cap. A deadline that has passed stays
        passed.
        """
        if self.at is None or self.has_passed(now):
            return self
        later = now + by if self.cap is None else min(now + by, self.cap)
        return Deadline(max(self.at, later), self.cap)

    def shifted(self, by: float) -> Deadline:
        """The deadline after the call's clock was paused for `by` seconds; at most the cap."""
        return self if self.at is None else Deadline(self.at + by, self.cap)
