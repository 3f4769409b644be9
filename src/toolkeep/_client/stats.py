"""Call statistics by server and tool: counts, errors by kind, latency percentiles in fixed memory.

Belongs to one event loop; reading is allowed from any thread. Keeps nothing of a single call:
no arguments, no messages.
"""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter, time
from types import MappingProxyType
from typing import Any

from toolkeep.errors import ToolkeepError
from toolkeep.results import CallResult

ACCURACY = 0.05
"""The relative error of a percentile."""
MIN_SECONDS, MAX_SECONDS = 1e-5, 1e5
MAX_TRACKED_TOOLS = 20_000
"""Tools with counters of their own; the others count only for their server."""

_GROWTH = (1 + ACCURACY) / (1 - ACCURACY)
_PER_LOG = 1 / math.log(_GROWTH)
_FIRST_BUCKET = math.ceil(math.log(MIN_SECONDS) * _PER_LOG)
_LAST_BUCKET = math.ceil(math.log(MAX_SECONDS) * _PER_LOG)


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency in seconds of the calls that returned a result; all None while there is none."""

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


def bucket_of(seconds: float) -> int:
    if seconds <= MIN_SECONDS:
        return 0
    if seconds >= MAX_SECONDS:
        return _LAST_BUCKET - _FIRST_BUCKET
    return math.ceil(math.log(seconds) * _PER_LOG) - _FIRST_BUCKET


def bucket_midpoint(bucket: int) -> float:
    """The duration whose relative error to both ends of the bucket is the same."""
    return 2 * _GROWTH ** (bucket + _FIRST_BUCKET) / (_GROWTH + 1)


class LatencyHistogram:
    """A histogram of durations in fixed memory."""

    __slots__ = ("_buckets", "count", "max", "sum")

    def __init__(self) -> None:
        self._buckets = array("Q", bytes(8 * (_LAST_BUCKET - _FIRST_BUCKET + 1)))
        self.count, self.sum, self.max = 0, 0.0, 0.0

    def add(self, seconds: float, bucket: int) -> None:
        self._buckets[bucket] += 1
        self.count += 1
        self.sum += seconds
        if seconds > self.max:
            self.max = seconds

    def percentiles(self, *percents: int) -> Iterator[float]:
        """The values of ascending percentiles. Call it only when something was added."""
        counts = self._buckets[:]
        total, seen, bucket = sum(counts), counts[0], 0
        for percent in percents:
            rank = -(-percent * total // 100)
            while seen < rank:
                bucket += 1
                seen += counts[bucket]
            yield min(bucket_midpoint(bucket), self.max)

    def counts(self) -> tuple[tuple[float, int], ...]:
        """The durations as (seconds, how many), ascending; each within `ACCURACY` of the truth."""
        return tuple((bucket_midpoint(i), n) for i, n in enumerate(self._buckets) if n)

    def latency(self) -> Latency:
        if not self.count:
            return Latency()
        return Latency(
            self.count, self.sum / self.count, *self.percentiles(50, 95, 99), max=self.max
        )


def error_kind(error: BaseException) -> str:
    """The type of an error and its delivery: `"CallTimedOut/unknown"`. `"other"` for foreign
    exceptions."""
    if isinstance(error, ToolkeepError):
        return f"{type(error).__name__}/{error.delivery.value}"
    return "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStats:
    """Counts of calls at the moment of asking. Times are seconds since the epoch."""

    server: str
    calls: int = 0
    """Calls started so far, including those in flight."""
    in_flight: int = 0
    tool_errors: int = 0
    """Results with `is_error`."""
    errors: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Calls that ended without a result, by kind; see `error_kind`."""
    cancelled: int = 0
    cached: int = 0
    """Calls answered from the result cache; not included in `calls`."""
    attempts: int = 0
    """Attempts of the calls that ended, as far as known."""
    retries: int = 0
    """Attempts after the first one of each call."""
    last_error: str | None = None
    last_error_at: float | None = None
    last_call_at: float | None = None
    latency: Latency = field(default_factory=Latency)

    @property
    def failed(self) -> int:
        """Calls that ended without a result and were not cancelled."""
        return sum(self.errors.values())

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        errors, latency = dict(self.errors), dataclasses.asdict(self.latency)
        return {**plain, "errors": errors, "failed": self.failed, "latency": latency}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStats(CallStats):
    """The calls of one tool."""

    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStats(CallStats):
    """The calls of all tools of one server."""

    untracked: int = 0
    """Calls of tools that have no statistics of their own."""


class Counters:
    """The running counts of one tool or one server."""

    __slots__ = (
        "attempts",
        "cached",
        "calls",
        "cancelled",
        "errors",
        "histogram",
        "in_flight",
        "last_call_at",
        "last_error",
        "last_error_at",
        "retries",
        "tool_errors",
    )

    def __init__(self) -> None:
        self.calls = self.in_flight = self.tool_errors = self.cancelled = 0
        self.attempts = self.retries = self.cached = 0
        self.errors: dict[str, int] = {}
        self.last_error: str | None = None
        self.last_error_at: float | None = None
        self.last_call_at: float | None = None
        self.histogram = LatencyHistogram()

    def record_end(self, attempts: int) -> None:
        self.in_flight -= 1
        self.attempts += attempts
        if attempts > 1:
            self.retries += attempts - 1

    def record_failure(self, kind: str, at: float) -> None:
        self.errors[kind] = self.errors.get(kind, 0) + 1
        self.last_error, self.last_error_at = kind, at

    def snapshot(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "histogram"}
        errors = MappingProxyType(dict(self.errors))
        return {**plain, "errors": errors, "latency": self.histogram.latency()}


class RunningCall:
    """One call in flight. Only the first `done` or `failed` counts."""

    __slots__ = ("_counters", "_started")

    def __init__(self, counters: tuple[Counters, ...]) -> None:
        self._counters = counters
        self._started = perf_counter()

    def done(self, result: CallResult) -> None:
        seconds = perf_counter() - self._started
        bucket, is_error, attempts = bucket_of(seconds), result.is_error, result.attempts
        counters, self._counters = self._counters, ()
        for each in counters:
            each.record_end(attempts)
            each.histogram.add(seconds, bucket)
            each.tool_errors += is_error

    def failed(self, error: BaseException) -> None:
        kind, at = error_kind(error), time()
        attempts: int = getattr(error, "attempts", 0)
        counters, self._counters = self._counters, ()
        for each in counters:
            each.record_end(attempts)
            if isinstance(error, Exception):
                each.record_failure(kind, at)
            else:
                each.cancelled += 1


class ServerCounters:
    """The counters of one server and of its tools."""

    __slots__ = ("tools", "total", "untracked")

    def __init__(self) -> None:
        self.total = Counters()
        self.tools: dict[str, Counters] = {}
        self.untracked = 0


class Stats:
    """The call statistics of one runtime. Lives as long as the runtime."""

    def __init__(self, max_tools: int = MAX_TRACKED_TOOLS) -> None:
        self._servers: dict[str, ServerCounters] = {}
        self._max_tools, self._tools = max_tools, 0
        self.tools_with_progress: set[tuple[str, str]] = set()
        """Pairs of server and tool that have reported progress; bounded like the tracked tools."""

    def __repr__(self) -> str:
        calls = sum(counters.total.calls for counters in self._servers.values())
        return f"<Stats, calls: {calls}, servers: {len(self._servers)}>"

    def begin(self, server: str, tool: str) -> RunningCall:
        """Count the start of a call. The caller must call `done` or `failed` at its end."""
        counters, at = self._counters_for(server, tool), time()
        for each in counters:
            each.calls += 1
            each.in_flight += 1
            each.last_call_at = at
        return RunningCall(counters)

    def record_cached(self, server: str, tool: str) -> None:
        """Count a call that was answered from the result cache."""
        for each in self._counters_for(server, tool):
            each.cached += 1

    def _counters_for(self, server: str, tool: str) -> tuple[Counters, ...]:
        found = self._servers.get(server)
        if found is None:
            found = self._servers[server] = ServerCounters()
        counters = found.tools.get(tool)
        if counters is None:
            if self._tools >= self._max_tools:
                found.untracked += 1
                return (found.total,)
            counters = found.tools[tool] = Counters()
            self._tools += 1
        return found.total, counters

    def record_progress(self, server: str, tool: str) -> None:
        """Record that a tool reports progress."""
        if len(self.tools_with_progress) < self._max_tools:
            self.tools_with_progress.add((server, tool))

    def remove_server(self, server: str) -> None:
        """Drop the statistics of a removed server. Its calls in flight are not counted any more."""
        removed = self._servers.pop(server, None)
        self._tools -= len(removed.tools) if removed else 0
        self.tools_with_progress -= {pair for pair in self.tools_with_progress if pair[0] == server}

    # -- reading --------------------------------------------------------------------------------

    def server(self, name: str) -> ServerStats:
        """All zero for a server that was not called."""
        found = self._servers.get(name)
        if found is None:
            return ServerStats(server=name)
        return ServerStats(server=name, untracked=found.untracked, **found.total.snapshot())

    def tool(self, server: str, tool: str) -> ToolStats:
        """All zero for a tool that was not called."""
        found = self._servers.get(server)
        counters = found.tools.get(tool) if found else None
        return ToolStats(server=server, tool=tool, **(counters.snapshot() if counters else {}))

    def tools(self, server: str) -> tuple[str, ...]:
        """The tools of this server that have statistics."""
        found = self._servers.get(server)
        return tuple(found.tools) if found else ()

    def histogram(self, server: str, tool: str | None = None) -> tuple[tuple[float, int], ...]:
        """The latencies of a server, or of one tool, as (seconds, how many), ascending."""
        found = self._servers.get(server)
        counters = found and (found.total if tool is None else found.tools.get(tool))
        return counters.histogram.counts() if counters else ()

    def as_dict(self) -> dict[str, Any]:
        """Everything, by server and tool, ready for JSON."""
        return {name: self._with_tools(name, tuple(of.tools)) for name, of in self._all()}

    def _with_tools(self, name: str, tools: tuple[str, ...]) -> dict[str, Any]:
        by_tool = {tool: self.tool(name, tool).as_dict() for tool in tools}
        return {**self.server(name).as_dict(), "tools": by_tool}

    def _all(self) -> tuple[tuple[str, ServerCounters], ...]:
        return tuple(self._servers.items())
