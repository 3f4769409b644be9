"""`MemoryStore`: a store for one process, shared by all its threads and event loops.

Also `Channels`, publish and subscribe within one process. The other drivers deliver the messages
that they receive through it.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from toolkeep._rules.limits import take_tokens
from toolkeep.state.store import (
    Entry,
    Lease,
    StoreUnavailable,
    check_append,
    check_lease,
    check_message,
    check_name,
    check_put,
    check_read,
    check_take,
    check_version,
)

__all__ = ["MemoryStore"]

MAX_QUEUED = 1000
"""Messages queued for one subscriber. When the queue is full, the oldest is dropped."""

OVERHEAD = 300
"""Approximate bytes of a row besides its name and its content."""

BATCH = 500
"""Names in one batch of a scan."""


@dataclass(slots=True)
class Row:
    """One value, lease, bucket or log. A bucket has only `until`: when it is full again."""

    until: float
    content: bytes = b""
    version: int = 0
    entries: deque[tuple[int, bytes]] = field(default_factory=deque[tuple[int, bytes]])
    size: int = 0


class MemoryStore:
    """The default store. Its contents end with the process.

    `max_bytes` limits its size: if dropping expired rows does not make enough room, `put` and
    `append` raise `StoreUnavailable`. Nothing is dropped before it expires.
    """

    def __init__(self, max_bytes: int = 64 * 1024 * 1024) -> None:
        self.max_bytes = max_bytes
        self._rows: dict[tuple[str, str], Row] = {}
        self._bytes, self._sweep_at = 0, 1024
        self._last_number = 0
        self._lock = threading.Lock()
        self._channels = Channels()

    def __repr__(self) -> str:
        return f"<MemoryStore, {len(self._rows)} rows, {self._bytes} of {self.max_bytes} bytes>"

    async def get(self, key: str) -> Entry | None:
        check_name(key)
        row = self._live("value", key)
        return Entry(row.content, row.version) if row else None

    async def put(
        self, key: str, value: bytes, *, ttl: float | None = None, if_version: int | None = None
    ) -> int | None:
        check_put(key, value, ttl, if_version)
        until = float("inf") if ttl is None else time.monotonic() + ttl
        row = Row(until, value)
        with self._lock:
            found = self._live("value", key)
            if if_version is not None and if_version != (found.version if found else 0):
                return None
            row.version = self._next_number()
            self._keep("value", key, row)
        return row.version

    async def delete(self, key: str, *, if_version: int | None = None) -> bool:
        check_version(key, if_version)
        with self._lock:
            found = self._live("value", key)
            if found is None or if_version not in (None, found.version):
                return False
            self._drop("value", key)
        return True

    async def scan(self, prefix: str) -> AsyncIterator[str]:
        with self._lock:
            names = [name for kind, name in self._rows if kind == "value"]
        for number, name in enumerate(names):
            if number % BATCH == BATCH - 1:
                await asyncio.sleep(0)
            if name.startswith(prefix) and self._live("value", name):
                yield name

    async def lease(self, key: str, ttl: float) -> Lease | None:
        check_lease(key, ttl)
        until = time.monotonic() + ttl
        with self._lock:
            if self._live("lease", key):
                return None
            lease = Lease(key, self._next_number(), secrets.token_hex(16))
            self._keep("lease", key, Row(until, lease.holder.encode(), lease.token))
        return lease

    async def renew(self, lease: Lease, ttl: float) -> bool:
        check_lease(lease.key, ttl)
        with self._lock:
            row = self._held(lease)
            if row is not None:
                row.until = time.monotonic() + ttl
        return row is not None

    async def release(self, lease: Lease) -> None:
        with self._lock:
            if self._held(lease):
                self._drop("lease", lease.key)

    async def take(self, key: str, *, rate: float, burst: float, cost: float = 1.0) -> float:
        check_take(key, rate, burst, cost)
        with self._lock:
            now = time.monotonic()
            row = self._live("bucket", key)
            full_at = row.until if row else now
            full_at, wait = take_tokens(full_at, now, rate=rate, burst=burst, cost=cost)
            self._keep("bucket", key, Row(full_at))
        return wait

    async def append(self, log: str, entry: bytes, *, max_entries: int, ttl: float) -> int:
        check_append(log, entry, max_entries, ttl)
        until = time.monotonic() + ttl
        with self._lock:
            row = self._live("log", log)
            if row is None:
                row = Row(until)
                self._keep("log", log, row)
            self._make_room(len(entry) + OVERHEAD)
            row.until, position = until, self._next_number()
            row.entries.append((position, entry))
            self._resize(row, len(entry) + OVERHEAD)
            while len(row.entries) > max_entries:
                self._resize(row, -len(row.entries.popleft()[1]) - OVERHEAD)
        return position

    async def read(self, log: str, after: int = 0, *, limit: int = 100) -> list[tuple[int, bytes]]:
        check_read(log, limit)
        with self._lock:
            row = self._live("log", log)
            found = [one for one in row.entries if one[0] > after] if row else []
        return found[:limit]

    async def publish(self, channel: str, message: bytes) -> None:
        check_message(channel, message)
        self._channels.deliver(channel, message)

    @asynccontextmanager
    async def subscribe(self, channel: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        check_name(channel)
        with self._channels.subscription(channel) as messages:
            yield messages

    async def aclose(self) -> None:
        """End the subscriptions. The contents stay as long as the object lives."""
        self._channels.close()

    def _live(self, kind: str, name: str) -> Row | None:
        row = self._rows.get((kind, name))
        return row if row is not None and time.monotonic() < row.until else None

    def _held(self, lease: Lease) -> Row | None:
        row = self._live("lease", lease.key)
        return row if row is not None and row.content == lease.holder.encode() else None

    def _keep(self, kind: str, name: str, row: Row) -> None:
        size = OVERHEAD + len(name) + len(row.content)
        old = self._rows.get((kind, name))
        self._make_room(size - (old.size if old else 0))
        if (kind, name) in self._rows:
            self._drop(kind, name)
        self._rows[kind, name] = row
        self._resize(row, size)

    def _make_room(self, grown: int) -> None:
        if self._bytes + grown > self.max_bytes or len(self._rows) >= self._sweep_at:
            self._sweep()
        if grown > 0 and self._bytes + grown > self.max_bytes:
            raise StoreUnavailable(
                f"the store is full ({self.max_bytes} bytes)",
                store="memory:",
                remedy="Raise max_bytes of the MemoryStore, or use shorter ttls",
            )

    def _resize(self, row: Row, grown: int) -> None:
        row.size += grown
        self._bytes += grown

    def _drop(self, kind: str, name: str) -> None:
        self._bytes -= self._rows.pop((kind, name)).size

    def _sweep(self) -> None:
        """Drop expired rows. Runs when the rows have doubled: amortized O(1) per put."""
        for kind, name in list(self._rows):
            if not self._live(kind, name):
                self._drop(kind, name)
        self._sweep_at = 2 * len(self._rows) + 1024

    def _next_number(self) -> int:
        """The next version, fencing token or position."""
        self._last_number = max(self._last_number + 1, time.time_ns() // 1000)
        return self._last_number


class Channels:
    """The subscriptions of one process. Messages may be delivered from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: dict[str, set[Subscription]] = {}

    def names(self) -> list[str]:
        return list(self._subscriptions)

    def subscription(self, name: str) -> Subscription:
        return Subscription(self, name)

    def deliver(self, name: str, message: bytes) -> None:
        with self._lock:
            receivers = list(self._subscriptions.get(name, ()))
        for receiver in receivers:
            receiver.receive(message)

    def close(self) -> None:
        with self._lock:
            receivers = [one for group in self._subscriptions.values() for one in group]
        for receiver in receivers:
            receiver.receive(None)

    def add(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions.setdefault(subscription.name, set()).add(subscription)

    def remove(self, subscription: Subscription) -> None:
        with self._lock:
            remaining = self._subscriptions.get(subscription.name, set())
            remaining.discard(subscription)
            if not remaining:
                self._subscriptions.pop(subscription.name, None)


class Subscription:
    """Async iterator over the messages of one channel, for one subscriber in its event loop."""

    def __init__(self, channels: Channels, name: str) -> None:
        self.name = name
        self._channels = channels
        self._loop = asyncio.get_running_loop()
        self._queue: deque[bytes] = deque(maxlen=MAX_QUEUED)
        self._closed = False
        self._ready = asyncio.Event()

    def __enter__(self) -> Subscription:
        self._channels.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        self._channels.remove(self)

    def receive(self, message: bytes | None) -> None:
        """Queue a message, from any thread. None ends the subscription."""
        if message is None:
            self._closed = True
        else:
            self._queue.append(message)
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # its event loop was closed while it was subscribed
            self._channels.remove(self)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> bytes:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._ready.clear()
            if not self._queue and not self._closed:
                await self._ready.wait()
        return self._queue.popleft()
