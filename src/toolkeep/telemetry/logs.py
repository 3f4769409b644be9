"""`LogObserver`: one log line an event.

A line names the server, the tool, the first characters of the call's id, how long it took, how
often it was sent and what kind of failure it met; the record carries the same, and more, as plain
data under `toolkeep` for those who log in JSON. What is in a call, and what a server says, is never
written down: see `facts`. A level that is switched off costs a dictionary lookup.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from toolkeep._engine.group_terms import Dropped, HealthChanged
from toolkeep._rules.membership import Health
from toolkeep._runtime.events import CatalogueChanged, EditRefused, Reloaded
from toolkeep.events import (
    CallEvent,
    Changed,
    Completed,
    Connected,
    Disconnected,
    Event,
    Failed,
    InputNeeded,
    Log,
    Notice,
    Progress,
    Replaying,
    Started,
)
from toolkeep.telemetry.facts import end_of, facts_of, outline, shown

_LEVELS: Mapping[type[Event], int] = {
    Started: logging.DEBUG,
    Progress: logging.DEBUG,
    Log: logging.DEBUG,
    Notice: logging.DEBUG,
    Failed: logging.WARNING,
    Dropped: logging.WARNING,
    EditRefused: logging.WARNING,
}
"""All others: INFO."""
_TROUBLE = (Health.DOWN, Health.NEEDS_AUTHORIZATION)
_MOST_RUNNING = 10_000
"""Calls whose beginning is remembered, to tell how long a failure took."""
_SHORT_ID = 8


class LogObserver:
    """May observe any number of clients and groups of one event loop.

    `levels` replaces the level of some kinds of events: `{Completed: logging.DEBUG}`. Without it
    failures and lost servers are warnings, beginnings, progress and what servers log are for
    debugging, and the rest is information; so is a call that its caller cancelled.
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        levels: Mapping[type[Event], int] | None = None,
    ) -> None:
        self._logger = logger or logging.getLogger("toolkeep.events")
        self._levels = {**_LEVELS, **(levels or {})}
        self._chosen = frozenset(levels or ())
        self._begun: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        took = self._duration(event) if isinstance(event, CallEvent) else None
        level = self._level(event)
        if not self._logger.isEnabledFor(level):
            return
        facts = facts_of(event)
        if took is not None:
            facts.setdefault("duration", took)
        self._logger.log(level, "%s", _line(event, facts), extra={"toolkeep": facts})

    def _level(self, event: Event) -> int:
        level = self._levels.get(type(event), logging.INFO)
        if type(event) in self._chosen:
            return level
        if isinstance(event, Failed) and not isinstance(event.error, Exception):
            return logging.INFO
        if isinstance(event, HealthChanged) and event.health in _TROUBLE:
            return logging.WARNING
        return level

    def _duration(self, event: CallEvent) -> float | None:
        if isinstance(event, Started):
            if len(self._begun) >= _MOST_RUNNING:
                del self._begun[next(iter(self._begun))]  # its end was never told
            self._begun[event.call_id] = event.at
        elif event.is_final:
            begun = self._begun.pop(event.call_id, None)
            return None if begun is None else max(event.at - begun, 0.0)
        return None


def _line(event: Event, facts: Mapping[str, Any]) -> str:
    if not isinstance(event, CallEvent):
        return f"{shown(event.server) or 'runtime'}: {_of_server(event)}"
    about = f"{shown(event.server) or 'runtime'}: {facts['tool'] or 'a call'}"
    call = f" [{event.call_id[:_SHORT_ID]}]" if event.call_id else ""
    return f"{about} {_of_call(event, facts)}{call}"


def _of_call(event: CallEvent, facts: Mapping[str, Any]) -> str:
    match event:
        case Completed():
            how = "returned an error" if event.result.is_error else "completed"
            return f"{'needs input' if event.result.needs_input else how}{_effort(facts)}"
        case Failed() if not isinstance(event.error, Exception):
            return f"was cancelled{_effort(facts)}"
        case Failed():
            return f"failed{_effort(facts)}: {outline(event.error)}"
        case Replaying():
            kind = event.failure.kind.value
            return f"goes again in {event.after:.3g} s, attempt {event.attempt} failed: {kind}"
        case Progress():
            fraction = facts["fraction"]
            return f"progress {event.progress:g}" + (
                "" if fraction is None else f" ({fraction:.0%})"
            )
        case Log():
            return f"logs a line ({facts['level']})"
        case InputNeeded():
            return f"needs input ({facts['method']})"
        case _:
            return event.kind


def _effort(facts: Mapping[str, Any]) -> str:
    attempts, duration = facts.get("attempts", 1), facts.get("duration")
    after = "" if duration is None else f" after {duration * 1000:.1f} ms"
    return after + (f", {attempts} attempts" if attempts > 1 else "")


def _of_server(event: Event) -> str:
    match event:
        case CatalogueChanged():
            tools = event.changes.tools
            counts = f"+{len(tools.added)} -{len(tools.removed)} ~{len(tools.changed)}"
            stale = ", stale" if event.stale else ""
            return f"offers other tools ({counts}, revision {event.revision}{stale})"
        case Reloaded():
            counts = f"+{len(event.added)} -{len(event.removed)} ~{len(event.changed)}"
            return f"the configuration was edited (servers {counts})"
        case EditRefused():
            key = shown(event.error.key or "unknown key")
            return f"an edit of the configuration is not used ({key})"
        case Connected():
            return f"connected ({event.era}, {shown(event.protocol_version)}, #{event.generation})"
        case Disconnected():
            return f"disconnected ({end_of(event)}, #{event.generation})"
        case Changed():
            return f"{event.what} changed"
        case Dropped():
            return f"dropped: {outline(event.error)}"
        case HealthChanged():
            why = "" if event.error is None else f": {outline(event.error)}"
            return f"{event.health.value}, was {event.before.value}{why}"
        case Notice():
            return f"notice ({shown(event.method)})"
        case _:
            return event.kind
