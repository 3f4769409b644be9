"""Metrics of a gateway, in the text format of Prometheus (0.0.4).

Counts and durations of calls are kept here; everything else is read from its owner when the page is
asked for. The number of label values is bounded, because names come from servers and from clients.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from toolkeep.gateway.audit import Outcome
from toolkeep.telemetry.logs import shown

__all__ = ["CONTENT_TYPE", "Metrics"]

logger = logging.getLogger("toolkeep.gateway")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds."""
MAX_TOOLS = 500
"""Tools, each of one server, that have lines of their own. Calls of others are counted together."""
MAX_SERIES = 1000
"""Lines of one metric that a callable supplies."""
OTHER = "_other"

Labels: TypeAlias = tuple[tuple[str, str], ...]
Reading: TypeAlias = float | Mapping[Labels, float]
"""One number, or numbers by labels: `{(("server", "files"),): 3}`."""


@dataclass(slots=True)
class _Durations:
    """One histogram."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    about: str
    kind: Literal["gauge", "counter"]
    read: Callable[[], Reading]


class Metrics:
    """The metrics of one gateway process. Used in one event loop."""

    def __init__(self, prefix: str = "toolkeep_gateway") -> None:
        self._prefix = prefix
        self._calls: dict[tuple[str, str, str], int] = {}
        self._durations: dict[tuple[str, str], _Durations] = {}
        self._sources: dict[str, _Source] = {}

    def observe_call(self, server: str, tool: str, outcome: Outcome, seconds: float) -> None:
        """Count a call that has ended."""
        key = server, tool
        if key not in self._durations and len(self._durations) >= MAX_TOOLS:
            key = OTHER, OTHER
        durations = self._durations.get(key)
        if durations is None:
            durations = self._durations[key] = _Durations()
        durations.add(seconds)
        counted = key[0], key[1], outcome
        self._calls[counted] = self._calls.get(counted, 0) + 1

    def gauge(self, name: str, about: str, read: Callable[[], Reading]) -> None:
        """Show what `read` returns when the page is asked for, such as the number of sessions."""
        self._add(_Source(name, about, "gauge", read))

    def counter(self, name: str, about: str, read: Callable[[], Reading]) -> None:
        """The same for a number that only grows. Its name ends in `_total`."""
        self._add(_Source(name, about, "counter", read))

    def _add(self, source: _Source) -> None:
        if source.name in self._sources:
            raise ValueError(f"there is a metric {source.name!r} already")
        self._sources[source.name] = source

    def render(self) -> str:
        """The page. A source that fails is left out, and logged."""
        lines = [*self._call_lines(), *self._duration_lines()]
        for source in self._sources.values():
            try:
                reading = source.read()
                values = reading if isinstance(reading, Mapping) else {(): reading}
                found = [(labels, float(value)) for labels, value in values.items()][:MAX_SERIES]
            except Exception as error:
                logger.warning("the metric %s has no value: %s", source.name, type(error).__name__)
                continue
            name = f"{self._prefix}_{source.name}"
            lines += _head(name, source.about, source.kind)
            lines += [_sample(name, labels, value) for labels, value in found]
        return "\n".join(lines) + "\n"

    def _call_lines(self) -> list[str]:
        name = f"{self._prefix}_calls_total"
        lines = _head(name, "Calls of tools that have ended, by outcome.", "counter")
        for (server, tool, outcome), number in self._calls.items():
            labels = *_tool_labels(server, tool), ("outcome", outcome)
            lines.append(_sample(name, labels, number))
        return lines

    def _duration_lines(self) -> list[str]:
        name = f"{self._prefix}_call_duration_seconds"
        lines = _head(name, "Duration of calls of tools.", "histogram")
        for (server, tool), durations in self._durations.items():
            labels, below = _tool_labels(server, tool), 0
            for bound, number in zip((*BUCKETS, math.inf), durations.counts, strict=True):
                below += number
                lines.append(_sample(f"{name}_bucket", (*labels, ("le", _number(bound))), below))
            lines.append(_sample(f"{name}_sum", labels, durations.total))
            lines.append(_sample(f"{name}_count", labels, below))
        return lines


def _tool_labels(server: str, tool: str) -> Labels:
    return ("server", server), ("tool", tool)


def _head(name: str, about: str, kind: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _sample(name: str, labels: Labels, value: float) -> str:
    given = ",".join(f'{label}="{_escape(text)}"' for label, text in labels)
    return f"{name}{{{given}}} {_number(value)}" if given else f"{name} {_number(value)}"


def _escape(text: str) -> str:
    return shown(text).replace("\\", "\\\\").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else f"{value:.15g}"
