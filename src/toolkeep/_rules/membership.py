"""What is true of the members of a group: their states, the legal moves, and all views of them.

A `Member` is a frozen record. A group shows nothing but what is computed here from one tuple of
them, in configured order, so no two views can disagree. State and health are two questions: the
state says whether a member can be used (it was opened, it failed to open, its calls fail), the
health what its last sign of life was. A member whose calls fail is among the failed until one is
answered, or a check; what it has open stays open, since a client replaces its own connections. One
that merely misses a check stays connected. This module only says what is legal; it opens, closes
and pings nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Generic, TypeVar

from toolkeep._rules.budget import Backoff
from toolkeep._rules.lifecycle import IllegalMove
from toolkeep.errors import AuthNeeded, Delivery, ToolkeepError

__all__ = [
    "MEMBER_LEGAL",
    "Health",
    "Member",
    "MemberState",
    "active",
    "configured",
    "connected",
    "errors",
    "failed",
    "health_after",
    "is_recoverable",
    "summary",
    "wait_for_check",
    "wait_for_try",
]

S = TypeVar("S")

LONGEST_WISH = 300.0
"""Seconds of a server's Retry-After that we obey; whoever asks for more is asked again."""


class MemberState(enum.Enum):
    """Where a member stands in its group."""

    IDLE = "idle"
    OPENING = "opening"
    CONNECTED = "connected"
    FAILED = "failed"
    """It could not be opened, or its calls fail."""
    RETRYING = "retrying"
    """Failed, and being opened again: it stays among the failed until that has succeeded."""
    CLOSING = "closing"


class Health(enum.Enum):
    """What a member's last sign of life said."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    DOWN = "down"
    NEEDS_AUTHORIZATION = "needs authorization"


_WAYS_OUT = {MemberState.CONNECTED, MemberState.FAILED, MemberState.CLOSING}

MEMBER_LEGAL: Mapping[MemberState, frozenset[MemberState]] = MappingProxyType(
    {
        MemberState.IDLE: frozenset({MemberState.OPENING}),
        MemberState.OPENING: frozenset(_WAYS_OUT),
        MemberState.CONNECTED: frozenset({MemberState.FAILED, MemberState.CLOSING}),
        MemberState.FAILED: frozenset(
            {MemberState.RETRYING, MemberState.CONNECTED, MemberState.CLOSING}
        ),
        MemberState.RETRYING: frozenset(_WAYS_OUT),
        MemberState.CLOSING: frozenset({MemberState.IDLE}),
    }
)


@dataclass(frozen=True, slots=True)
class Member(Generic[S]):
    """One server of a group, as it is now."""

    name: str
    server: S = field(repr=False)
    state: MemberState = MemberState.IDLE
    error: BaseException | None = None
    """Why it is not connected; only while it is among the failed."""
    health: Health = Health.UNKNOWN
    last_error: BaseException | None = None
    """What went wrong last, however long ago: in opening, in closing, or in a check."""
    latency: float | None = None
    """Seconds that its last sign of life took."""

    @property
    def is_connected(self) -> bool:
        return self.state is MemberState.CONNECTED

    @property
    def is_failed(self) -> bool:
        return self.state in (MemberState.FAILED, MemberState.RETRYING)

    @property
    def is_troubled(self) -> bool:
        return self.health in (Health.DOWN, Health.NEEDS_AUTHORIZATION)

    # -- moves ----------------------------------------------------------------------------------

    def opening(self) -> Member[S]:
        """Being opened: for the first time, or once more."""
        return self._moved(MemberState.RETRYING if self.is_failed else MemberState.OPENING)

    def opened(self) -> Member[S]:
        moved = self._moved(MemberState.CONNECTED)
        return replace(moved, error=None, health=Health.HEALTHY)

    def failing(self, error: BaseException) -> Member[S]:
        moved = self._moved(MemberState.FAILED)
        health = health_after(error)
        health = Health.DOWN if health is Health.HEALTHY else health
        return replace(moved, error=error, last_error=error, health=health, latency=None)

    def still_failing(self, error: BaseException) -> Member[S]:
        """Among the failed, for another reason than before."""
        assert self.is_failed
        return replace(self, error=error, last_error=error)

    def closing(self) -> Member[S]:
        return replace(self._moved(MemberState.CLOSING), error=None, health=Health.UNKNOWN)

    def closed(self, trouble: BaseException | None = None) -> Member[S]:
        moved = self._moved(MemberState.IDLE)
        return replace(moved, last_error=trouble or self.last_error, latency=None)

    def checked(
        self, health: Health, error: BaseException | None, latency: float | None
    ) -> Member[S]:
        """After a check. Only a connected member is checked."""
        assert self.is_connected
        last = error or self.last_error
        return replace(self, health=health, last_error=last, latency=latency)

    def _moved(self, to: MemberState) -> Member[S]:
        if to not in MEMBER_LEGAL[self.state]:
            raise IllegalMove(self.state, to)
        return replace(self, state=to)


# -- views --------------------------------------------------------------------------------------


def configured(members: Sequence[Member[S]]) -> list[S]:
    return [member.server for member in members]


def connected(members: Sequence[Member[S]]) -> list[S]:
    return [member.server for member in members if member.is_connected]


def failed(members: Sequence[Member[S]]) -> list[S]:
    return [member.server for member in members if member.is_failed]


def active(members: Sequence[Member[S]], *, drop_failed: bool) -> list[S]:
    return connected(members) if drop_failed else configured(members)


def errors(members: Sequence[Member[S]]) -> dict[S, BaseException]:
    return {member.server: member.error for member in members if member.error is not None}


def summary(members: Sequence[Member[S]]) -> str:
    healthy = sum(member.health is Health.HEALTHY for member in members)
    return f"{healthy}/{len(members)} servers healthy"


# -- what an error means ------------------------------------------------------------------------


def is_recoverable(error: BaseException) -> bool:
    """Whether it is a failure of one server, and not the end of something larger."""
    return isinstance(error, Exception)


def health_after(error: BaseException) -> Health:
    """What a failed sign of life says. Whoever answers, if only with "no", is alive."""
    if isinstance(error, AuthNeeded):
        return Health.NEEDS_AUTHORIZATION
    if isinstance(error, ToolkeepError):
        if error.status in (401, 403):
            return Health.NEEDS_AUTHORIZATION
        if error.delivery is Delivery.ANSWERED:
            return Health.HEALTHY
    return Health.DOWN


def wait_for_try(
    error: BaseException, tries: int, backoff: Backoff, *, slow: float, jitter: float
) -> float:
    """Seconds until a member is opened again after `tries` failures.

    Only a human can authorize, so that is tried at the `slow` pace of health checks: a burst of
    bad credentials gets accounts locked.
    """
    if health_after(error) is Health.NEEDS_AUTHORIZATION:
        return slow * (0.5 + 0.5 * jitter)
    wish = error.retry_after if isinstance(error, ToolkeepError) else None
    return max(backoff.delay(tries, jitter), min(wish or 0.0, LONGEST_WISH))


def wait_for_check(
    health: Health, misses: int, backoff: Backoff, *, interval: float, jitter: float
) -> float:
    """Seconds until the next sign of life is asked for: sooner when the last one was missed."""
    regular = interval * (0.9 + 0.2 * jitter)
    if health is not Health.DOWN:
        return regular
    return min(regular, backoff.delay(misses, jitter))
