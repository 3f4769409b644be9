"""Where results of read-only tools are kept, to be used again.

A store is handed opaque keys and bytes: who asked what is in the key as a digest only, but the
bytes are what a tool answered, so a store that others can read shows it to them. A store may lose
anything at any time; it may never give back what was not saved under that very key, nor anything
after its time.

The one in memory is not made of `cachetools`: its `TTLCache` has one time for all entries, and its
`TLRUCache`, which has one for each, took two to six times as long (8.0, 20,000 entries of a
kilobyte).
"""

from __future__ import annotations

from collections import OrderedDict
from time import monotonic
from typing import Protocol, runtime_checkable

__all__ = ["MemoryResultStore", "ResultStore"]

_OVERHEAD = 300
"""Bytes that an entry costs beside what it holds, nearly."""


@runtime_checkable
class ResultStore(Protocol):
    """May raise anything: a runtime then calls the tool, as if nothing had been kept."""

    async def load(self, key: str) -> bytes | None:
        """What was saved under this key, if its time is not over."""
        ...

    async def save(self, key: str, value: bytes, seconds: float) -> None:
        """Keep it for so long, or less."""
        ...


class MemoryResultStore:
    """In this process, within a bound. What was used the longest ago makes room."""

    def __init__(self, max_bytes: int = 64 * 1024 * 1024) -> None:
        self.max_bytes, self.bytes = max_bytes, 0
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<MemoryResultStore, {len(self)} results, {self.bytes} of {self.max_bytes} bytes>"

    def __len__(self) -> int:
        return len(self._kept)

    async def load(self, key: str) -> bytes | None:
        found = self._kept.get(key)
        if found is None:
            return None
        until, value = found
        if monotonic() >= until:
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return value

    async def save(self, key: str, value: bytes, seconds: float) -> None:
        self._drop(key)
        if len(value) + _OVERHEAD > self.max_bytes:
            return
        self._kept[key] = (monotonic() + seconds, value)
        self.bytes += len(value) + _OVERHEAD
        while self.bytes > self.max_bytes:
            self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        self._kept.clear()
        self.bytes = 0

    def _drop(self, key: str) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            self.bytes -= len(found[1]) + _OVERHEAD
