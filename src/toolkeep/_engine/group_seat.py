"""One member's place in a group: what is true of it, who owns it now, and when it is tried again.

The seat is the only one that changes its member, in one step and without waiting, so that whoever
looks finds every view in agreement. It has at most one owner at a time. When an opening failed, or
a connection ended by itself, a timer opens it again; a timer and not a task, so that a group that
nobody closed keeps no event loop from ending.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from toolkeep._engine.group_health import Beat, Ping, ping_of, watch
from toolkeep._engine.group_owner import Owner
from toolkeep._engine.group_terms import (
    Connectable,
    Dropped,
    HealthChanged,
    Joined,
    Left,
    Terms,
)
from toolkeep._rules.budget import Backoff
from toolkeep._rules.membership import (
    Health,
    Member,
    MemberState,
    is_recoverable,
    wait_for_try,
)
from toolkeep.errors import ServerUnavailable
from toolkeep.events import Event

logger = logging.getLogger("toolkeep.group")

S = TypeVar("S", bound=Connectable)


@dataclass(frozen=True, slots=True)
class _Pulse:
    """The health checks of one owner's time."""

    ping: Ping
    interval: float
    terms: Terms
    tell: Callable[[Beat], None]
    doubted: asyncio.Event

    async def __call__(self) -> None:
        backoff = self.terms.backoff or Backoff()
        within = min(self.interval, self.terms.connect_timeout)
        await watch(self.ping, self.interval, within, backoff, self.tell, self.doubted)


class Seat(Generic[S]):
    """Belongs to one group; used by the operation that has its turn, and by its own timer."""

    def __init__(self, server: S, name: str, terms: Terms, tell: Callable[[Event], None]) -> None:
        self.member: Member[S] = Member(name, server)
        self._terms, self.tell = terms, tell
        self._owner: Owner | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tries = 0
        self._joined_at = 0.0
        self._doubted = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Seat {self.name!r}, {self.member.state.value}>"

    @property
    def name(self) -> str:
        return self.member.name

    @property
    def _is_held(self) -> bool:
        """Whether it is open, whatever became of its calls."""
        owner = self._owner
        opened = owner is not None and owner.outcome.done() and owner.outcome.result() is None
        return opened and owner is not None and not owner.is_released

    @property
    def is_idle(self) -> bool:
        """Nothing is open, and nothing will be opened by itself."""
        return self.member.state is MemberState.IDLE

    # -- opening --------------------------------------------------------------------------------

    async def attempt(self) -> BaseException | None:
        """Open it, unless it is open; one attempt, shared with the timer's. None: connected."""
        self.rest()
        if self.member.is_connected:
            return None
        if self._owner is not None and not self._owner.can_be_joined:
            if self._is_held:  # its calls fail: what is open is closed, and opened anew
                self._owner.release()
            await self._owner.over()
            self.rest()
        owner = self._owner
        if owner is not None and owner.can_be_joined:
            owner.attended = True
            return await self._outcome(owner)
        self._become(self.member.opening())
        if owner is not None:
            return self._give_up("what was opened before has not ended yet")
        return await self._outcome(self._begin(attended=True))

    def revive(self) -> None:
        """Open it in the background, if nothing is open."""
        if self.is_idle and self._owner is None:
            self._again()

    def unattended(self) -> None:
        """Whoever waited for the attempt has gone; it goes on by itself."""
        if self._owner is not None:
            self._owner.attended = False

    async def _outcome(self, owner: Owner) -> BaseException | None:
        if await owner.settled():
            return owner.outcome.result()
        owner.release()
        return self._give_up("it neither connects nor gives up")

    def _give_up(self, why: str) -> BaseException:
        error = ServerUnavailable(f"{self.name}: {why}", server=self.name)
        self._fail(error)
        return error

    def _begin(self, *, attended: bool) -> Owner:
        self._tries += 1
        ping, interval = ping_of(self.member.server), self._interval()
        server, terms = self.member.server, self._terms
        self._doubted = doubted = asyncio.Event()
        pulse = _Pulse(ping, interval, terms, self._checked, doubted) if ping and interval else None
        report_trouble = getattr(server, "report_trouble", None)
        if callable(report_trouble):
            report_trouble(self._reported)
        owner = Owner(server, self.name, terms, self, attended=attended, pulse=pulse)
        self._owner = owner
        owner.start()
        return owner

    def _interval(self) -> float | None:
        """Between two checks. A server's own wish wins, if health is checked at all."""
        wish = getattr(self.member.server, "health_interval", None)
        common = self._terms.health_interval
        return wish if common is not None and isinstance(wish, int | float) else common

    # -- by itself ------------------------------------------------------------------------------

    def _again(self) -> None:
        """The timer's turn."""
        self._timer = None
        self._become(self.member.opening())
        self._begin(attended=False)

    def _schedule(self) -> None:
        """Try again later, if it failed and that may change."""
        error, backoff = self.member.error, self._terms.backoff
        if error is None or backoff is None or not is_recoverable(error):
            return
        jitter = random.random()
        wait = wait_for_try(error, self._tries, backoff, slow=self._terms.slow, jitter=jitter)
        self._timer = asyncio.get_running_loop().call_later(wait, self._again)

    def rest(self) -> None:
        """No more openings by itself, until it fails again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- what its owner tells -------------------------------------------------------------------

    def settled(self, owner: Owner, error: BaseException | None) -> None:
        if owner.is_released or owner is not self._owner:
            return
        if error is not None:
            self._fail(error)
            return
        self._joined_at = asyncio.get_running_loop().time()
        self._become(self.member.opened(), Joined(server=self.name, attempt=self._tries))

    def lost(self, owner: Owner, error: BaseException) -> None:
        if owner is not self._owner or not (self.member.is_connected or self.member.is_failed):
            return
        lasted = asyncio.get_running_loop().time() - self._joined_at
        if self._terms.backoff is None or lasted > self._terms.backoff.cap:
            self._tries = 0
        self._fail(error)

    def ended(self, owner: Owner) -> None:
        if owner is not self._owner:
            return
        self._owner = None
        if owner.trouble is not None:
            logger.warning("%s: closing it failed: %r", self.name, owner.trouble)
        self._schedule()

    def _fail(self, error: BaseException) -> None:
        held = self.member.state is MemberState.FAILED  # open, but its calls fail
        failed = self.member.still_failing(error) if held else self.member.failing(error)
        self._become(failed, Dropped(server=self.name, error=error))

    def _checked(self, beat: Beat) -> None:
        if self.member.is_failed and self._is_held and beat.health is not Health.DOWN:
            self._become(self.member.opened().checked(beat.health, beat.error, beat.latency))
        elif self.member.is_connected:
            self._become(self.member.checked(beat.health, beat.error, beat.latency))

    def _reported(self, error: BaseException | None) -> None:
        """Calls fail, or are answered again. It stays open: a client replaces its connections."""
        if not self._is_held:
            return
        if error is not None and self.member.is_connected:
            self._become(self.member.failing(error))
            self._doubted.set()
        elif error is None and self.member.is_failed:
            self._become(self.member.opened())

    def _become(self, member: Member[S], event: Event | None = None) -> None:
        before, self.member = self.member.health, member
        if event is not None:
            self.tell(event)
        if member.health is not before:
            changed = HealthChanged(
                server=self.name,
                health=member.health,
                before=before,
                error=member.last_error if member.is_troubled else None,
                latency=member.latency,
            )
            self.tell(changed)

    # -- closing --------------------------------------------------------------------------------

    async def close(self) -> BaseException | None:
        """Close what is open, within the bound. What closing it met is the answer."""
        self.rest()
        self._tries = 0
        if self.is_idle:
            return None
        self._become(self.member.closing())
        trouble = await self._vacate()
        self._become(self.member.closed(trouble), Left(server=self.name, error=trouble))
        return trouble

    async def _vacate(self) -> BaseException | None:
        owner = self._owner
        if owner is None:
            return None
        owner.release()
        if await owner.over():
            return owner.trouble
        # Its task stays behind: it takes no notice of being cancelled.
        error = ServerUnavailable(f"{self.name}: it does not close", server=self.name)
        logger.warning("%s", error)
        return error

    def forget(self) -> None:
        """Its event loop is gone, and all that was open in it."""
        self._owner = self._timer = None
        self._tries = 0
        self.member = Member(self.name, self.member.server)
