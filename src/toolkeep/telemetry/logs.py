"""`LogObserver`: one log line for each event.

A line names the server, the tool, the first characters of the call's id, the duration, the number
of attempts and the kind of failure. The record carries the same, and more, as plain data under
`toolkeep`, for logging in JSON. A level that is switched off costs a dictionary lookup.

`event_facts` says what telemetry may show of an event: names, numbers and kinds. Arguments, results
and progress messages belong to the caller, session ids and headers are secrets, and the text of a
server's errors may repeat any of them: none of these is shown.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from toolkeep.errors import Failure, FailureKind, ToolkeepError
from toolkeep.events import (
    CallEvent,
    CatalogueChanged,
    Changed,
    Completed,
    Connected,
    Disconnected,
    Event,
    Failed,
    Health,
    HealthChanged,
    InputNeeded,
    Log,
    Progress,
    Reloaded,
    ReloadFailed,
    Retrying,
    ServerAdded,
    ServerLost,
    ServerNotification,
    ServerRemoved,
    Started,
)

_LEVELS: Mapping[type[Event], int] = {
    Started: logging.DEBUG,
    Progress: logging.DEBUG,
    Log: logging.DEBUG,
    ServerNotification: logging.DEBUG,
    Failed: logging.WARNING,
    ServerLost: logging.WARNING,
    ReloadFailed: logging.WARNING,
}
"""The other events: INFO."""
_UNHEALTHY = (Health.DOWN, Health.NEEDS_AUTHORIZATION)
_MAX_RUNNING_CALLS = 10_000
"""Calls whose start is remembered, for the duration of a failure."""
_SHORT_ID = 8
_MAX_NAME = 128
_END_REASONS = frozenset({"closed", *(kind.value for kind in FailureKind)})


class LogObserver:
    """Logs the events of any number of clients and groups of one event loop.

    `levels` replaces the level of some kinds of events: `{Completed: logging.DEBUG}`. By default
    failures and lost servers are warnings; starts, progress and the servers' log lines are for
    debugging; all other events, and calls that their caller cancelled, are information.
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
        self._started: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<LogObserver to {self._logger.name!r}>"

    def __call__(self, event: Event) -> None:
        duration = self._duration(event) if isinstance(event, CallEvent) else None
        level = self._level(event)
        if not self._logger.isEnabledFor(level):
            return
        facts = event_facts(event)
        if duration is not None:
            facts.setdefault("duration", duration)
        self._logger.log(level, "%s", _line(event, facts), extra={"toolkeep": facts})

    def _level(self, event: Event) -> int:
        level = self._levels.get(type(event), logging.INFO)
        if type(event) in self._chosen:
            return level
        if isinstance(event, Failed) and not isinstance(event.error, Exception):
            return logging.INFO
        if isinstance(event, HealthChanged) and event.health in _UNHEALTHY:
            return logging.WARNING
        return level

    def _duration(self, event: CallEvent) -> float | None:
        if isinstance(event, Started):
            if len(self._started) >= _MAX_RUNNING_CALLS:
                del self._started[next(iter(self._started))]  # its end was never observed
            self._started[event.call_id] = event.at
        elif event.is_final:
            started = self._started.pop(event.call_id, None)
            return None if started is None else max(event.at - started, 0.0)
        return None


def _line(event: Event, facts: Mapping[str, Any]) -> str:
    if not isinstance(event, CallEvent):
        return f"{shown(event.server) or 'runtime'}: {server_text(event)}"
    about = f"{shown(event.server) or 'runtime'}: {facts['tool'] or 'a call'}"
    call = f" [{event.call_id[:_SHORT_ID]}]" if event.call_id else ""
    return f"{about} {_call_text(event, facts)}{call}"


def _call_text(event: CallEvent, facts: Mapping[str, Any]) -> str:
    match event:
        case Completed():
            how = "returned an error" if event.result.is_error else "completed"
            return f"{'needs input' if event.result.needs_input else how}{_cost(facts)}"
        case Failed() if not isinstance(event.error, Exception):
            return f"was cancelled{_cost(facts)}"
        case Failed():
            return f"failed{_cost(facts)}: {error_summary(event.error)}"
        case Retrying():
            kind = event.failure.kind.value
            return f"retries in {event.delay:.3g} s, attempt {event.attempt} failed: {kind}"
        case Progress():
            fraction = facts["fraction"]
            return f"progress {event.progress:g}" + (
                "" if fraction is None else f" ({fraction:.0%})"
            )
        case Log():
            return f"sent a log line ({facts['level']})"
        case InputNeeded():
            return f"needs input ({facts['method']})"
        case _:
            return event.kind


def _cost(facts: Mapping[str, Any]) -> str:
    attempts, duration = facts.get("attempts", 1), facts.get("duration")
    after = "" if duration is None else f" after {duration * 1000:.1f} ms"
    return after + (f", {attempts} attempts" if attempts > 1 else "")


def server_text(event: Event) -> str:
    """What happened to a server, in one line without the server's own words."""
    match event:
        case CatalogueChanged():
            tools = event.changes.tools
            counts = f"+{len(tools.added)} -{len(tools.removed)} ~{len(tools.changed)}"
            stale = ", stale" if event.stale else ""
            return f"tools changed ({counts}, revision {event.revision}{stale})"
        case Reloaded():
            counts = f"+{len(event.added)} -{len(event.removed)} ~{len(event.changed)}"
            return f"configuration reloaded (servers {counts})"
        case ReloadFailed():
            key = shown(event.error.key or "unknown key")
            return f"configuration not reloaded ({key})"
        case Connected():
            return f"connected ({event.era}, {shown(event.protocol_version)}, #{event.generation})"
        case Disconnected():
            return f"disconnected ({end_reason(event)}, #{event.generation})"
        case Changed():
            return f"{event.what} changed"
        case ServerLost():
            return f"lost: {error_summary(event.error)}"
        case HealthChanged():
            why = "" if event.error is None else f": {error_summary(event.error)}"
            return f"{event.health.value}, was {event.before.value}{why}"
        case ServerNotification():
            return f"notification ({shown(event.method)})"
        case _:
            return event.kind


# -- what telemetry may show of an event --------------------------------------------------------


def shown(name: str) -> str:
    """A foreign name, made printable and short enough for a line."""
    plain = name if name.isprintable() else ascii(name)
    return plain if len(plain) <= _MAX_NAME else f"{plain[:_MAX_NAME]}…"


def event_facts(event: Event) -> dict[str, Any]:
    """The event as plain data. For unknown kinds of events: the kind, the server and the time."""
    facts: dict[str, Any] = {"event": event.kind, "server": event.server, "at": event.at}
    if isinstance(event, CallEvent):
        facts |= {"tool": shown(event.tool), "call_id": event.call_id}
    return facts | _details(event)


def _details(event: Event) -> dict[str, Any]:
    match event:
        case Completed():
            result = event.result
            done: dict[str, Any] = {"duration": result.duration, "attempts": result.attempts}
            done |= {"cached": True} if result.cached else {}
            return {**done, "is_error": result.is_error, "needs_input": result.needs_input}
        case Failed() | ServerLost():
            return error_facts(event.error)
        case ServerRemoved():
            return {} if event.error is None else error_facts(event.error)
        case Retrying():
            return {
                "attempt": event.attempt,
                "delay": event.delay,
                **failure_facts(event.failure),
            }
        case Progress():
            return {"progress": event.progress, "total": event.total, "fraction": event.fraction}
        case Log():
            return {"level": shown(event.level)}
        case InputNeeded() | ServerNotification():
            return {"method": shown(event.method)}
        case ServerAdded():
            return {"attempt": event.attempt}
        case _:
            return _connection_details(event)


def _connection_details(event: Event) -> dict[str, Any]:
    match event:
        case Connected():
            version = shown(event.protocol_version)
            where = {"generation": event.generation, **_endpoint(event.endpoint)}
            return {**where, "era": event.era, "protocol_version": version}
        case Disconnected():
            reason = end_reason(event)
            return {"generation": event.generation, **_endpoint(event.endpoint), "reason": reason}
        case Changed():
            return {"what": event.what}
        case HealthChanged():
            facts = {"health": event.health.value, "before": event.before.value}
            error = {} if event.error is None else error_facts(event.error)
            return {**facts, "latency": event.latency, **error}
        case _:
            return {}


def _endpoint(endpoint: str) -> dict[str, str]:
    """Which address it is, of a server with several."""
    return {"endpoint": shown(endpoint)} if endpoint else {}


def error_facts(error: BaseException) -> dict[str, Any]:
    facts: dict[str, Any] = {"error": type(error).__name__}
    if not isinstance(error, ToolkeepError):
        return facts
    facts["delivery"] = error.delivery.value
    attempts: int | None = getattr(error, "attempts", None)
    if attempts is not None:
        facts["attempts"] = attempts
    return facts if error.failure is None else {**failure_facts(error.failure), **facts}


def failure_facts(failure: Failure) -> dict[str, Any]:
    facts = {
        "failure": failure.kind.value,
        "delivery": failure.delivery.value,
        "status": failure.status,
        "code": failure.code,
        "exit_code": failure.exit_code,
    }
    return {name: value for name, value in facts.items() if value is not None}


def end_reason(event: Disconnected) -> str:
    """Why a connection ended: `"closed"`, a kind of failure, or `"lost"` in place of any other
    text, which may come from the server."""
    return event.reason if event.reason in _END_REASONS else "lost"


def error_summary(error: BaseException) -> str:
    """An error without its message: `"CallTimedOut (unknown): broken, status 502"`."""
    facts = error_facts(error)
    details = [facts["failure"]] if "failure" in facts else []
    for name in ("status", "code", "exit_code"):
        details += [f"{name.replace('_', ' ')} {facts[name]}"] if name in facts else []
    delivery = f" ({facts['delivery']})" if "delivery" in facts else ""
    return f"{facts['error']}{delivery}" + (f": {', '.join(details)}" if details else "")
