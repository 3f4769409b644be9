"""The servers of a group: state, health, and when each is opened or checked again.

A `Member` is a frozen record; every view of a group is computed from one tuple of members, so
views cannot disagree. A member's state says whether it can be used, its health what its last check
or call showed. This module defines what is legal and does no I/O.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Generic, TypeVar

from toolkeep._rules.backoff import Backoff
from toolkeep._rules.states import IllegalTransition
from toolkeep.errors import AuthNeeded, Delivery, ToolkeepError
from toolkeep.events import Health

MAX_RETRY_AFTER = 300.0
"""Seconds. A longer Retry-After is cut to this before a member is opened again."""

ServerT = TypeVar("ServerT")


class MemberState(enum.Enum):
    """State of a member of a group."""

    IDLE = "idle"
    OPENING = "opening"
    CONNECTED = "connected"
    FAILED = "failed"
    """Opening failed, or its calls fail."""
    RECONNECTING = "reconnecting"
    """Being opened again after a failure; counts as failed until that succeeds."""
    CLOSING = "closing"


_AFTER_OPENING = {MemberState.CONNECTED, MemberState.FAILED, MemberState.CLOSING}

MEMBER_TRANSITIONS: Mapping[MemberState, frozenset[MemberState]] = MappingProxyType(
    {
        MemberState.IDLE: frozenset({MemberState.OPENING}),
        MemberState.OPENING: frozenset(_AFTER_OPENING),
        MemberState.CONNECTED: frozenset({MemberState.FAILED, MemberState.CLOSING}),
        MemberState.FAILED: frozenset(
            {MemberState.RECONNECTING, MemberState.CONNECTED, MemberState.CLOSING}
        ),
        MemberState.RECONNECTING: frozenset(_AFTER_OPENING),
        MemberState.CLOSING: frozenset({MemberState.IDLE}),
    }
)


@dataclass(frozen=True, slots=True)
class Member(Generic[ServerT]):
    """One server of a group, at one moment. Changes return a new record."""

    name: str
    server: ServerT = field(repr=False)
    state: MemberState = MemberState.IDLE
    error: BaseException | None = None
    """Why it is not connected; only while it counts as failed."""
    health: Health = Health.UNKNOWN
    last_error: BaseException | None = None
    """The last error in opening, closing or a check, however long ago."""
    latency: float | None = None
    """Seconds that its last check took."""
    health_since: float | None = None
    """Since when its health is what it is (seconds since the epoch); None: from the beginning."""

    @property
    def is_connected(self) -> bool:
        return self.state is MemberState.CONNECTED

    @property
    def is_failed(self) -> bool:
        return self.state in (MemberState.FAILED, MemberState.RECONNECTING)

    @property
    def is_unhealthy(self) -> bool:
        return self.health in (Health.DOWN, Health.NEEDS_AUTHORIZATION)

    # -- transitions ---------------------------------------------------------------------------

    def opening(self) -> Member[ServerT]:
        """OPENING, or RECONNECTING after a failure."""
        return self._moved(MemberState.RECONNECTING if self.is_failed else MemberState.OPENING)

    def opened(self) -> Member[ServerT]:
        moved = self._moved(MemberState.CONNECTED)
        return replace(moved, error=None, health=Health.HEALTHY)

    def failing(self, error: BaseException) -> Member[ServerT]:
        moved = self._moved(MemberState.FAILED)
        health = health_after(error)
        health = Health.DOWN if health is Health.HEALTHY else health
        return replace(moved, error=error, last_error=error, health=health, latency=None)

    def still_failing(self, error: BaseException) -> Member[ServerT]:
        """The same state with a new error."""
        assert self.is_failed
        return replace(self, error=error, last_error=error)

    def closing(self) -> Member[ServerT]:
        return replace(self._moved(MemberState.CLOSING), error=None, health=Health.UNKNOWN)

    def closed(self, error: BaseException | None = None) -> Member[ServerT]:
        moved = self._moved(MemberState.IDLE)
        return replace(moved, last_error=error or self.last_error, latency=None)

    def checked(
        self, health: Health, error: BaseException | None, latency: float | None
    ) -> Member[ServerT]:
        """With the result of a check. Only a connected member is checked."""
        assert self.is_connected
        last = error or self.last_error
        return replace(self, health=health, last_error=last, latency=latency)

    def _moved(self, to: MemberState) -> Member[ServerT]:
        if to not in MEMBER_TRANSITIONS[self.state]:
            raise IllegalTransition(self.state, to)
        return replace(self, state=to)


# -- views --------------------------------------------------------------------------------------


def configured_servers(members: Sequence[Member[ServerT]]) -> list[ServerT]:
    return [member.server for member in members]


def connected_servers(members: Sequence[Member[ServerT]]) -> list[ServerT]:
    return [member.server for member in members if member.is_connected]


def failed_servers(members: Sequence[Member[ServerT]]) -> list[ServerT]:
    return [member.server for member in members if member.is_failed]


def active_servers(members: Sequence[Member[ServerT]], *, drop_failed: bool) -> list[ServerT]:
    return connected_servers(members) if drop_failed else configured_servers(members)


def errors_by_server(members: Sequence[Member[ServerT]]) -> dict[ServerT, BaseException]:
    return {member.server: member.error for member in members if member.error is not None}


def health_summary(members: Sequence[Member[ServerT]]) -> str:
    healthy = sum(member.health is Health.HEALTHY for member in members)
    return f"{healthy}/{len(members)} servers healthy"


# -- errors -------------------------------------------------------------------------------------


def is_recoverable(error: BaseException) -> bool:
    """Whether the failure concerns one server, unlike a cancellation or KeyboardInterrupt."""
    return isinstance(error, Exception)


def health_after(error: BaseException) -> Health:
    """Health after a failed check. A server that responds, even with an error, is alive."""
    if isinstance(error, AuthNeeded):
        return Health.NEEDS_AUTHORIZATION
    if isinstance(error, ToolkeepError):
        if error.status in (401, 403):
            return Health.NEEDS_AUTHORIZATION
        if error.delivery is Delivery.ANSWERED:
            return Health.HEALTHY
    return Health.DOWN


def member_retry_delay(
    error: BaseException, tries: int, backoff: Backoff, *, slow: float, jitter: float
) -> float:
    """Seconds until a member is opened again after `tries` failures.

    Only a person can authorize, so a member without authorization is tried every `slow` seconds,
    like health checks: a burst of bad credentials could lock an account.
    """
    if health_after(error) is Health.NEEDS_AUTHORIZATION:
        return slow * (0.5 + 0.5 * jitter)
    wish = error.retry_after if isinstance(error, ToolkeepError) else None
    return max(backoff.delay(tries, jitter), min(wish or 0.0, MAX_RETRY_AFTER))


def health_check_delay(
    health: Health, misses: int, backoff: Backoff, *, interval: float, jitter: float
) -> float:
    """Seconds until the next health check: sooner after a failed one."""
    regular = interval * (0.9 + 0.2 * jitter)
    if health is not Health.DOWN:
        return regular
    return min(regular, backoff.delay(misses, jitter))
