"""An event in one line, for people. What a server said is shown, never obeyed."""

from __future__ import annotations

import time
from collections.abc import Iterable

from mainstay import (
    CatalogueChanged,
    Changed,
    Completed,
    Connected,
    Disconnected,
    Dropped,
    Event,
    Failed,
    HealthChanged,
    Joined,
    Left,
    Log,
    Notice,
    Progress,
    Replaying,
    Started,
)
from mainstay.cli.screen import one_line
from mainstay.cli.standing import reason

LONGEST, ROOM = 300, 24
"""Characters of what a server said, and of its name where names are aligned."""


class Teller:
    """One for each run. That a server is still not there, for the same reason, is told once."""

    def __init__(self, names: Iterable[str]) -> None:
        self._room = min(max(map(len, names), default=0), ROOM)
        self._last: dict[str, str] = {}

    def __call__(self, event: Event) -> str | None:
        said = one_line(said_of(event))[:LONGEST]
        if isinstance(event, Dropped) and self._last.get(event.server) == said:
            return None
        self._last[event.server] = said
        clock = time.strftime("%H:%M:%S", time.localtime(event.at))
        return f"{clock}  {event.server:{self._room}}  {said}"


def said_of(event: Event) -> str:
    match event:
        case Connected():
            return f"connected ({event.era}, {event.protocol_version})"
        case Disconnected():
            return f"connection ended: {event.reason}"
        case Joined():
            tries = f", at attempt {event.attempt}" if event.attempt > 1 else ""
            return f"ready{tries}"
        case Dropped():
            return f"not there: {reason(event.error)}"
        case Left():
            return f"closed: {reason(event.error)}" if event.error else "closed"
        case HealthChanged():
            why = f": {reason(event.error)}" if event.error else ""
            return f"{event.before.value}, now {event.health.value}{why}"
        case Changed():
            return f"says that its {event.what} changed {event.uri or ''}".rstrip()
        case CatalogueChanged():
            return f"catalogue: {_changes(event)}"
        case Notice():
            return _notice(event)
        case _:
            return _of_a_call(event)


def _of_a_call(event: Event) -> str:
    match event:
        case Started():
            return f"{event.tool}: called"
        case Progress():
            return f"{event.tool}: {event.progress:g} of {event.total or '?'} {event.message or ''}"
        case Log():
            return f"{event.tool}: {event.level}: {event.data}"
        case Replaying():
            return f"{event.tool}: sent again, because {event.failure}"
        case Completed():
            outcome = "the tool reports an error" if event.result.is_error else "answered"
            return f"{event.tool}: {outcome} after {event.result.duration:.3f} s"
        case Failed():
            return f"{event.tool}: failed: {event.error}"
        case _:
            return event.kind


def _changes(event: CatalogueChanged) -> str:
    if event.stale:
        return "out of reach; shown as it was"
    whole = event.changes
    parts = [
        f"{sign}{name}"
        for delta in (whole.tools, whole.prompts, whole.resources, whole.templates)
        for sign, names in (("+", delta.added), ("-", delta.removed), ("~", delta.changed))
        for name in names
    ]
    return ", ".join(parts) or "as it was"


def _notice(event: Notice) -> str:
    if event.method != "notifications/message":
        return event.method
    level, data = event.params.get("level", "log"), event.params.get("data", "")
    return f"{level}: {data}"
