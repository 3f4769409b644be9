"""The addresses of one server, and which of them a request goes to.

Each address has a keeper, and so a session, of its own; a session never leaves its address. The one
that leads is asked whatever is not a call: lists, signs of life, what the server says by itself. A
call goes to the leader, too, while that keeps a session in which the server may remember something;
otherwise to the address that has the least to do. Such a session is left only with its address, and
for good. An address that is down is left alone until it may be tried again. Whether a call that
failed may go elsewhere is not decided here but by the rules of recovery, like every other replay.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Literal, Self

from toolkeep._rules.recovery import Decision, Standing, decide
from toolkeep.config import redact_url
from toolkeep.errors import Delivery, FailureKind

if TYPE_CHECKING:
    from toolkeep._engine.connection import Connection
    from toolkeep._engine.core import Core
    from toolkeep._engine.ground import Ground
    from toolkeep._engine.keeper import Keeper
    from toolkeep._engine.outgoing import Setback
    from toolkeep._engine.renewing import Renewing
    from toolkeep.auth import Authorizer

_TURNS = itertools.count(1)


class Endpoints:
    """The keepers of one client, for as long as it lives. Most servers have one address."""

    def __init__(
        self,
        balance: Literal["session", "call"],
        keepers: Iterable[Keeper],
        renewing: Renewing,
        *,
        stored: bool,
    ) -> None:
        self.keepers, self._balance = tuple(keepers), balance
        self._only = self.keepers[0] if len(self.keepers) == 1 else None
        # In an order of its own, or many processes would all begin with the same address.
        self._order = random.sample(self.keepers, len(self.keepers))
        self.leader = self._order[0]
        """Who is asked whatever is not a call."""
        self._stored, self._renewing = stored, renewing
        self._recalling: asyncio.Task[None] | None = None
        if self._only is None:
            self.leader = self._given(self._least(monotonic(), ()))

    @classmethod
    def of(cls, core: Core, headers: Mapping[str, str], auth: Authorizer | None) -> Self:
        """Those of a client. Making them does no I/O."""
        from toolkeep._engine.keeper import Keeper
        from toolkeep._engine.renewing import Renewing

        renewing = Renewing(auth)
        specs = core.spec.each
        grounds = core.setup.grounds or (None,) * len(specs)
        shown = [redact_url(spec.url) for spec in specs] if len(specs) > 1 else [""]
        keepers = [
            Keeper(core, spec, ground, headers=headers, renewing=renewing, endpoint=url)
            for spec, ground, url in zip(specs, grounds, shown, strict=True)
        ]
        return cls(core.spec.balance, keepers, renewing, stored=core.setup.store is not None)

    async def aclose(self, *, for_good: bool) -> None:
        for keeper in self.keepers:
            keeper.terminate = True if for_good else keeper.terminate
        self._renewing.settle()
        if self._only is not None:
            await self._only.aclose()
            return
        recalling, self._recalling = self._recalling, None
        await asyncio.gather(*(keeper.aclose() for keeper in self.keepers))
        if recalling is not None and not recalling.done():
            recalling.cancel()
            await asyncio.wait((recalling,))

    def abandon(self) -> None:
        for keeper in self.keepers:
            keeper.abandon()
        self._renewing.settle()
        self._recalling = None

    async def settled(self) -> None:
        """Wait until no opening is under way."""
        for keeper in self.keepers:
            await keeper.settled()

    def check(self) -> None:
        """Raises `WrongLoop`."""
        for keeper in self.keepers:
            keeper.home.check()

    def bind(self, headers: Mapping[str, str]) -> None:
        """All sessions of a client belong to one principal, at whichever address they are."""
        for keeper in self.keepers:
            keeper.belonging.bind(headers)

    @property
    def epoch(self) -> int:
        """Another number whenever the client was closed."""
        return self._only.epoch if self._only else sum(each.epoch for each in self.keepers)

    # -- sessions that were left ----------------------------------------------------------------

    async def recall(self) -> None:
        """Have the address lead at which a session was left that can be taken up, if there is one.
        Asked once, whoever waits for it."""
        if self._only is not None or not self._stored:
            return
        if self._recalling is None:
            loop = asyncio.get_running_loop()
            self._recalling = loop.create_task(self._recall(), context=Context())
        await asyncio.wait((self._recalling,))  # unlike a shield, raises nothing of its end

    async def _recall(self) -> None:
        left = await asyncio.gather(*(keeper.opener.is_stored() for keeper in self._order))
        self.leader = next(itertools.compress(self._order, left), self.leader)

    async def take_up(self) -> None:
        """Open wherever a session was left, to end it."""
        for keeper in self.keepers:
            if await keeper.opener.is_stored():
                await keeper.ready()

    @property
    def shown(self) -> tuple[Endpoint, ...]:
        """For people, if there are several."""
        return endpoints_of([keeper.ground for keeper in self.keepers])

    # -- choosing -------------------------------------------------------------------------------

    def choose(
        self, now: float, tried: Collection[Keeper], *, call: bool, last: Keeper | None
    ) -> Keeper:
        """Who sends the next attempt. `last`: who sent what this one continues."""
        if self._only is not None:
            return self._only
        if last is not None and last not in tried and last.ground.admits(now):
            return self._given(last)
        leader = self._lead(now, tried)
        return self._given(self._least(now, tried) if call and self._spreads(leader) else leader)

    def elsewhere(self, now: float, tried: Collection[Keeper]) -> bool:
        """Whether an address is left that was not tried, and is not known to be down."""
        if self._only is not None:
            return False
        return any(each.ground.admits(now) for each in self.keepers if each not in tried)

    async def ready(
        self, keeper: Keeper, tried: Collection[Keeper], left: float
    ) -> Connection | Exception:
        """Its connection, or why there is none. While another address is left, this one may take
        half of the time to be opened."""
        if self._only is not None or keeper.agreement is not None:
            return await keeper.ready()
        now = asyncio.get_running_loop().time()
        limit = asyncio.timeout(left / 2 if self.elsewhere(now, {keeper, *tried}) else None)
        try:
            async with limit:
                return await keeper.ready()
        except TimeoutError:
            if not limit.expired():
                raise
        from toolkeep._wire.attempt import Attempt
        from toolkeep._wire.exchange import broken

        return broken("it was not ready while another address could be asked", Attempt())

    def decide(
        self, keeper: Keeper, setback: Setback, standing: Standing, backoff: float
    ) -> Decision:
        """What the rules say. A session that may still be there is not left for what may pass, but
        where its address cannot be reached and one address alone would be given up."""
        failure = setback.failure
        if setback.connection is None and standing.elsewhere:  # whatever the handshake met
            failure = replace(failure, delivery=Delivery.NOT_SENT)
        if standing.elsewhere and self._holds(keeper, setback):
            here = decide(failure, replace(standing, elsewhere=False), backoff=backoff)
            if here.replay_after is not None or failure.kind is not FailureKind.UNREACHABLE:
                return here
        return decide(failure, standing, backoff=backoff)

    def note(self, keeper: Keeper, setback: Setback, now: float) -> None:
        """An address that asks for a pause is given it; so is one that cannot even be opened."""
        if self._only is not None or setback.failure.kind is FailureKind.UNAUTHORIZED:
            return
        if setback.failure.retry_after is not None:
            keeper.ground.rest(setback.failure.retry_after, now)
        elif setback.connection is None:
            keeper.ground.rest(keeper.spec.breaker_cooldown, now)

    def _given(self, keeper: Keeper) -> Keeper:
        keeper.ground.turn = next(_TURNS)
        return keeper

    def _lead(self, now: float, tried: Collection[Keeper]) -> Keeper:
        """The leader, or another in its place if it cannot be it now."""
        leader = self.leader
        admitted, kept = leader.ground.breaker.would_admit(now), self._keeps(leader)
        if leader not in tried and (leader.ground.admits(now) or (kept and admitted)):
            return leader
        found = self._least(now, tried)
        if kept and (found in tried or not found.ground.admits(now)):
            return leader  # nobody is better
        # Without a session to keep, one that only asked for a pause leads again after it.
        if kept or leader.connection is None or not admitted:
            self._follow(found)
        return found

    def _follow(self, found: Keeper) -> None:
        """Have another lead. A session that was left is not taken up again: what happened since
        happened elsewhere."""
        left, self.leader = self.leader, found
        if left.connection is not None and self._keeps(left):
            left.retire(left.connection, lost=True, reason="another address leads")
        found.listen()

    def _keeps(self, keeper: Keeper) -> bool:
        """Whether all of a client's calls belong into the session that it has there."""
        return self._balance == "session" and keeper.session_id is not None

    def _holds(self, keeper: Keeper, setback: Setback) -> bool:
        """Whether what failed belongs to a session that may still be there."""
        connection, now = setback.connection, asyncio.get_running_loop().time()
        if self._balance != "session" or keeper is not self.leader or connection is None:
            return False
        return connection.wire.session_id is not None and keeper.ground.breaker.would_admit(now)

    def _spreads(self, leader: Keeper) -> bool:
        """Whether no session has to be kept together."""
        stateless = leader.agreement is not None and leader.session_id is None
        return self._balance == "call" or stateless

    def _least(self, now: float, tried: Collection[Keeper]) -> Keeper:
        """Of those that were not tried and may be asked; if there is none, of the others. Where two
        have the same to do, the one that was given nothing for longer."""

        def rank(each: Keeper) -> tuple[bool, bool, int, int]:
            ground = each.ground
            return each in tried, not ground.admits(now), ground.busy, ground.turn

        return min(self._order, key=rank)


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
    """Whether it is left alone for now: after too many faults in a row, because it could not be
    opened, or because it asked for a pause."""


def endpoints_of(grounds: Sequence[Ground]) -> tuple[Endpoint, ...]:
    """None, if there is only one: what is true of it is true of its server."""
    if len(grounds) == 1:
        return ()
    now = monotonic()
    return tuple(
        Endpoint(
            url=redact_url(ground.spec.url),
            in_flight=ground.busy,
            attempts=ground.sent,
            faults=ground.faults,
            resting=not ground.admits(now),
        )
        for ground in grounds
    )
