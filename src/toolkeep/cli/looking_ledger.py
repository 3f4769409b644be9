"""What events say of servers and calls, added up. Pure: told from outside what happened.

The events are another program's word and may be anything. Nothing grows without a bound: of too
many calls at once the oldest are forgotten, as if they had ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from toolkeep.cli.looking_events import Told, mapping, share_of
from toolkeep.cli.screen import one_line

MOST_CALLS, MOST_SERVERS = 1000, 200

HEADS = ("server", "era", "state", "running", "calls", "errors", "outcome unknown")


@dataclass
class Server:
    era: str = ""
    state: str = ""
    calls: int = 0
    errors: int = 0
    unknown: int = 0
    """Errors of which nobody knows whether the tool ran."""


@dataclass
class Running:
    server: str
    tool: str
    since: float
    share: str = ""
    fraction: float | None = None
    message: str = ""


@dataclass
class Ledger:
    servers: dict[str, Server] = field(default_factory=dict[str, Server])
    running: dict[str, Running] = field(default_factory=dict[str, Running])

    def take(self, told: Told) -> None:
        name = one_line(str(told.get("server") or ""))
        if not name or (name not in self.servers and len(self.servers) >= MOST_SERVERS):
            return
        server = self.servers.setdefault(name, Server())
        match told.get("event"):
            case "connected":
                server.era, server.state = one_line(str(told.get("era") or "")), "connected"
            case "disconnected":
                server.state = "closed" if told.get("asked") else "connection lost"
            case "dropped":
                server.state = "down"
            case "healthchanged":
                server.state = one_line(str(told.get("health") or ""))
            case _:
                self._take_call(name, server, told)

    def rows(self) -> list[tuple[str, ...]]:
        return [
            (name, one.era, one.state, *map(str, self._numbers(name, one)))
            for name, one in self.servers.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        servers = [
            {"name": name, "running": self._numbers(name, one)[0], **vars(one)}
            for name, one in self.servers.items()
        ]
        return {"servers": servers, "running": [dict(vars(one)) for one in self.running.values()]}

    def summary(self) -> str:
        calls, errors, unknown = (
            sum(getattr(one, what) for one in self.servers.values())
            for what in ("calls", "errors", "unknown")
        )
        parts = f"{len(self.servers)} servers, {calls} calls ({len(self.running)} running)"
        return f"{parts}, {errors} errors, {unknown} with unknown outcome"

    def _numbers(self, name: str, one: Server) -> tuple[int, ...]:
        running = sum(call.server == name for call in self.running.values())
        return running, one.calls, one.errors, one.unknown

    def _take_call(self, name: str, server: Server, told: Told) -> None:
        id_, kind = str(told.get("call_id")), told.get("event")
        if kind == "started":
            server.calls += 1
            tool = one_line(str(told.get("tool")))
            self.running[id_] = Running(name, tool, _number(told.get("at")) or 0.0)
            if len(self.running) > MOST_CALLS:
                del self.running[next(iter(self.running))]
        elif kind == "progress" and id_ in self.running:
            call = self.running[id_]
            call.share, call.fraction = share_of(told), _number(told.get("fraction"))
            call.message = one_line(str(told.get("message") or ""))
        elif kind == "completed":
            self.running.pop(id_, None)
            server.errors += bool(mapping(told.get("result")).get("isError"))
        elif kind == "failed":
            self.running.pop(id_, None)
            server.errors += 1
            server.unknown += mapping(told.get("error")).get("delivery") == "unknown"


def _number(found: object) -> float | None:
    if not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return float(found)
