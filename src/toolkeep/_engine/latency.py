"""How long many calls took, in fixed memory.

Durations go into a histogram whose buckets grow by a constant factor, so that a percentile is off
by at most 5 % of itself (`ACCURACY`), from 10 µs to 28 hours; what is beyond counts as the nearer
of the two. `count`, `mean` and `max` are exact. Percentiles are by nearest rank: the least duration
that so many per cent of the calls did not exceed. They are worked out on reading.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

ACCURACY = 0.05
SHORTEST, LONGEST = 1e-5, 1e5

_GROWTH = (1 + ACCURACY) / (1 - ACCURACY)
_PER_LOG = 1 / math.log(_GROWTH)
_FIRST = math.ceil(math.log(SHORTEST) * _PER_LOG)
_LAST = math.ceil(math.log(LONGEST) * _PER_LOG)


@dataclass(frozen=True, slots=True)
class Latency:
    """Of the calls that brought a result; all None while there was none."""

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


def bucket_of(seconds: float) -> int:
    if seconds <= SHORTEST:
        return 0
    if seconds >= LONGEST:
        return _LAST - _FIRST
    return math.ceil(math.log(seconds) * _PER_LOG) - _FIRST


def middle_of(bucket: int) -> float:
    """The time that is off by the same factor from both ends of the bucket."""
    return 2 * _GROWTH ** (bucket + _FIRST) / (_GROWTH + 1)


class Times:
    """Durations, in fixed memory."""

    __slots__ = ("_buckets", "count", "max", "sum")

    def __init__(self) -> None:
        self._buckets = array("Q", bytes(8 * (_LAST - _FIRST + 1)))
        self.count, self.sum, self.max = 0, 0.0, 0.0

    def add(self, seconds: float, bucket: int) -> None:
        self._buckets[bucket] += 1
        self.count += 1
        self.sum += seconds
        if seconds > self.max:
            self.max = seconds

    def percentiles(self, *percents: int) -> Iterator[float]:
        """Their values; in ascending order, and only when there is anything."""
        counts = self._buckets[:]
        total, seen, bucket = sum(counts), counts[0], 0
        for percent in percents:
            rank = -(-percent * total // 100)
            while seen < rank:
                bucket += 1
                seen += counts[bucket]
            yield min(middle_of(bucket), self.max)

    def latency(self) -> Latency:
        if not self.count:
            return Latency()
        return Latency(
            self.count, self.sum / self.count, *self.percentiles(50, 95, 99), max=self.max
        )
