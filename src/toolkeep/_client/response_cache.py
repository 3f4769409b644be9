"""The response cache of one client: results that a modern server lets its clients keep (`ttlMs`).

A failing store is a miss, never an error.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from toolkeep.state.cache import Cache, Stamp
from toolkeep.state.shared import SharedState, name_of

MAX_TTL_MS = 86_400_000
"""A day: the longest that anything is kept, whatever a server says."""
_MAX_ENTRIES = 4096
"""Entries and evictions that a cache remembers."""
_MAX_BYTES = 16 * 1024 * 1024
"""Bytes of one client's results, without a store."""


class CacheKey(NamedTuple):
    """One result. A `partition` separates servers, principals and protocol versions."""

    method: str
    key: str
    partition: str

    @property
    def name(self) -> str:
        return name_of("answer", *self)


class ResponseCache:
    """The response cache of one client. Lives as long as the client, in the client's event loop.

    An eviction holds for all partitions, since a ticket belongs to none. `mark`: moved in the store
    when the client's principal is forgotten.
    """

    def __init__(
        self,
        state: SharedState | None = None,
        mark: str = "",
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._values = Cache(SharedState() if state is None else state, _MAX_BYTES)
        self._marks = (mark,) if mark else ()
        self._stamp = Stamp()
        """The stamp of the last `get`."""
        self._clock = clock
        self._evictions = self._dropped_until = 0
        self._evicted: dict[tuple[str, str | None], int] = {}
        self._tickets: dict[CacheKey, int] = {}
        self._writing: set[CacheKey] = set()

    async def get(self, partition: str, method: str, key: str = "") -> dict[str, Any] | None:
        """A copy of the cached result, or None if there is no fresh one."""
        # Without a store nothing else here yields: a polling caller would block the
        # evictions.
        await asyncio.sleep(0)
        entry = CacheKey(method, key, partition)
        ticket = self._tickets.get(entry, 0)
        found = await self._fresh(entry)
        if found is None:
            return None
        if self._is_evicted(entry, since=ticket):
            if self._tickets.get(entry) == ticket:  # outdated, and not overwritten meanwhile
                await self._delete((entry,))
            return None
        self._remember(entry, ticket)
        return found

    def start_fetch(self, method: str, key: str = "") -> int:
        """Call this before fetching, and pass the returned ticket to `put`."""
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
    ) -> None:
        """Cache a result for as long as the server allows, unless it was evicted since
        `start_fetch`."""
        entry = CacheKey(method, key, partition)
        if not ttl_ms > 0:
            if entry in self._tickets:
                await self.evict(partition, method, key)
            return
        # Concurrent writes to one entry may end in either order; the second is dropped.
        if entry in self._writing or self._is_evicted(entry, since=ticket):
            return
        self._writing.add(entry)
        try:
            kept = await self._set(entry, value, ttl_ms)
        finally:
            self._writing.discard(entry)
        if not kept:
            self._record_eviction(
                method, key
            )  # what the store still holds is older than this result
        elif self._is_evicted(entry, since=ticket):
            await self._delete((entry,))
        else:
            self._remember(entry, ticket)

    async def evict(self, partition: str, method: str, key: str | None = "") -> None:
        """Evict what was fetched before now. `key` None: for every key of the method."""
        self._record_eviction(method, key)
        if key is not None:
            await self._delete((CacheKey(method, key, partition),))
            return
        await self._delete(
            [e for e in self._tickets if (e.method, e.partition) == (method, partition)]
        )

    def invalidate(self, method: str, key: str = "") -> None:
        """Like `evict`, without waiting: the entry leaves the store when it is next read."""
        self._record_eviction(method, key)

    async def clear(self) -> None:
        """Forget everything; in the store, delete only entries that this cache wrote or read."""
        self._evictions += 1
        self._dropped_until = self._evictions
        self._evicted.clear()
        await self._delete(tuple(self._tickets))

    def _record_eviction(self, method: str, key: str | None) -> None:
        self._evictions += 1
        self._evicted.pop((method, key), None)
        self._evicted[method, key] = self._evictions
        if len(self._evicted) > _MAX_ENTRIES:
            self._dropped_until = self._evicted.pop(next(iter(self._evicted)))

    def _is_evicted(self, entry: CacheKey, *, since: int) -> bool:
        for_key = self._evicted.get((entry.method, entry.key), 0)
        for_method = self._evicted.get((entry.method, None), 0)
        return max(for_key, for_method, self._dropped_until) > since

    def _remember(self, entry: CacheKey, ticket: int) -> None:
        self._tickets.pop(entry, None)
        self._tickets[entry] = ticket
        if len(self._tickets) > _MAX_ENTRIES:
            del self._tickets[next(iter(self._tickets))]

    async def _fresh(self, entry: CacheKey) -> dict[str, Any] | None:
        found, self._stamp = await self._values.load(entry.name, self._marks)
        if found is None:
            return None
        try:
            kept: Any = json.loads(found)
        except (ValueError, RecursionError):
            return None
        match kept:
            # The cap holds here too: an entry must not live longer after the clock was set back.
            case {"value": dict(), "expires_at": float(expires_at)} if (
                0 < expires_at - self._clock() <= MAX_TTL_MS / 1000
            ):
                return cast("dict[str, Any]", kept["value"])
            case _:
                return None

    async def _set(self, entry: CacheKey, value: dict[str, Any], ttl_ms: float) -> bool:
        seconds = min(ttl_ms, MAX_TTL_MS) / 1000
        kept = {"value": value, "expires_at": self._clock() + seconds}
        try:
            written = json.dumps(kept, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError):
            return False
        # Of any entry: all have the same marks, and an eviction may make room for an older version.
        stamp = Stamp(self._stamp or (await self._values.load(entry.name, self._marks))[1])
        return await self._values.save(entry.name, written, stamp, seconds)

    async def _delete(self, entries: Sequence[CacheKey]) -> None:
        for entry in entries:
            self._tickets.pop(entry, None)
        for entry in entries:
            await self._values.delete(entry.name)


class CacheHints:
    """The cache lifetime and scope of a result: the strictest of all its pages."""

    def __init__(self) -> None:
        self.ttl_ms = float("inf")
        self.scope = "public"

    def add(self, page: Mapping[str, Any]) -> None:
        ttl = page.get("ttlMs")
        if not isinstance(ttl, int | float) or isinstance(ttl, bool):
            ttl = 0
        self.ttl_ms = min(self.ttl_ms, max(0.0, ttl))
        if page.get("cacheScope") != "public":
            self.scope = "private"
