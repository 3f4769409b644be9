"""An event in one line, for people. What a server said is shown, never obeyed.

Events are told as plain data, as `Event.as_dict` gives it, so that those of another process, read
from its file, are told in the same words. Such a file may hold anything.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from toolkeep.cli.screen import one_line
from toolkeep.cli.standing import reason

if TYPE_CHECKING:
    from toolkeep.events import Event

Told = Mapping[str, Any]

LONGEST, ROOM, MOST_NAMES = 300, 24, 1000
"""Characters of what a server said, and of its name where names are aligned; servers that are
remembered."""


def plain(event: Event) -> dict[str, Any]:
    """With the evidence of an error alone: what follows from it for a call is beside the point."""
    error = getattr(event, "error", None)
    why = {"why": reason(error)} if isinstance(error, BaseException) else {}
    return {**event.as_dict(), **why}


class Teller:
    """One for each run. That a server is still not there, for the same reason, is told once."""

    def __init__(self, names: Iterable[str]) -> None:
        self._room = min(max(map(len, names), default=0), ROOM)
        self._last: dict[str, str] = {}

    def __call__(self, told: Told) -> str | None:
        server, said = one_line(str(told.get("server", ""))), one_line(said_of(told))[:LONGEST]
        if told.get("event") == "dropped" and self._last.get(server) == said:
            return None
        if server in self._last or len(self._last) < MOST_NAMES:
            self._last[server] = said
        return f"{_clock(told.get('at'))}  {server[:LONGEST]:{self._room}}  {said}"


def said_of(told: Told) -> str:
    match told.get("event"):
        case "connected":
            return f"connected ({told.get('era')}, {told.get('protocol_version')})"
        case "disconnected":
            return f"connection ended: {told.get('reason')}"
        case "joined":
            attempt = told.get("attempt")
            return "ready" if attempt in (None, 1) else f"ready, at attempt {attempt}"
        case "dropped":
            return f"not there: {_why(told)}"
        case "left":
            return f"closed: {_why(told)}" if told.get("error") else "closed"
        case "healthchanged":
            why = f": {_why(told)}" if told.get("error") else ""
            return f"{told.get('before')}, now {told.get('health')}{why}"
        case "changed":
            return f"says that its {told.get('what')} changed {told.get('uri') or ''}".rstrip()
        case "cataloguechanged":
            return f"catalogue: {_changes(told)}"
        case "notice":
            return _notice(told)
        case _:
            return _of_a_call(told)


def _of_a_call(told: Told) -> str:
    tool, kind = told.get("tool"), told.get("event")
    if tool is None:
        return str(kind)
    match kind:
        case "started":
            return f"{tool}: called"
        case "progress":
            return f"{tool}: {share_of(told)} {told.get('message') or ''}".rstrip()
        case "log":
            return f"{tool}: {told.get('level')}: {_text(told.get('data'))}"
        case "replaying":
            failure = mapping(told.get("failure"))
            return f"{tool}: sent again: {failure.get('kind')}, {failure.get('message')}"
        case "completed":
            is_error = mapping(told.get("result")).get("isError")
            return f"{tool}: {'the tool reports an error' if is_error else 'answered'}"
        case "failed":
            return f"{tool}: failed: {mapping(told.get('error')).get('message')}"
        case _:
            return f"{tool}: {kind}"


def share_of(told: Told) -> str:
    fraction, progress = told.get("fraction"), told.get("progress")
    if isinstance(fraction, int | float):
        return f"{fraction:.0%}"
    return f"{progress:g}" if isinstance(progress, int | float) else ""


def mapping(found: object) -> Told:
    return cast("Told", found) if isinstance(found, Mapping) else {}


def _clock(at: object) -> str:
    try:
        return time.strftime("%H:%M:%S", time.localtime(float(cast("float", at))))
    except (TypeError, ValueError, OverflowError, OSError):
        return "--:--:--"


def _why(told: Told) -> str:
    return str(told.get("why") or mapping(told.get("error")).get("message") or "")


def _text(data: object) -> str:
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, default=str)


def _changes(told: Told) -> str:
    if told.get("stale"):
        return "out of reach; shown as it was"
    parts = [
        f"{sign}{name}"
        for kind in ("tools", "prompts", "resources", "templates")
        for sign, key in (("+", "added"), ("-", "removed"), ("~", "changed"))
        for name in _listed(mapping(mapping(told.get("changes")).get(kind)).get(key))
    ]
    return ", ".join(parts) or "as it was"


def _listed(found: object) -> list[Any]:
    return cast("list[Any]", found) if isinstance(found, list) else []


def _notice(told: Told) -> str:
    if told.get("method") != "notifications/message":
        return str(told.get("method"))
    params = mapping(told.get("params"))
    return f"{params.get('level', 'log')}: {_text(params.get('data', ''))}"
