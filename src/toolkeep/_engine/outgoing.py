"""What a pursuit is given, and what it meets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkeep._engine.connection import Connection
from toolkeep._rules.recovery import Policy, is_stuck
from toolkeep._wire.attempt import Ask, Deliver
from toolkeep.errors import Failure


@dataclass(slots=True, kw_only=True)
class Outgoing:
    """What is to be sent, and what is known about it."""

    method: str
    """Empty: open, and send nothing."""
    params: dict[str, Any] | None
    timeout: float
    tool: str | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    policy: Policy = Policy.ALWAYS
    """Reads and lists may repeat freely; a tool's call brings its own policy."""
    repeatable: bool = True
    lenient: bool = False
    deliver: Deliver | None = None
    wants_progress: bool = False
    param_headers: Callable[[], Mapping[str, str]] | None = None
    """The `Mcp-Param-*` headers of a modern call, as the catalogue has them now."""
    relist: Callable[[], Awaitable[object]] | None = None
    ask: Ask | None = None
    on_replay: Callable[[int, float, Failure], None] | None = None
    replayed: int = 0
    """Replays that earlier requests have used up of a budget that is for all of them."""


@dataclass(slots=True)
class Setback:
    """An attempt that failed, before anything was decided about it."""

    failure: Failure
    connection: Connection | None
    """None: there was no connection to send it on."""
    auth_epoch: int
    """Which credentials it was sent with."""
    probe: bool = False
    """Whether it was the breaker's probe."""

    @property
    def stuck(self) -> bool:
        """Whether the server may no longer be able to serve the session that it was sent in."""
        connection = self.connection
        if connection is None or connection.wire.session_id is None:
            return False
        return is_stuck(connection.faults, probe=self.probe)
