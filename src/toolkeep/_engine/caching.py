"""Answers that the server allowed to keep (2026-07-28: `ttlMs`, `cacheScope`).

Owns the order of events, not the entries: these lie in a store of the SDK's protocol. Evictions are
numbered. A fetch starts with the number of the last one, its ticket; its answer is kept, and later
served, only if no eviction after the ticket meant it. So an eviction holds at once, also against a
fetch, a read or a write under way, and also if the store has failed to delete. What is forgotten to
bound the memory counts as evicted: that costs a fetch, never a stale answer.

A store never fails a request: one that raises, hangs or talks nonsense is a miss.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from mcp.client.caching import (
    MAX_TTL_MS,
    CacheEntry,
    CacheKey,
    InMemoryResponseCacheStore,
    ResponseCacheStore,
)

from toolkeep._wire.cancelling import is_cancelled

logger = logging.getLogger("toolkeep.client")

_PATIENCE = 2.0
"""Seconds for one operation of the store: longer than it would take to ask the server."""

_MOST = 4096
"""Entries, and evictions, that a cache remembers; the SDK's cache remembers as many."""

Result = TypeVar("Result")


class ResponseCache:
    """One for each client, for as long as the client lives, in the client's event loop.

    A `partition` keeps apart what must not meet: servers, principals, protocol versions. An
    eviction is noted for all partitions, since a ticket belongs to none.
    """

    def __init__(
        self, store: ResponseCacheStore | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = InMemoryResponseCacheStore() if store is None else store
        self._clock = clock
        self._evictions = self._forgotten = 0
        self._evicted: dict[tuple[str, str | None], int] = {}
        self._tickets: dict[CacheKey, int] = {}
        self._writing: set[CacheKey] = set()
        self._failing: set[str] = set()

    async def get(self, partition: str, method: str, key: str = "") -> dict[str, Any] | None:
        """A fresh answer; a copy, the caller's own to alter."""
        # With a store in memory nothing else here waits: who polls would starve the evictions.
        await asyncio.sleep(0)
        entry = CacheKey(method, key, partition)
        ticket = self._tickets.get(entry, 0)
        found = await self._try("get", lambda: self._fresh(entry), otherwise=None)
        if found is None:
            return None
        if self._is_evicted(entry, since=ticket):
            if self._tickets.get(entry) == ticket:  # outdated; neither new nor somebody else's
                await self._delete((entry,))
            return None
        self._remember(entry, ticket)
        return found

    def begin(self, method: str, key: str = "") -> int:
        """Before fetching; the returned ticket goes to `put`."""
        return self._evictions

    async def put(
        self,
        partition: str,
        method: str,
        key: str,
        ticket: int,
        value: dict[str, Any],
        *,
        ttl_ms: float,
        scope: str,
    ) -> None:
        """Keep an answer for as long as the server allows, unless it was evicted since `begin`."""
        entry = CacheKey(method, key, partition)
        if not ttl_ms > 0:
            if entry in self._tickets:
                await self.evict(partition, method, key)
            return
        # Two writes to one entry may end in either order; the second one is not kept.
        if entry in self._writing or self._is_evicted(entry, since=ticket):
            return
        self._writing.add(entry)
        try:
            kept = await self._try("set", lambda: self._set(entry, value, ttl_ms, scope), False)
        finally:
            self._writing.discard(entry)
        if not kept:
            self._note(method, key)  # what still lies there is older than this answer
        elif self._is_evicted(entry, since=ticket):
            await self._delete((entry,))
        else:
            self._remember(entry, ticket)

    async def evict(self, partition: str, method: str, key: str | None = "") -> None:
        """Never again serve what was fetched before now. `key` None: for any key of the method."""
        self._note(method, key)
        if key is not None:
            await self._delete((CacheKey(method, key, partition),))
            return
        await self._delete(
            [e for e in self._tickets if (e.method, e.partition) == (method, partition)]
        )

    def outdate(self, method: str, key: str = "") -> None:
        """As `evict`, without waiting; the store loses the entry when it is next asked for it."""
        self._note(method, key)

    async def clear(self) -> None:
        """Forget all; in the store, what this cache wrote or saw, and nobody else's entries."""
        self._evictions += 1
        self._forgotten = self._evictions
        self._evicted.clear()
        await self._delete(tuple(self._tickets))

    def _note(self, method: str, key: str | None) -> None:
        self._evictions += 1
        self._evicted.pop((method, key), None)
        self._evicted[method, key] = self._evictions
        if len(self._evicted) > _MOST:
            self._forgotten = self._evicted.pop(next(iter(self._evicted)))

    def _is_evicted(self, entry: CacheKey, *, since: int) -> bool:
        one = self._evicted.get((entry.method, entry.params_key), 0)
        every = self._evicted.get((entry.method, None), 0)
        return max(one, every, self._forgotten) > since

    def _remember(self, entry: CacheKey, ticket: int) -> None:
        self._tickets.pop(entry, None)
        self._tickets[entry] = ticket
        if len(self._tickets) > _MOST:
            del self._tickets[next(iter(self._tickets))]

    async def _fresh(self, entry: CacheKey) -> dict[str, Any] | None:
        found = await self._store.get(entry)
        if found is None:
            return None
        value: object = found.value
        if not isinstance(value, dict):
            raise TypeError("not an answer of ours")
        left = -1 if found.expires_at is None else found.expires_at - self._clock()
        # The cap holds here too: a clock that was set back makes no entry live longer.
        if not 0 < left <= MAX_TTL_MS / 1000:
            return None
        return copy.deepcopy(cast("dict[str, Any]", value))

    async def _set(self, entry: CacheKey, value: dict[str, Any], ttl_ms: float, scope: str) -> bool:
        expires_at = self._clock() + min(ttl_ms, MAX_TTL_MS) / 1000
        public = "public" if scope == "public" else "private"
        await self._store.set(entry, CacheEntry(copy.deepcopy(value), public, expires_at))
        return True

    async def _delete(self, entries: Sequence[CacheKey]) -> None:
        for entry in entries:
            self._tickets.pop(entry, None)
        await self._try("delete", lambda: self._delete_all(entries), otherwise=None)

    async def _delete_all(self, entries: Sequence[CacheKey]) -> None:
        for entry in entries:
            await self._store.delete(entry)

    async def _try(
        self, what: str, work: Callable[[], Awaitable[Result]], otherwise: Result
    ) -> Result:
        """Within the bound, and told once until the same operation has succeeded again."""
        try:
            async with asyncio.timeout(_PATIENCE):
                done = await work()
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            self._tell(what, error)
            return otherwise
        except Exception as error:
            self._tell(what, error)
            return otherwise
        self._failing.discard(what)
        return done

    def _tell(self, what: str, error: BaseException) -> None:
        # Its type only: what a store says may name its address, its password or a principal.
        if what not in self._failing:
            self._failing.add(what)
            kind = type(error).__name__
            logger.warning("the response cache goes without its store: %s failed (%s)", what, kind)
