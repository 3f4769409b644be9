"""All clients of one server: its own, and one for each principal.

The own client speaks for nobody in particular: it lists, it listens, it shows whether the server is
alive, and it makes the calls that carry no identity. Every other identity has a client, and so a
session, of its own, within the bound; who may have one is decided by `admission`, here it is done.
All of them stand on one ground. Closing waits for nobody's call: a client that is in use is closed
when it is given back, unless all has to end now.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from dataclasses import replace
from functools import partial
from typing import Any

from toolkeep._engine.client import Client
from toolkeep._engine.core import Core
from toolkeep._engine.ground import Ground, trouble_of
from toolkeep._engine.inputs import Inputs
from toolkeep._engine.setup import Setup, Voice
from toolkeep._engine.tenancy import NOBODY, Ears, Lease, Tenant, superseded
from toolkeep._rules.admission import Admission, Orders, Place
from toolkeep._rules.identity import Identity
from toolkeep.config import ServerSpec
from toolkeep.errors import NotPermitted, ServerUnavailable

logger = logging.getLogger("toolkeep.sessions")


class Sessions:
    """One for each server of a runtime. Opened and closed by the runtime's group."""

    def __init__(
        self,
        spec: ServerSpec,
        setup: Setup,
        answers: Mapping[str, Any],
        *,
        listen: bool,
        ears: Ears,
    ) -> None:
        self.spec, self._setup, self._answers = spec, setup, answers
        self._listen, self._ears = listen, ears
        self.grounds = tuple(Ground(each, on_trouble=self._tell_trouble) for each in spec.each)
        self._own = self._tenant(None, own=True)
        self._own_lease = Lease(self, self._own, None)
        """Lent to everybody at once: it has nothing to tell them apart."""
        self.admission = Admission(spec.session_bound)
        self._tenants: dict[Place, Tenant] = {}
        self._granted: dict[int, asyncio.Future[Place]] = {}
        self._closings: set[asyncio.Task[None]] = set()
        self._own_lent = 0
        self._shared_by: Identity | None = None
        self.leaving = False
        """Whether nothing is lent any more."""
        self._moved = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Sessions {self.spec.name!r}, {self.admission}>"

    @property
    def own(self) -> Client:
        """The client that speaks for nobody in particular."""
        return self._own.client

    @property
    def in_flight(self) -> int:
        return self._own_lent + sum(place.lent for place in self.admission.places)

    # -- lending --------------------------------------------------------------------------------

    def lend_now(self, identity: Identity | None) -> Lease | None:
        """A client, if that takes no waiting."""
        policy = self.spec.session
        if policy == "call":
            return None
        if policy == "shared":
            self._check_shared(identity)
            return self.lend_own()
        if identity is None:
            return self.lend_own()
        if self.leaving:
            raise superseded(self.spec.name)
        place = self.admission.lend(identity.key)
        return None if place is None else self._lease(place, identity)

    def lend_own(self) -> Lease:
        """The server's own client, for what is asked on nobody's behalf."""
        if self.leaving:
            raise superseded(self.spec.name)
        self._own_lent += 1
        return self._own_lease

    def lend_again(self, lease: Lease) -> Lease:
        if lease.place is None:
            self._own_lent += 1
        else:
            lease.place.lent += 1
        return Lease(self, lease.tenant, lease.place)

    async def lend(self, identity: Identity | None, within: float) -> Lease:
        """A client, once there is room for it."""
        lease = self.lend_now(identity)
        if lease is not None:
            return lease
        if self.leaving:
            raise superseded(self.spec.name)
        key = identity.key if identity is not None else ""
        ticket, orders = self.admission.ask(key, once=self.spec.session == "call")
        granted = self._granted[ticket] = asyncio.get_running_loop().create_future()
        self._obey(orders)
        try:
            async with asyncio.timeout(within):
                place = await asyncio.shield(granted)
        except TimeoutError:
            self._give_up(ticket, granted)
            raise self._no_room() from None
        except BaseException:
            self._give_up(ticket, granted)
            raise
        return self._lease(place, identity)

    def take_back(self, place: Place | None) -> None:
        if place is None:
            self._own_lent -= 1
        else:
            self._obey(self.admission.give_back(place))
            if self.leaving:  # whoever waited for it has had it
                self.dismiss(str(place.key))
        self._moved.set()

    def dismiss(self, key: str) -> None:
        """The session of this identity is not lent again, and closed when nobody uses it."""
        self._obey(self.admission.dismiss(key))

    async def end(self, identity: Identity) -> None:
        """End the sessions of this identity: its own when nobody uses it, and one that a store
        keeps for whoever comes next. Returns when those are gone that nobody uses."""
        for place, tenant in self._tenants.items():
            if place.key == identity.key:
                tenant.for_good = True
        self.dismiss(identity.key)
        if self._closings:
            await asyncio.wait(tuple(self._closings))
        if any(place.key == identity.key for place in self.admission.places):
            return  # in use: it is ended, and taken out of the store, when it is given back
        await self._tenant(identity).core.end_stored()

    def _lease(self, place: Place, identity: Identity | None) -> Lease:
        tenant = self._tenants.get(place)
        if tenant is None:
            tenant = self._tenants[place] = self._tenant(identity)
        if tenant.voice is not None and identity is not None:
            tenant.voice.headers = identity.headers
        return Lease(self, tenant, place)

    def _check_shared(self, identity: Identity | None) -> None:
        caller = identity or NOBODY
        if self._shared_by is None:
            self._shared_by = caller
        elif self._shared_by != caller:
            raise NotPermitted(
                f"{self.spec.name}: its session is shared, and belongs to {self._shared_by} by now,"
                f" not to {caller}. Configure session = 'principal' to give each its own"
            )

    def _no_room(self) -> ServerUnavailable:
        bound, server = self.admission.bound, self.spec.name
        text = f"{server}: all {bound} sessions were in use until the deadline; raise max_sessions"
        return ServerUnavailable(text, server=server)

    # -- what admission decides -----------------------------------------------------------------

    def _obey(self, orders: Orders) -> None:
        for grant in orders.grants:
            self._granted.pop(grant.ticket).set_result(grant.place)
        for place in orders.close:
            self._begin(lambda place=place: self._close(place))

    def _give_up(self, ticket: int, granted: asyncio.Future[Place]) -> None:
        if granted.done():  # at the same moment
            if granted.exception() is None:
                self.take_back(granted.result())
        else:
            self._granted.pop(ticket, None)
            self._obey(self.admission.withdraw(ticket))

    async def _close(self, place: Place) -> None:
        tenant = self._tenants.get(place)
        try:
            if tenant is not None:
                await tenant.core.settled()  # a session that is not there yet cannot be deleted
                await tenant.core.aclose(for_good=tenant.for_good)
        finally:
            self._tenants.pop(place, None)
            self._obey(self.admission.closed(place))

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                await work()
            except Exception:
                logger.exception("%s: closing a session failed", self.spec.name)

        task = asyncio.get_running_loop().create_task(run(), context=Context())
        self._closings.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._closings.discard(task)
        self._moved.set()

    def _tell_trouble(self) -> None:
        if not self.leaving:
            self._ears.on_trouble(trouble_of(self.grounds))

    # -- clients --------------------------------------------------------------------------------

    def _tenant(self, identity: Identity | None, *, own: bool = False) -> Tenant:
        spec, auth = self.spec, self._setup.auth if self.spec.url else None
        voice = Voice() if spec.url and identity is not None else None
        principal = identity.principal if identity else None
        # A stored session is found by its principal's name: who has none cannot be told apart.
        storable = bool(spec.url) and (principal is not None or (own and auth is None))
        # Nor is it known elsewhere whose a shared session is; and one for a call ends with it.
        storable = storable and spec.session not in ("shared", "call")
        heard = own or identity is not None
        setup = replace(
            self._setup,
            auth=auth,
            voice=voice,
            apart=identity.key if identity else None,
            principal=principal,
            store=self._setup.store if storable else None,
            grounds=self.grounds,
            vouched=True,
            listen=self._listen and own,
            hear=partial(self._ears.hear, identity) if heard else None,
            on_book=partial(self._ears.on_book, identity) if heard else None,
            on_gap=partial(self._ears.on_gap, identity),
        )
        inputs = Inputs(spec.name, spec.timeouts.input, principal, **self._answers)
        core = Core(spec, setup, inputs)
        return Tenant(Client.of(core), core, voice)

    async def until_settled(self) -> None:
        """Wait a moment for the own client's stream of what the server says outside of calls."""
        await self._own.core.watch.until_settled()

    # -- opening and closing --------------------------------------------------------------------

    async def connect(self) -> None:
        await self.own.connect()

    def leave(self) -> None:
        """Lend nothing more. Sessions of principals that are idle are closed now."""
        self.leaving = True
        for place in self.admission.places:
            self.dismiss(str(place.key))

    async def retire(self) -> None:
        """Leave, and close each client when its last call is over: every call has a deadline."""
        self.leave()
        while self.in_flight or self._closings or self._granted:
            self._moved.clear()
            await self._moved.wait()
        await self._close_all()

    async def aclose(self) -> None:
        """Close everything now, whoever uses it or waits for it."""
        self.leave()
        for ticket, granted in tuple(self._granted.items()):
            self._obey(self.admission.withdraw(ticket))
            granted.set_exception(superseded(self.spec.name))
        self._granted.clear()
        try:
            await self._close_all()
        except asyncio.CancelledError:  # there is no more time: cut what is left
            for ground in self.grounds:
                self._begin(ground.aclose)
            raise

    def abandon(self) -> None:
        """The event loop is gone, or belongs to the parent process."""
        for tenant in (self._own, *self._tenants.values()):
            tenant.core.abandon()
        for ground in self.grounds:
            ground.forget()

    async def _close_all(self) -> None:
        clients = [self.own, *(tenant.client for tenant in self._tenants.values())]
        await asyncio.gather(*(client.aclose() for client in clients), return_exceptions=True)
        while self._closings:
            await asyncio.wait(tuple(self._closings))
        for ground in self.grounds:
            await ground.aclose()
