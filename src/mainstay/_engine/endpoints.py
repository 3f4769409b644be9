"""The addresses of one server, and which of them a request goes to.

Each address has a keeper, and so a session, of its own; a session never leaves its address. The one
that leads is asked whatever is not a call: lists, signs of life, what the server says by itself. A
call goes to the leader, too, while that keeps a session in which the server may remember something;
otherwise to the address that has the least to do. An address whose breaker is open is left alone
until it may be tried again. Whether a call that failed may go elsewhere is not decided here but by
the rules of recovery, like every other replay.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from mainstay.config import redact_url

if TYPE_CHECKING:
    from mainstay._engine.core import Core
    from mainstay._engine.ground import Ground
    from mainstay._engine.keeper import Keeper
    from mainstay.auth import Authorizer


class Endpoints:
    """The keepers of one client, for as long as it lives. Most servers have one address."""

    def __init__(self, balance: Literal["session", "call"], keepers: Iterable[Keeper]) -> None:
        self.keepers, self._balance = tuple(keepers), balance
        self._only = self.keepers[0] if len(self.keepers) == 1 else None
        # In an order of its own, or many processes would all begin with the same address.
        self._order = random.sample(self.keepers, len(self.keepers))
        self.leader = min(self._order, key=lambda each: (each.ground.busy, each.ground.sent))
        """Who is asked whatever is not a call."""

    @classmethod
    def of(cls, core: Core, headers: Mapping[str, str], auth: Authorizer | None) -> Self:
        """Those of a client. Making them does no I/O."""
        from mainstay._engine.keeper import Keeper

        specs = core.spec.each
        grounds = core.setup.grounds or (None,) * len(specs)
        return cls(
            core.spec.balance,
            [
                Keeper(core, spec, ground, headers=headers, auth=auth)
                for spec, ground in zip(specs, grounds, strict=True)
            ],
        )

    async def aclose(self, *, for_good: bool) -> None:
        for keeper in self.keepers:
            keeper.terminate = True if for_good else keeper.terminate
        if self._only is not None:
            await self._only.aclose()
        else:
            await asyncio.gather(*(keeper.aclose() for keeper in self.keepers))

    def abandon(self) -> None:
        for keeper in self.keepers:
            keeper.abandon()

    async def settled(self) -> None:
        """Wait until no opening is under way."""
        for keeper in self.keepers:
            await keeper.settled()

    @property
    def epoch(self) -> int:
        """Another number whenever the client was closed."""
        return self._only.epoch if self._only else sum(each.epoch for each in self.keepers)

    def choose(
        self, now: float, tried: Collection[Keeper], *, call: bool, last: Keeper | None
    ) -> Keeper:
        """Who sends the next attempt. `last`: who sent what this one continues."""
        if self._only is not None:
            return self._only
        if last is not None and last not in tried and _admits(last, now):
            return last
        leader = self._lead(now, tried)
        return self._least(now, tried) if call and self._spreads(leader) else leader

    def elsewhere(self, now: float, tried: Collection[Keeper]) -> bool:
        """Whether an address is left that was not tried, and is not known to be down."""
        if self._only is not None:
            return False
        return any(_admits(each, now) for each in self.keepers if each not in tried)

    def _lead(self, now: float, tried: Collection[Keeper]) -> Keeper:
        """The leader, or another in its place if it cannot be it now."""
        leader = self.leader
        if leader not in tried and _admits(leader, now):
            return leader
        found = self._least(now, tried)
        if leader.connection is None or not _admits(leader, now):
            self.leader = found
            found.listen()
        return found

    def _spreads(self, leader: Keeper) -> bool:
        """Whether no session has to be kept together."""
        stateless = leader.agreement is not None and leader.session_id is None
        return self._balance == "call" or stateless

    def _least(self, now: float, tried: Collection[Keeper]) -> Keeper:
        """Of those that were not tried and may be asked; if there is none, of the others."""

        def rank(each: Keeper) -> tuple[bool, bool, int, int]:
            ground = each.ground
            return each in tried, not _admits(each, now), ground.busy, ground.sent

        return min(self._order, key=rank)


def _admits(keeper: Keeper, now: float) -> bool:
    return keeper.ground.breaker.would_admit(now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One address of a server, at the moment of asking."""

    url: str
    """Without its secrets."""
    in_flight: int
    attempts: int
    """Requests that were sent there, or should have been."""
    faults: int
    """How many of them the transport failed."""
    resting: bool
    """Whether it is left alone after too many faults in a row."""


def endpoint_of(ground: Ground, now: float) -> Endpoint:
    return Endpoint(
        url=redact_url(ground.spec.url),
        in_flight=ground.busy,
        attempts=ground.sent,
        faults=ground.faults,
        resting=not ground.breaker.would_admit(now),
    )
