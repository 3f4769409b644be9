"""Usage figures: what every server and every tool was asked, and how it went.

Counted in memory while calls run, worked out when somebody reads. A call costs two clock readings,
one logarithm and a few additions; nothing is kept of a single call. Belongs to one event loop;
reading is allowed from any thread.

Latency is the time of calls that brought a result, a tool's own error included: how long a failure
took says nothing about the tool. Its percentiles are off by at most 5 % (see `latency`).

A tool costs about 2.5 KB once it was called. Beyond `MOST_TOOLS` a new one counts in its server's
total only, and `ServerFigures.untracked` says how many such calls there were.

An error is told by its kind alone. Messages quote servers, and servers quote arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter, time
from types import MappingProxyType
from typing import Any

from toolkeep._engine.latency import Latency, Times, bucket_of
from toolkeep.errors import ToolkeepError
from toolkeep.results import CallResult

MOST_TOOLS = 20_000


def kind_of(error: BaseException) -> str:
    """`"CallTimedOut/unknown"`: the type, and how far the call got; `"other"` for what is not
    ours."""
    if isinstance(error, ToolkeepError):
        return f"{type(error).__name__}/{error.delivery.value}"
    return "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFigures:
    """What is true of some calls at the moment of asking. Times are seconds since the epoch."""

    server: str
    calls: int = 0
    """Begun so far, those in flight included."""
    in_flight: int = 0
    tool_errors: int = 0
    """Results that say `is_error`."""
    errors: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Calls that ended without a result, by kind; see `kind_of`."""
    cancelled: int = 0
    cached: int = 0
    """Answered by what an equal call had brought; not counted as calls."""
    attempts: int = 0
    """How often the calls that ended were sent, as far as that is known."""
    replays: int = 0
    """How many of the attempts were not the first."""
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
class ToolFigures(CallFigures):
    """The calls of one tool."""

    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFigures(CallFigures):
    """The calls of all tools of one server."""

    untracked: int = 0
    """Calls of tools that have no figures of their own."""


class Tally:
    """The running sums of one tool, or of one server."""

    __slots__ = (
        *(
            "attempts",
            "cached",
            "calls",
            "cancelled",
            "errors",
            "in_flight",
            "last_call_at",
            "last_error",
        ),
        *("last_error_at", "replays", "times", "tool_errors"),
    )

    def __init__(self) -> None:
        self.calls = self.in_flight = self.tool_errors = self.cancelled = 0
        self.attempts = self.replays = self.cached = 0
        self.errors: dict[str, int] = {}
        self.last_error: str | None = None
        self.last_error_at: float | None = None
        self.last_call_at: float | None = None
        self.times = Times()

    def end(self, attempts: int) -> None:
        self.in_flight -= 1
        self.attempts += attempts
        if attempts > 1:
            self.replays += attempts - 1

    def fail(self, kind: str, at: float) -> None:
        self.errors[kind] = self.errors.get(kind, 0) + 1
        self.last_error, self.last_error_at = kind, at

    def read(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "times"}
        errors = MappingProxyType(dict(self.errors))
        return {**plain, "errors": errors, "latency": self.times.latency()}


class Running:
    """One call under way. The first of `done` and `failed` counts, and only that."""

    __slots__ = ("_began", "_tallies")

    def __init__(self, tallies: tuple[Tally, ...]) -> None:
        self._tallies = tallies
        self._began = perf_counter()

    def done(self, result: CallResult) -> None:
        seconds = perf_counter() - self._began
        bucket, is_error, attempts = bucket_of(seconds), result.is_error, result.attempts
        tallies, self._tallies = self._tallies, ()
        for tally in tallies:
            tally.end(attempts)
            tally.times.add(seconds, bucket)
            tally.tool_errors += is_error

    def failed(self, error: BaseException) -> None:
        kind, at = kind_of(error), time()
        attempts: int = getattr(error, "attempts", 0)
        tallies, self._tallies = self._tallies, ()
        for tally in tallies:
            tally.end(attempts)
            if isinstance(error, Exception):
                tally.fail(kind, at)
            else:
                tally.cancelled += 1


class OfServer:
    """One server's total, and its tools."""

    __slots__ = ("tools", "total", "untracked")

    def __init__(self) -> None:
        self.total = Tally()
        self.tools: dict[str, Tally] = {}
        self.untracked = 0


class Figures:
    """One for each runtime, for as long as it lives."""

    def __init__(self, most_tools: int = MOST_TOOLS) -> None:
        self._servers: dict[str, OfServer] = {}
        self._most, self._tools = most_tools, 0
        self.progressed: set[tuple[str, str]] = set()
        """The servers and tools that have reported progress; as many as there may be tools."""

    def begin(self, server: str, tool: str) -> Running:
        """A call begins. Whoever calls this must call `done` or `failed`, whatever happens."""
        tallies, at = self._tallies(server, tool), time()
        for tally in tallies:
            tally.calls += 1
            tally.in_flight += 1
            tally.last_call_at = at
        return Running(tallies)

    def cached(self, server: str, tool: str) -> None:
        """A call was answered by what an equal one had brought."""
        for tally in self._tallies(server, tool):
            tally.cached += 1

    def _tallies(self, server: str, tool: str) -> tuple[Tally, ...]:
        found = self._servers.get(server)
        if found is None:
            found = self._servers[server] = OfServer()
        tally = found.tools.get(tool)
        if tally is None:
            if self._tools >= self._most:
                found.untracked += 1
                return (found.total,)
            tally = found.tools[tool] = Tally()
            self._tools += 1
        return found.total, tally

    def progress(self, server: str, tool: str) -> None:
        """A tool reported progress."""
        if len(self.progressed) < self._most:
            self.progressed.add((server, tool))

    def forget(self, server: str) -> None:
        """The server was removed. Calls that still run there count for nobody."""
        gone = self._servers.pop(server, None)
        self._tools -= len(gone.tools) if gone else 0
        self.progressed -= {pair for pair in self.progressed if pair[0] == server}

    # -- reading --------------------------------------------------------------------------------

    def server(self, name: str) -> ServerFigures:
        """All zero for a server that was not called."""
        found = self._servers.get(name)
        if found is None:
            return ServerFigures(server=name)
        return ServerFigures(server=name, untracked=found.untracked, **found.total.read())

    def tool(self, server: str, tool: str) -> ToolFigures:
        """All zero for a tool that was not called."""
        found = self._servers.get(server)
        tally = found.tools.get(tool) if found else None
        return ToolFigures(server=server, tool=tool, **(tally.read() if tally else {}))

    def as_dict(self) -> dict[str, Any]:
        """Everything, by server and tool, ready for JSON."""
        return {name: self._with_tools(name, tuple(of.tools)) for name, of in self._all()}

    def _with_tools(self, name: str, tools: tuple[str, ...]) -> dict[str, Any]:
        by_tool = {tool: self.tool(name, tool).as_dict() for tool in tools}
        return {**self.server(name).as_dict(), "tools": by_tool}

    def _all(self) -> tuple[tuple[str, OfServer], ...]:
        return tuple(self._servers.items())
