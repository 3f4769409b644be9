"""`ServerGroup`: the lifecycle of many servers, whatever they are.

A group opens, closes, watches and replaces; calls go to the servers themselves. Everything it shows
is computed from one tuple of members, in configured order. Its operations take turns. One that
opens is undone when it cannot succeed or is cancelled; one that closes goes on even when whoever
asked for it is gone. Closing does not wait for an opening under way: it has it undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from toolkeep._engine.group_moves import close_all, open_all
from toolkeep._engine.group_seat import Seat
from toolkeep._engine.group_terms import Connectable, Terms
from toolkeep._engine.group_turns import Confirmed, Turns, UndoableWork
from toolkeep._engine.observing import Observation, Observers
from toolkeep._rules import membership
from toolkeep._rules.budget import Backoff
from toolkeep._rules.membership import Member
from toolkeep.errors import ConfigError, ServerUnavailable, UnknownServer
from toolkeep.events import Event, Observer

S = TypeVar("S", bound=Connectable)

_BACKOFF = Backoff(first=0.5, cap=30.0)


class ServerGroup(Generic[S]):
    """Many servers, of which some may fail. May be used from any task of one event loop; once
    closed, also in another.

    `servers`: anything with `connect()` and `cleanup()`; see `Connectable`. Not `strict`: who fails
    is recorded, and tried again in the background, with `backoff` (None: only by `reconnect`).
    `strict`: one failure undoes the attempt and is raised. `suppress_cancelled`: a `CancelledError`
    that a server's library made by itself is a failure of that server; if False, it is raised.
    """

    def __init__(
        self,
        servers: Iterable[S] = (),
        *,
        strict: bool = False,
        drop_failed: bool = True,
        parallel: bool = True,
        connect_timeout: float = 10.0,
        cleanup_timeout: float = 10.0,
        health_interval: float | None = 60.0,
        backoff: Backoff | None = _BACKOFF,
        suppress_cancelled: bool = True,
    ) -> None:
        self._strict, self._drop_failed, self._parallel = strict, drop_failed, parallel
        self._terms = Terms(
            connect_timeout=connect_timeout,
            cleanup_timeout=cleanup_timeout,
            health_interval=health_interval,
            backoff=backoff,
            suppress_cancelled=suppress_cancelled,
        )
        self._observers = Observers("group")
        self._is_open = False
        self._turns = Turns(self._is_idle, self._forget)
        self._seats: tuple[Seat[S], ...] = ()
        for server in servers:
            self._seats = (*self._seats, self._new_seat(server, self._seats))

    def __repr__(self) -> str:
        return f"<ServerGroup {self.summary()}>"

    # -- what is true now -----------------------------------------------------------------------

    @property
    def members(self) -> tuple[Member[S], ...]:
        """All of them as they are now; whatever else the group shows is computed from this."""
        return tuple(seat.member for seat in self._seats)

    @property
    def configured(self) -> list[S]:
        return membership.configured(self.members)

    @property
    def connected(self) -> list[S]:
        return membership.connected(self.members)

    @property
    def failed(self) -> list[S]:
        """Those that could not be opened; also while they are being tried again."""
        return membership.failed(self.members)

    @property
    def active(self) -> list[S]:
        """Those to give to an agent: the connected, or all when `drop_failed` is False."""
        return membership.active(self.members, drop_failed=self._drop_failed)

    @property
    def errors(self) -> dict[S, BaseException]:
        """Why each of the failed is not connected."""
        return membership.errors(self.members)

    def status(self, name: str) -> Member[S]:
        """One member: state, health, last error, latency."""
        return self._find(name).member

    def summary(self) -> str:
        """`"14/20 servers healthy"`."""
        return membership.summary(self.members)

    def observe(self, observer: Observer) -> Observation:
        """Have `observer` called with `Joined`, `Dropped`, `Left` and `HealthChanged`, until the
        handle is closed."""
        return self._observers.add(observer, listen=False)

    # -- opening and closing --------------------------------------------------------------------

    async def connect_all(self) -> list[S]:
        """Open all that are not connected; returns the active ones."""
        await self._undoably(self._connect_all)
        return self.active

    async def reconnect(self, *, failed_only: bool = True) -> list[S]:
        """Try the failed once more now, or close and open all; returns the active ones."""
        await self._undoably(self._connect_failed if failed_only else self._rebuild)
        return self.active

    async def cleanup_all(self) -> None:
        """Close all, the last one first, whatever goes wrong. May be called twice."""
        self._turns.undo_all()
        await self._turns.to_the_end(self._cleanup_all, letting_go=True)

    async def __aenter__(self) -> Self:
        await self.connect_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.cleanup_all()

    # -- coming and going -----------------------------------------------------------------------

    async def add(self, server: S) -> Member[S]:
        """One more, at the end; opened at once if the group is open."""
        added: list[Seat[S]] = []

        async def work(confirmed: Confirmed) -> None:
            seat = self._new_seat(server, self._seats)
            added.append(seat)
            self._seats = (*self._seats, seat)
            try:
                await self._open_new(seat, confirmed)
            except BaseException:
                self._drop(seat)
                raise

        await self._undoably(work, required=True)
        return added[0].member

    async def remove(self, name: str) -> None:
        """One less: closed, then forgotten. The others are not touched."""

        async def work() -> None:
            seat = self._find(name)
            try:
                await close_all([seat])
            finally:
                self._drop(seat)

        await self._turns.to_the_end(work)

    async def replace(self, name: str, server: S) -> Member[S]:
        """Another in the place of this one. The new one is opened before the old one is closed; in
        a strict group the old one stays when that fails. Nothing else is touched."""
        added: list[Seat[S]] = []

        async def work(_: Confirmed) -> None:
            old = self._find(name)
            others = [each for each in self._seats if each is not old]
            seat = self._new_seat(server, others, otherwise=name)
            told: list[Event] = []
            seat.tell = told.append  # it is no member yet
            await self._open_new(seat)
            added.append(seat)
            self._seats = tuple(seat if each is old else each for each in self._seats)
            seat.tell = self._observers.tell
            for event in told:
                seat.tell(event)
            await close_all([old])

        await self._undoably(work, required=True)
        return added[0].member

    # -- the operations, in their turn ----------------------------------------------------------

    async def _connect_all(self, confirmed: Confirmed) -> None:
        was_open, self._is_open = self._is_open, True
        try:
            await self._open(self._seats, confirmed)
        except BaseException:
            self._is_open = was_open
            raise

    async def _connect_failed(self, _: Confirmed) -> None:
        await self._open([seat for seat in self._seats if seat.member.is_failed])

    async def _rebuild(self, _: Confirmed) -> None:
        wanted = [seat for seat in self._seats if not seat.is_idle]
        was_open, self._is_open = self._is_open, True
        try:
            await close_all(self._seats)
            await self._open(self._seats, keep=wanted)
        except BaseException:
            self._is_open = was_open
            for seat in wanted:
                seat.revive()
            raise

    async def _cleanup_all(self) -> None:
        self._is_open = False
        await close_all(self._seats)

    async def _open_new(self, seat: Seat[S], confirmed: Confirmed | None = None) -> None:
        if self._is_open:
            await self._open([seat], confirmed)

    async def _open(
        self,
        seats: Sequence[Seat[S]],
        confirmed: Confirmed | None = None,
        keep: Sequence[Seat[S]] = (),
    ) -> None:
        parallel, strict = self._parallel, self._strict
        await open_all(seats, parallel=parallel, strict=strict, confirmed=confirmed, keep=keep)

    async def _undoably(self, work: UndoableWork, *, required: bool = False) -> None:
        """`required`: to have been undone is an error even where failures are none."""
        if not await self._turns.undoably(work) and (required or self._strict):
            raise ServerUnavailable("the group was closed while opening", server="group")

    # -- seats ----------------------------------------------------------------------------------

    def _new_seat(
        self, server: S, others: Sequence[Seat[S]], otherwise: str | None = None
    ) -> Seat[S]:
        """A seat for it, under its own name; `otherwise`: its name if it has none."""
        taken = [seat.name for seat in others]
        own = getattr(server, "name", None)
        name = own if isinstance(own, str) and own else otherwise or _invented(server, taken)
        if name in taken:
            remedy = "Give each server a name of its own"
            raise ConfigError("the group has this name already", remedy=remedy, server=name)
        if any(seat.member.server == server for seat in others):
            raise ConfigError("it is in the group already", remedy="Add it once", server=name)
        if getattr(server, "__hash__", None) is None:
            remedy = "Give its class a __hash__: `errors` is keyed by server"
            raise ConfigError("it cannot be a key", remedy=remedy, server=name)
        return Seat(server, name, self._terms, self._observers.tell)

    def _find(self, name: str) -> Seat[S]:
        for seat in self._seats:
            if seat.name == name:
                return seat
        known = ", ".join(seat.name for seat in self._seats) or "none"
        raise UnknownServer(f"the group has no server {name!r}; it has: {known}")

    def _drop(self, seat: Seat[S]) -> None:
        self._seats = tuple(each for each in self._seats if each is not seat)

    def _is_idle(self) -> bool:
        return all(seat.is_idle for seat in self._seats)

    def _forget(self) -> None:
        self._is_open = False
        for seat in self._seats:
            seat.forget()


def _invented(server: object, taken: Sequence[str]) -> str:
    kind, number = type(server).__name__.lower(), len(taken) + 1
    while f"{kind}-{number}" in taken:
        number += 1
    return f"{kind}-{number}"
