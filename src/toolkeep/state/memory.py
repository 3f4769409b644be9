"""The store of one process: dictionaries behind a lock, for all its threads and event loops.

Also `Channels`, the publish and subscribe of one process, which the other drivers feed with what
they receive.
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

from toolkeep._rules.budget import take_tokens
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

MAX_WAITING = 1000
"""Messages that wait for one subscriber. The oldest are dropped."""

OVERHEAD = 300
"""Bytes that a row costs beside its name and its content, nearly."""

BATCH = 500
"""Names of one batch of a scan."""


@dataclass(slots=True)
class Row:
    """One value, lease, bucket or log. Of a bucket only `until`: when it is full."""

    until: float
    content: bytes = b""
    version: int = 0
    entries: deque[tuple[int, bytes]] = field(default_factory=deque[tuple[int, bytes]])
    size: int = 0


class MemoryStore:
    """The default store. What it keeps ends with the process.

    `max_bytes` bounds it: when expired rows have been dropped and there still is no room, `put` and
    `append` raise `StoreUnavailable`. Nothing is dropped before its time.
    """

    def __init__(self, max_bytes: int = 64 * 1024 * 1024) -> None:
        self.max_bytes = max_bytes
        self._rows: dict[tuple[str, str], Row] = {}
        self._bytes, self._sweep_at = 0, 1024
        self._last = 0
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
            row.version = self._next()
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
            lease = Lease(key, self._next(), secrets.token_hex(16))
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
            row.until, position = until, self._next()
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
        """End the subscriptions. What is kept stays for as long as the object lives."""
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
                f"it is full ({self.max_bytes} bytes)",
                store="memory:",
                remedy="Give the MemoryStore more max_bytes, or what is kept a shorter ttl",
            )

    def _resize(self, row: Row, grown: int) -> None:
        row.size += grown
        self._bytes += grown

    def _drop(self, kind: str, name: str) -> None:
        self._bytes -= self._rows.pop((kind, name)).size

    def _sweep(self) -> None:
        """Drop what has expired. Runs when the rows have doubled, so that a put costs the same."""
        for kind, name in list(self._rows):
            if not self._live(kind, name):
                self._drop(kind, name)
        self._sweep_at = 2 * len(self._rows) + 1024

    def _next(self) -> int:
        self._last = max(self._last + 1, time.time_ns() // 1000)
        return self._last


class Channels:
    """The subscriptions of one process, fed from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[str, set[Subscription]] = {}

    def names(self) -> list[str]:
        return list(self._by_name)

    def subscription(self, name: str) -> Subscription:
        return Subscription(self, name)

    def deliver(self, name: str, message: bytes) -> None:
        with self._lock:
            receivers = list(self._by_name.get(name, ()))
        for receiver in receivers:
            receiver.receive(message)

    def close(self) -> None:
        with self._lock:
            receivers = [one for each in self._by_name.values() for one in each]
        for receiver in receivers:
            receiver.receive(None)

    def add(self, one: Subscription) -> None:
        with self._lock:
            self._by_name.setdefault(one.name, set()).add(one)

    def remove(self, one: Subscription) -> None:
        with self._lock:
            rest = self._by_name.get(one.name, set())
            rest.discard(one)
            if not rest:
                self._by_name.pop(one.name, None)


class Subscription:
    """The messages of one channel for one subscriber, in its event loop. An async iterator."""

    def __init__(self, channels: Channels, name: str) -> None:
        self.name = name
        self._channels = channels
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
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
        """From any thread. None: it is over."""
        if message is None:
            self._closed = True
        else:
            self._waiting.append(message)
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # its event loop was closed without leaving the subscription
            self._channels.remove(self)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> bytes:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._ready.clear()
            if not self._waiting and not self._closed:
                await self._ready.wait()
        return self._waiting.popleft()
