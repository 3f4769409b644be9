"""An event in one line, for people. What a server said is shown, never obeyed."""

from __future__ import annotations

import time

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

LONGEST = 300
"""Characters of what a server said."""


def line_of(event: Event) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(event.at))
    return f"{clock}  {event.server}  {one_line(said_of(event))[:LONGEST]}"


def said_of(event: Event) -> str:
    match event:
        case Connected():
            return f"connected ({event.era}, {event.protocol_version})"
        case Disconnected():
            return f"connection ended: {event.reason}"
        case Joined():
            return f"opened, at attempt {event.attempt}"
        case Dropped() | Left() if event.error is not None:
            return f"lost: {reason(event.error)}"
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
