"""The `Store` protocol: values, leases, token buckets, logs and channels that processes share.

A store makes single operations atomic and contains no policy. Each kind has its own namespace: a
value, a lease, a bucket and a log may have the same name.

Every operation either returns within the store's `timeout` (250 ms by default) or raises
`StoreUnavailable`; then it may or may not have happened. An invalid name or number raises
ValueError before anything is sent.

Versions, fencing tokens and positions are microseconds since the epoch, increased where needed so
that they always grow. Compare them, do not count them: gaps are normal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from toolkeep.errors import StoreUnavailable

__all__ = ["Entry", "Lease", "Store", "StoreUnavailable"]

TIMEOUT = 0.25
"""Seconds that an operation may take."""

MAX_NAME, MAX_VALUE = 1024, 16 * 1024 * 1024
"""Bytes of one name (in UTF-8) and of one value, log entry or message."""

MAX_SECONDS = 10 * 366 * 86_400.0
"""Ten years. A longer time is probably a wrong unit, and is rejected."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored value and its version."""

    value: bytes
    version: int
    """Grows with every put of this key; never reused, even after a delete or expiry."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Exclusive hold of a key until it is released or expires."""

    key: str
    token: int
    """The fencing token: grows with every lease of this key."""
    holder: str
    """A random id of the holder."""


@runtime_checkable
class Store(Protocol):
    """State that processes share. Test your own driver with `toolkeep.testing.store_suite`."""

    async def get(self, key: str) -> Entry | None:
        """The value of `key` and its version; None if it is absent or expired."""
        ...

    async def put(
        self, key: str, value: bytes, *, ttl: float | None = None, if_version: int | None = None
    ) -> int | None:
        """Store `value` for `ttl` seconds (None: until it is deleted) and return its version.

        With `if_version`, only if that is the current version (0: only if there is no value).
        None: it was not, and nothing has changed.
        """
        ...

    async def delete(self, key: str, *, if_version: int | None = None) -> bool:
        """Delete the value; with `if_version`, only if that is its version.

        False: nothing has changed.
        """
        ...

    def scan(self, prefix: str) -> AsyncIterator[str]:
        """The keys of values that begin with `prefix`, in any order, read in batches.

        A key that exists during the whole scan is yielded at least once. A key that is put or
        deleted meanwhile may be yielded or not.
        """
        ...

    async def lease(self, key: str, ttl: float) -> Lease | None:
        """Lease `key` for `ttl` seconds. None: it is leased already."""
        ...

    async def renew(self, lease: Lease, ttl: float) -> bool:
        """Extend the lease to `ttl` seconds from now. False: the lease was lost."""
        ...

    async def release(self, lease: Lease) -> None:
        """End the lease. Does nothing if it was lost."""
        ...

    async def take(self, key: str, *, rate: float, burst: float, cost: float = 1.0) -> float:
        """Take `cost` tokens of a bucket of `burst` tokens, refilled with `rate` tokens per second.

        Returns 0.0, or, if there are too few tokens, the seconds until there are enough; then
        nothing was taken. A new bucket is full.
        """
        ...

    async def append(self, log: str, entry: bytes, *, max_entries: int, ttl: float) -> int:
        """Add an entry and return its position. The oldest beyond `max_entries` are dropped.

        The whole log expires `ttl` seconds after the last append.
        """
        ...

    async def read(self, log: str, after: int = 0, *, limit: int = 100) -> list[tuple[int, bytes]]:
        """At most `limit` entries with positions greater than `after`, the oldest first."""
        ...

    async def publish(self, channel: str, message: bytes) -> None:
        """Send `message` to the current subscribers of `channel`."""
        ...

    def subscribe(self, channel: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The messages that are published from now on.

        Lossy: messages are dropped while the store is unavailable and when a subscriber is slow, so
        also poll for what matters. Ends when the store is closed.
        """
        ...

    async def aclose(self) -> None:
        """Close connections and end subscriptions. The store may be used again afterwards."""
        ...


# Argument checks, shared by the drivers.


def check_name(name: str) -> None:
    """Check the name of a value, lease, bucket, log or channel."""
    if not 0 < len(name.encode()) <= MAX_NAME:
        raise ValueError(f"the name of a value, lease or log must have 1 to {MAX_NAME} bytes")


def check_lease(key: str, ttl: float) -> None:
    check_name(key)
    if not 0 < ttl <= MAX_SECONDS:
        raise ValueError("ttl must be a number of seconds above 0 and at most ten years")


def check_version(key: str, if_version: int | None) -> None:
    check_name(key)
    if if_version is not None and if_version < 0:
        raise ValueError("if_version must be 0 (only if absent) or a version")


def check_put(key: str, value: bytes, ttl: float | None, if_version: int | None) -> None:
    check_version(key, if_version)
    check_message(key, value)
    if ttl is not None:
        check_lease(key, ttl)


def check_take(key: str, rate: float, burst: float, cost: float) -> None:
    check_name(key)
    if not (0 < rate < float("inf") and 0 < cost <= burst <= rate * MAX_SECONDS):
        raise ValueError(
            "a bucket needs a rate above 0, and a cost above 0 and at most burst:"
            f" rate={rate:g}, burst={burst:g}, cost={cost:g}"
        )


def check_append(log: str, entry: bytes, max_entries: int, ttl: float) -> None:
    check_message(log, entry)
    check_lease(log, ttl)
    if max_entries < 1:
        raise ValueError("max_entries must be 1 or more")


def check_read(log: str, limit: int) -> None:
    check_name(log)
    if limit < 1:
        raise ValueError("limit must be 1 or more")


def check_message(name: str, message: bytes) -> None:
    check_name(name)
    if len(message) > MAX_VALUE:
        raise ValueError(f"a value must have at most {MAX_VALUE} bytes, not {len(message)}")
