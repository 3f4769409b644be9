"""`SharedState`: the store of one runtime or client, as the parts above use it.

Bounds every operation, remembers whether the store is down, and closes the store if it was opened
from a URL. It never decides what happens without a store: `ask` raises `StoreUnavailable`, and the
caller goes on with what is in memory, or refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from toolkeep._tasks import cancellation_count, was_cancelled
from toolkeep.errors import SealBroken, StoreUnavailable
from toolkeep.state import open_store
from toolkeep.state.store import TIMEOUT, Store

logger = logging.getLogger("toolkeep.state")

COOLDOWN = 1.0
"""Seconds without the store after it failed. Until then everything that needs it fails at once, so
one call waits for a store that is down once."""
STALL = 0.05
"""Seconds by which a timeout may be late. Later, this process was busy, and the response may have
been there: that alone does not count as a store that is down."""
LEASE_TTL = 3.0
"""Seconds until the lease of a process that died is free again."""

T = TypeVar("T")


class Teller(Protocol):
    """Tells the other processes: `News`."""

    async def tell(self, what: str, **about: Any) -> None: ...
    def announce(self, what: str, **about: Any) -> None: ...


def name_of(kind: str, *facts: object) -> str:
    """A name in the store: the kind, and a digest, since facts may be secret."""
    written = json.dumps(facts, sort_keys=True, default=str)
    return f"toolkeep:{kind}:{hashlib.sha256(written.encode()).hexdigest()[:40]}"


def forgotten_mark(principal: str | None) -> str:
    """The mark that is moved when this principal is forgotten; empty: no name, no mark."""
    return "" if principal is None else name_of("forgotten", principal)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStatus:
    """Whether the store that processes share can be used."""

    store: str
    """The store, without the secrets of its URL."""
    available: bool
    problem: str = ""
    """Why it cannot be used."""
    since: float | None = None
    """Since when (seconds since the epoch)."""


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease that is renewed."""

    token: int
    """The fencing token: a time of the store, later than all before."""
    lost: asyncio.Event
    """Set when the lease is lost."""


class SharedState:
    """The store of one runtime or client. Lives as long as that; used in one event loop at a time.

    `store` None: nothing is shared, and `ask` always raises. Rate limits then count in this
    process.
    """

    def __init__(
        self, store: str | Store | None = None, keys: Sequence[str | bytes] | None = None
    ) -> None:
        self.store: Store | None = None
        self._given, self._keys, self._owned = store is not None, keys, False
        self._open(store, keys)
        self._buckets: Store | None = None
        self.turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By bucket: the tasks of this process wait for it one after the other."""
        self._problem, self._since, self._skip_until = "", 0.0, 0.0
        self._has_stalled = False
        self.news: Teller | None = None
        """None: a client that stands alone, which tells nothing and hears nothing."""
        self.tool_lists: WeakValueDictionary[tuple[str, str], Any] = WeakValueDictionary()
        """By server and digest: the tools of equal lists are parsed once."""

    @property
    def buckets(self) -> Store:
        """Rate limits of this process, for when there is no store or it is down."""
        self._buckets = self._buckets or open_store("memory:")
        return self._buckets

    def open(self, url: str | None, keys: Sequence[str | bytes] | None) -> None:
        """Use the store that the configuration names, unless one was given at the start."""
        if not self._given:
            self._open(url, keys if self._keys is None else self._keys)

    def _open(self, store: str | Store | None, keys: Sequence[str | bytes] | None) -> None:
        self.keys = keys
        """The keys that the store is encrypted with."""
        self.store = None if store is None else open_store(store, keys=keys)
        self._owned = isinstance(store, str)

    def __bool__(self) -> bool:
        """Whether there is a store."""
        return self.store is not None

    def __repr__(self) -> str:
        return f"<SharedState {self.store!r}{', down' if self._problem else ''}>"

    @property
    def status(self) -> StateStatus | None:
        """None: there is no store."""
        if self.store is None:
            return None
        down, name = bool(self._problem), repr(self.store)
        since = self._since if down else None
        return StateStatus(store=name, available=not down, problem=self._problem, since=since)

    async def ask(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """What `work` returns, within 250 ms; raises `StoreUnavailable` for whatever fails."""
        if self.store is None:
            raise StoreUnavailable("nothing is shared", store="no store")
        if monotonic() < self._skip_until:
            raise StoreUnavailable(self._problem, store=repr(self.store))
        before, began = cancellation_count(), monotonic()
        try:
            async with asyncio.timeout(TIMEOUT):
                found = await work(self.store)
                if was_cancelled(before):
                    raise asyncio.CancelledError  # the store swallowed it
        except SealBroken:
            raise  # one value that does not open: the store itself works
        except ValueError as error:  # too large, or not a name: nothing was sent
            raise StoreUnavailable(str(error), store=repr(self.store)) from None
        except asyncio.CancelledError as error:
            if was_cancelled(before):
                raise
            raise self._failed(error, began) from None
        except Exception as error:
            raise self._failed(error, began) from None
        self._has_stalled = False
        if self._problem:
            self._problem, self._skip_until = "", 0.0
            logger.warning("%r can be used again", self.store)
        return found

    def _failed(self, error: BaseException, began: float) -> StoreUnavailable:
        # The text of other errors may hold an address with its password.
        known = isinstance(error, StoreUnavailable)
        problem = error.problem if known else f"it failed with {type(error).__name__}"
        if isinstance(error, TimeoutError) and not known:
            problem = f"no response within {TIMEOUT:g} s"
        unavailable = error if known else StoreUnavailable(problem, store=repr(self.store))
        if monotonic() - began > TIMEOUT + STALL and not self._has_stalled:
            self._has_stalled = True
            return unavailable
        if not self._problem:
            self._since = time.time()
            logger.warning("%r is not used for now: %s", self.store, problem)
        self._problem, self._skip_until = problem, monotonic() + COOLDOWN
        return unavailable

    @asynccontextmanager
    async def holding(self, key: str) -> AsyncGenerator[HeldLease | None]:
        """Hold the lease of `key` in the block; None if another process has it. Raises
        `StoreUnavailable`."""
        lease = await self.ask(lambda store: store.lease(key, LEASE_TTL))
        if lease is None:
            yield None
            return
        lost = asyncio.Event()

        async def renew() -> None:
            kept_until = monotonic() + LEASE_TTL
            while monotonic() < kept_until:
                await asyncio.sleep(LEASE_TTL / 4)
                now = monotonic()
                try:
                    if not await self.ask(lambda store: store.renew(lease, LEASE_TTL)):
                        break
                    kept_until = now + LEASE_TTL
                except StoreUnavailable:
                    continue
            lost.set()

        renewing = asyncio.get_running_loop().create_task(renew(), context=Context())
        try:
            yield HeldLease(lease.token, lost)
        finally:
            renewing.cancel()
            await asyncio.wait((renewing,))
            with contextlib.suppress(StoreUnavailable):  # it expires
                await self.ask(lambda store: store.release(lease))

    async def aclose(self) -> None:
        """Close the store, if it was opened here. It may be used again afterwards."""
        self._problem, self._skip_until = "", 0.0
        if self.store is not None and self._owned:
            try:
                await self.store.aclose()
            except Exception as error:
                logger.warning("%r could not be closed: %s", self.store, type(error).__name__)
