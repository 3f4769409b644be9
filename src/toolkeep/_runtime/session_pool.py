"""`SessionPool`: the clients of one server, one for each principal and one of the server's own.

Does what `_rules.session_slots` decides. A client that is in use is closed when it is released,
or at once by `aclose`. Two principals never share a session.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, replace
from functools import partial
from time import time
from typing import Any

from toolkeep._client.endpoint import Endpoint
from toolkeep._client.options import CallerHeaders, ClientOptions
from toolkeep._rules.identity import Identity
from toolkeep._rules.session_slots import PoolActions, Slot, SlotAllocator
from toolkeep.client import Client
from toolkeep.config import ServerSpec
from toolkeep.errors import NotPermitted, ServerUnavailable
from toolkeep.events import Event

logger = logging.getLogger("toolkeep.sessions")

ANONYMOUS = Identity("", "callers without identity")


class PoolClosed(ServerUnavailable):
    """This pool was closed. The server may have another one by now: resolve again."""


def pool_closed(server: str) -> PoolClosed:
    return PoolClosed(f"{server} was closed", server=server)


PoolEmit = Callable[[Identity | None, Event], None]
"""Called with what clients report outside of calls. The identity is None for the server's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """One client of a server, at one moment: its own, or that of a principal."""

    id: str
    """Names it to `Runtime.end_session`. No secret, and not the id of the MCP session."""
    server: str
    principal: str | None
    label: str
    """The principal, or a name for a caller without one."""
    is_own: bool
    """Whether it is the server's own client: for lists, pings and calls without identity."""
    era: str | None
    protocol_version: str | None
    has_session: bool
    """Whether there is an MCP session at the server."""
    in_use: int
    """Calls that use it now."""
    uses: int | None
    """Calls that have used it; None: not counted."""
    opened_at: float | None
    """When its client was made (seconds since the epoch)."""
    is_closing: bool = False


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a slot is, and since when."""

    identity: Identity
    since: float

    @property
    def id(self) -> str:
        return hashlib.sha256(self.identity.key.encode()).hexdigest()[:16]


class AcquiredClient:
    """A client, acquired for one call. Release it once."""

    __slots__ = ("_pool", "client", "slot")

    def __init__(self, pool: SessionPool, client: Client, slot: Slot | None) -> None:
        self._pool, self.client, self.slot = pool, client, slot

    def release(self) -> None:
        self._pool.release(self.slot)

    def acquire_again(self) -> AcquiredClient:
        """A second acquisition of the same client, to be released by itself."""
        return self._pool.acquire_again(self)


class SessionPool:
    """The clients of one `Server`, from one connect to the next close.

    Made by the `Server`. Closed by `aclose`, or by `drain` when its calls are over.
    """

    def __init__(
        self,
        spec: ServerSpec,
        options: ClientOptions,
        handlers: Mapping[str, Any],
        *,
        listen: bool,
        emit: PoolEmit,
    ) -> None:
        self.spec, self._options, self._handlers = spec, options, handlers
        self._listen, self._emit = listen, emit
        self.endpoints = tuple(
            Endpoint(each, self._on_endpoint_event, state=options.state)
            for each in spec.endpoint_specs
        )
        self.own_client = self._make_client(None, own=True)
        """The server's own client: lists, pings, and calls without identity."""
        self._own_acquired = AcquiredClient(self, self.own_client, None)
        """Shared by all calls without identity."""
        self.slots = SlotAllocator(spec.session_limit)
        self._clients: dict[Slot, Client] = {}
        self._owners: dict[Slot, Owner] = {}
        self._ending: set[Slot] = set()
        """Slots whose session is ended at the server, even if a store keeps it."""
        self._waiting: dict[int, asyncio.Future[Slot]] = {}
        self._close_tasks: set[asyncio.Task[None]] = set()
        self._own_in_use = 0
        self._shared_owner: Identity | None = None
        self._opened_at = time()
        self.is_draining = False
        """Whether it takes no more calls."""
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<SessionPool {self.spec.name!r}, {self.slots}>"

    @property
    def in_flight(self) -> int:
        return self._own_in_use + sum(slot.users for slot in self.slots.slots)

    # -- status ---------------------------------------------------------------------------------

    @property
    def secrets(self) -> tuple[str, ...]:
        """What its endpoints were given."""
        return tuple(secret for endpoint in self.endpoints for secret in endpoint.secrets)

    @property
    def sessions(self) -> tuple[SessionStatus, ...]:
        """All clients, the server's own first."""
        own = self._session_status(
            self.own_client,
            id="own",
            principal=None,
            label="the server's own",
            is_own=True,
            in_use=self._own_in_use,
            uses=None,
            opened_at=self._opened_at,
        )
        return (own, *(self._status_of(slot) for slot in self._owners))

    def owner_of(self, session: str) -> Identity | None:
        """Whose the session of this id is; None: it is gone, or not of one caller."""
        found = (owner.identity for owner in self._owners.values() if owner.id == session)
        identity = next(found, None)
        return None if identity is ANONYMOUS else identity

    def _status_of(self, slot: Slot) -> SessionStatus:
        owner = self._owners[slot]
        return self._session_status(
            self._clients[slot],
            id=owner.id,
            principal=None if owner.identity is ANONYMOUS else owner.identity.principal,
            label=str(owner.identity),
            is_own=False,
            in_use=slot.users,
            uses=slot.uses,
            opened_at=owner.since,
            is_closing=slot.closing,
        )

    def _session_status(self, client: Client, **facts: Any) -> SessionStatus:
        return SessionStatus(
            server=self.spec.name,
            era=client.era,
            protocol_version=client.protocol_version,
            has_session=client.session_id is not None,
            **facts,
        )

    # -- acquiring and releasing ----------------------------------------------------------------

    def try_acquire(self, identity: Identity | None) -> AcquiredClient | None:
        """A client, if one is free without waiting."""
        policy = self.spec.session
        if policy == "call":
            return None
        if policy == "shared":
            self._check_shared(identity)
            return self.acquire_own()
        if identity is None:
            return self.acquire_own()
        if self.is_draining:
            raise pool_closed(self.spec.name)
        slot = self.slots.acquire(identity.key)
        return None if slot is None else self._make_acquired(slot, identity)

    def acquire_own(self) -> AcquiredClient:
        """The server's own client."""
        if self.is_draining:
            raise pool_closed(self.spec.name)
        self._own_in_use += 1
        return self._own_acquired

    def acquire_again(self, acquired: AcquiredClient) -> AcquiredClient:
        if acquired.slot is None:
            self._own_in_use += 1
        else:
            acquired.slot.users += 1
        return AcquiredClient(self, acquired.client, acquired.slot)

    async def acquire(self, identity: Identity | None, within: float) -> AcquiredClient:
        """A client, once a slot is free."""
        acquired = self.try_acquire(identity)
        if acquired is not None:
            return acquired
        if self.is_draining:
            raise pool_closed(self.spec.name)
        key = identity.key if identity is not None else ""
        ticket, actions = self.slots.request(key, once=self.spec.session == "call")
        granted = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        self._apply_actions(actions)
        try:
            async with asyncio.timeout(within):
                slot = await asyncio.shield(granted)
        except TimeoutError:
            self._withdraw(ticket, granted)
            raise self._pool_exhausted() from None
        except BaseException:
            self._withdraw(ticket, granted)
            raise
        return self._make_acquired(slot, identity)

    def release(self, slot: Slot | None) -> None:
        if slot is None:
            self._own_in_use -= 1
        else:
            self._apply_actions(self.slots.release(slot))
            if self.is_draining:  # waiters, if any, were served before
                self.retire_slot(str(slot.key))
        self._changed.set()

    def retire_slot(self, key: str) -> None:
        """Stop handing out the session of this identity; close it after its last release."""
        self._apply_actions(self.slots.drain(key))

    async def end_sessions(self, identity: Identity) -> None:
        """End the sessions of this identity, also one that a store holds. A session in use is ended
        after its last release; the others are gone when this returns."""
        self._ending |= {slot for slot in self._clients if slot.key == identity.key}
        self.retire_slot(identity.key)
        if self._close_tasks:
            await asyncio.wait(tuple(self._close_tasks))
        if any(slot.key == identity.key for slot in self.slots.slots):
            return  # in use: ended, and removed from the store, after its release
        await self._make_client(identity).end_session()

    def _make_acquired(self, slot: Slot, identity: Identity | None) -> AcquiredClient:
        client = self._clients.get(slot)
        if client is None:
            client = self._clients[slot] = self._make_client(identity)
            self._owners[slot] = Owner(identity or ANONYMOUS, time())
        if identity is not None:
            client.set_caller_headers(identity.headers)
        return AcquiredClient(self, client, slot)

    def _check_shared(self, identity: Identity | None) -> None:
        caller = identity or ANONYMOUS
        if self._shared_owner is None:
            self._shared_owner = caller
        elif self._shared_owner != caller:
            raise NotPermitted(
                f"{self.spec.name}: the session is shared and belongs to {self._shared_owner},"
                f" not to {caller}. Configure session = 'principal' to give each its own"
            )

    def _pool_exhausted(self) -> ServerUnavailable:
        limit, server = self.slots.limit, self.spec.name
        text = f"{server}: all {limit} sessions were in use until the deadline; raise max_sessions"
        return ServerUnavailable(text, server=server)

    # -- doing what the slot allocator decides --------------------------------------------------

    def _apply_actions(self, actions: PoolActions) -> None:
        for grant in actions.grants:
            self._waiting.pop(grant.ticket).set_result(grant.slot)
        for slot in actions.close:
            self._start_close(lambda slot=slot: self._close(slot))

    def _withdraw(self, ticket: int, granted: asyncio.Future[Slot]) -> None:
        if granted.done():  # granted while being withdrawn
            if granted.exception() is None:
                self.release(granted.result())
        else:
            self._waiting.pop(ticket, None)
            self._apply_actions(self.slots.cancel(ticket))

    async def _close(self, slot: Slot) -> None:
        client = self._clients.get(slot)
        try:
            if client is not None:
                await client.wait_opened()  # only an opened session can be deleted
                await client.aclose(terminate=True if slot in self._ending else None)
        finally:
            self._clients.pop(slot, None)
            self._owners.pop(slot, None)
            self._ending.discard(slot)
            self._apply_actions(self.slots.mark_closed(slot))

    def _start_close(self, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                await work()
            except Exception:
                logger.exception("%s: closing a session failed", self.spec.name)

        task = asyncio.get_running_loop().create_task(run(), context=Context())
        self._close_tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._close_tasks.discard(task)
        self._changed.set()

    # -- clients --------------------------------------------------------------------------------

    def _make_client(self, identity: Identity | None, *, own: bool = False) -> Client:
        spec, auth = self.spec, self._options.auth if self.spec.url else None
        principal = identity.principal if identity else None
        # A store finds sessions by the principal's name, so callers without one are not stored.
        server_auth, owner = self._options.server_auth, self._options.session_owner
        authorized = auth is not None or (server_auth is not None and server_auth.is_login)
        nameless = own and (owner is not None or not authorized)
        storable = bool(spec.url) and (principal is not None or nameless)
        # Other processes cannot know the owner of a shared session; one for a call ends with it.
        storable = storable and spec.session not in ("shared", "call")
        options = replace(
            self._options,
            auth=auth,
            caller_headers=CallerHeaders() if spec.url and identity is not None else None,
            identity_key=identity.key if identity else None,
            principal=principal,
            stores_sessions=storable and bool(self._options.state),
            endpoints=self.endpoints,
            pooled=True,
            listen=self._listen and own,
            emit=partial(self._emit, identity) if own or identity is not None else None,
        )
        return Client.with_options(spec, options, self._handlers)

    def _on_endpoint_event(self, event: Event) -> None:
        if not self.is_draining:
            self._emit(None, event)

    async def wait_notifications(self) -> None:
        """Wait briefly for the own client's notification stream."""
        await self.own_client.wait_notifications()

    # -- opening and closing --------------------------------------------------------------------

    async def connect(self) -> None:
        await self.own_client.connect()

    def stop_acquiring(self) -> None:
        """Refuse new acquisitions, and close idle sessions of principals."""
        self.is_draining = True
        for slot in self.slots.slots:
            self.retire_slot(str(slot.key))

    async def drain(self) -> None:
        """Refuse new acquisitions, and close each client after its last call. Every call has a
        deadline, so this ends."""
        self.stop_acquiring()
        while self.in_flight or self._close_tasks or self._waiting:
            self._changed.clear()
            await self._changed.wait()
        await self._close_all()

    async def aclose(self) -> None:
        """Close everything now, also clients in use; waiters get `PoolClosed`."""
        self.stop_acquiring()
        for ticket, granted in tuple(self._waiting.items()):
            self._apply_actions(self.slots.cancel(ticket))
            granted.set_exception(pool_closed(self.spec.name))
        self._waiting.clear()
        try:
            await self._close_all()
        except asyncio.CancelledError:  # out of time: cut the rest
            for endpoint in self.endpoints:
                self._start_close(endpoint.aclose)
            raise

    def detach(self) -> None:
        """Let go without I/O: the event loop is gone, or belongs to the parent process."""
        for client in (self.own_client, *self._clients.values()):
            client.detach()
        for endpoint in self.endpoints:
            endpoint.detach()

    async def _close_all(self) -> None:
        clients = [self.own_client, *self._clients.values()]
        await asyncio.gather(*(client.aclose() for client in clients), return_exceptions=True)
        while self._close_tasks:
            await asyncio.wait(tuple(self._close_tasks))
        for endpoint in self.endpoints:
            await endpoint.aclose()


class DrainingPools:
    """The closed pools of one `Server` whose last calls are still running."""

    def __init__(self) -> None:
        self._draining: dict[asyncio.Task[None], SessionPool] = {}

    def __bool__(self) -> bool:
        return bool(self._draining)

    def add(self, pool: SessionPool, then: Callable[[], Awaitable[None]]) -> None:
        """Close this pool when its calls are over, and do what comes then."""

        async def drain() -> None:
            await pool.drain()
            await then()

        task = asyncio.get_running_loop().create_task(drain(), context=Context())
        self._draining[task] = pool
        task.add_done_callback(self._draining.pop)

    async def wait(self, *, hurry: bool) -> None:
        """Wait until all are closed; `hurry` cuts the calls that still run."""
        draining = tuple(self._draining.items())
        for task, pool in draining if hurry else ():
            await pool.aclose()
            task.cancel()  # a client that was not released is closed already
        if draining:
            await asyncio.wait([task for task, _ in draining])
