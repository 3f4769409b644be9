"""What may be told of an event: names, numbers and kinds.

Everything else stays behind. Arguments, results and progress messages are the caller's business,
session ids and headers are secrets, and what a server says in its errors may repeat any of them.
"""

from __future__ import annotations

from typing import Any

from toolkeep._engine.group_terms import Dropped, HealthChanged, Joined, Left
from toolkeep.errors import Failure, FailureKind, ToolkeepError
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
)

_LONGEST_NAME = 128
_ENDS = frozenset({"closed", *(kind.value for kind in FailureKind)})


def shown(name: str) -> str:
    """A name that somebody else has chosen, fit for one line."""
    plain = name if name.isprintable() else ascii(name)
    return plain if len(plain) <= _LONGEST_NAME else f"{plain[:_LONGEST_NAME]}…"


def facts_of(event: Event) -> dict[str, Any]:
    """The event as plain data. Of kinds that are not known here, only that they happened."""
    facts: dict[str, Any] = {"event": event.kind, "server": event.server, "at": event.at}
    if isinstance(event, CallEvent):
        facts |= {"tool": shown(event.tool), "call_id": event.call_id}
    return facts | _more(event)


def _more(event: Event) -> dict[str, Any]:
    match event:
        case Completed():
            result = event.result
            done: dict[str, Any] = {"duration": result.duration, "attempts": result.attempts}
            done |= {"cached": True} if result.cached else {}
            return {**done, "is_error": result.is_error, "needs_input": result.needs_input}
        case Failed() | Dropped():
            return facts_of_error(event.error)
        case Left():
            return {} if event.error is None else facts_of_error(event.error)
        case Replaying():
            return {
                "attempt": event.attempt,
                "after": event.after,
                **facts_of_failure(event.failure),
            }
        case Progress():
            return {"progress": event.progress, "total": event.total, "fraction": event.fraction}
        case Log():
            return {"level": shown(event.level)}
        case InputNeeded() | Notice():
            return {"method": shown(event.method)}
        case Joined():
            return {"attempt": event.attempt}
        case _:
            return _of_connection(event)


def _of_connection(event: Event) -> dict[str, Any]:
    match event:
        case Connected():
            version = shown(event.protocol_version)
            at = {"generation": event.generation, **_at(event.endpoint)}
            return {**at, "era": event.era, "protocol_version": version}
        case Disconnected():
            reason = end_of(event)
            return {"generation": event.generation, **_at(event.endpoint), "reason": reason}
        case Changed():
            return {"what": event.what}
        case HealthChanged():
            facts = {"health": event.health.value, "before": event.before.value}
            error = {} if event.error is None else facts_of_error(event.error)
            return {**facts, "latency": event.latency, **error}
        case _:
            return {}


def _at(endpoint: str) -> dict[str, str]:
    """Of a server with several addresses: which one."""
    return {"endpoint": shown(endpoint)} if endpoint else {}


def facts_of_error(error: BaseException) -> dict[str, Any]:
    facts: dict[str, Any] = {"error": type(error).__name__}
    if not isinstance(error, ToolkeepError):
        return facts
    facts["delivery"] = error.delivery.value
    attempts: int | None = getattr(error, "attempts", None)
    if attempts is not None:
        facts["attempts"] = attempts
    return facts if error.failure is None else {**facts_of_failure(error.failure), **facts}


def facts_of_failure(failure: Failure) -> dict[str, Any]:
    facts = {
        "failure": failure.kind.value,
        "delivery": failure.delivery.value,
        "status": failure.status,
        "code": failure.code,
        "exit_code": failure.exit_code,
    }
    return {name: value for name, value in facts.items() if value is not None}


def end_of(event: Disconnected) -> str:
    """Why a connection ended: `"closed"`, a kind of failure, or that it was lost, without the last
    words of whoever is gone."""
    return event.reason if event.reason in _ENDS else "lost"


def outline(error: BaseException) -> str:
    """`"CallTimedOut (unknown): broken, status 502"`: all that can be said without its words."""
    facts = facts_of_error(error)
    behind = [facts[name] for name in ("failure",) if name in facts]
    for name in ("status", "code", "exit_code"):
        behind += [f"{name.replace('_', ' ')} {facts[name]}"] if name in facts else []
    delivery = f" ({facts['delivery']})" if "delivery" in facts else ""
    return f"{facts['error']}{delivery}" + (f": {', '.join(behind)}" if behind else "")
