"""What a group asks of its servers, what it grants them, and what it tells of them."""

from __future__ import annotations

import math
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Protocol

from toolkeep._rules.budget import Backoff
from toolkeep._rules.membership import Health
from toolkeep.errors import ConfigError
from toolkeep.events import Event

GRACE = 1.0
"""Seconds beyond a timeout after which a server that ignores its cancellation is left to itself."""


class Connectable(Protocol):
    """Anything that can be opened and closed. After a failed or cancelled `connect`, and only once
    for each, `cleanup` is called in the same task and closes whatever was opened by then.

    A `name` tells it from others. A `connect_timeout` asks for more time than the group gives. With
    a `ping`, which may return the seconds it took, its health is checked; a `ping` must use the
    session there is. With a `report_trouble`, which is given a function, it tells why its calls
    fail (an error) or that they are answered again (None): then it is among the failed meanwhile.
    """

    def connect(self) -> Awaitable[Any]: ...

    def cleanup(self) -> Awaitable[Any]: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a group waits, and how it takes what happens. The same for all members."""

    connect_timeout: float
    cleanup_timeout: float
    health_interval: float | None
    """None: health is not checked."""
    backoff: Backoff | None
    """None: who failed is only opened again when somebody asks for it."""
    suppress_cancelled: bool

    def __post_init__(self) -> None:
        self._check("connect_timeout", self.connect_timeout)
        self._check("cleanup_timeout", self.cleanup_timeout)
        if self.health_interval is not None:
            self._check("health_interval", self.health_interval)

    def _check(self, key: str, seconds: Any) -> None:
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not (number and 0 < seconds < math.inf):
            remedy = "Every wait of a group has a bound"
            raise ConfigError("it is no positive number of seconds", remedy=remedy, key=key)

    def connect_within(self, server: object) -> float:
        """A server may ask for more time than the others: a program that is downloaded first."""
        wish: object = getattr(server, "connect_timeout", None)
        if not isinstance(wish, int | float) or isinstance(wish, bool):
            return self.connect_timeout
        return max(float(wish), self.connect_timeout)

    @property
    def slow(self) -> float:
        """Seconds between two tries where haste does harm."""
        return self.health_interval or 60.0


@dataclass(frozen=True, kw_only=True, match_args=False)
class Joined(Event):
    """A member is connected: it was opened with the others, or came back by itself."""

    attempt: int
    """How often it was tried, this time included."""


@dataclass(frozen=True, kw_only=True, match_args=False)
class Dropped(Event):
    """A member could not be opened, or its connection ended by itself."""

    error: BaseException

    __match_args__ = ("error",)


@dataclass(frozen=True, kw_only=True, match_args=False)
class Left(Event):
    """A member was closed because it was asked to."""

    error: BaseException | None = None
    """What went wrong in closing it."""

    __match_args__ = ("error",)


@dataclass(frozen=True, kw_only=True, match_args=False)
class HealthChanged(Event):
    """A member's health is not what it was."""

    health: Health
    before: Health
    error: BaseException | None = None
    latency: float | None = None

    __match_args__ = ("health", "before")
