"""`Cache`: values that may be lost at any time, in the shared store, or, without one, in this
process.

A failing store is a miss, never an error.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from time import monotonic

from toolkeep.errors import StoreUnavailable
from toolkeep.state.shared import SharedState

MARK_TTL = 7 * 86_400.0
"""Seconds that a mark is remembered: longer than any value is kept."""
MAX_LOCAL_MARKS = 4096
_OVERHEAD = 300
"""Approximate bytes of a value of this process, besides its content."""


class Stamp(bytes):
    """The versions of all marks of a value, when it was looked for. Empty: nothing can be saved."""

    version: int | None = None
    """The version of the value itself, if it is in the store."""


class Cache:
    """Values by name, each valid while none of its marks was moved since its stamp was taken.

    `load` gives the stamp; `save` it with what was made after that. Without a store, the least
    recently used are dropped above `max_bytes`.
    """

    def __init__(self, state: SharedState, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._state, self.max_bytes, self.bytes = state, max_bytes, 0
        self._values: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._marks: dict[str, int] = {}
        """Marks that were moved in this process and not in the store."""
        self._epoch = ""

    def __len__(self) -> int:
        return len(self._values)

    async def load(self, key: str, marks: Sequence[str] = ()) -> tuple[bytes | None, Stamp]:
        """The value, or None, and the stamp."""
        if not self._state:
            return self._open(self._load_local(key), stamp := self._stamp(marks, ())), stamp
        names = (*marks, key)
        try:
            *moved, found = await self._state.ask(
                lambda store: asyncio.gather(*(store.get(name) for name in names))
            )
        except StoreUnavailable:
            return None, Stamp()
        stamp = self._stamp(marks, [entry.version if entry else 0 for entry in moved])
        stamp.version = found.version if found else 0
        return self._open(found.value if found else None, stamp), stamp

    async def save(self, key: str, value: bytes, stamp: Stamp, ttl: float) -> bool:
        """Keep the value for `ttl` seconds, unless another process has saved one since the stamp
        was taken; False: it could not be kept."""
        if not stamp:
            return False
        value = stamp + b"\n" + value
        if not self._state:
            return self._save_local(key, value, ttl)
        try:
            seen = stamp.version
            await self._state.ask(lambda store: store.put(key, value, ttl=ttl, if_version=seen))
        except StoreUnavailable:
            return False
        return True

    async def delete(self, key: str) -> bool:
        """Whether the value is gone."""
        self._drop(key)
        try:
            if self._state:
                await self._state.ask(lambda store: store.delete(key))
        except StoreUnavailable:
            return False
        return True

    async def move(self, mark: str) -> None:
        """Make all values with this mark invalid, for all processes; if the store is down, for this
        one."""
        try:
            await self._state.ask(lambda store: store.put(mark, b"", ttl=MARK_TTL))
        except StoreUnavailable:
            self._marks[mark] = self._marks.get(mark, 0) + 1
        if len(self._marks) > MAX_LOCAL_MARKS:
            self._marks.clear()
            self._epoch = uuid.uuid4().hex

    def _stamp(self, marks: Sequence[str], versions: Sequence[int]) -> Stamp:
        local = [self._marks.get(mark, 0) for mark in marks] if self._marks else ()
        text = f"1{self._epoch}:{list(versions)}{list(local) if any(local) else ''}"
        return Stamp(text.encode())

    def _open(self, found: bytes | None, stamp: bytes) -> bytes | None:
        taken, _, value = (found or b"").partition(b"\n")
        return value if found and taken == stamp else None

    # -- without a store --------------------------------------------------------------------------

    def _load_local(self, key: str) -> bytes | None:
        found = self._values.get(key)
        if found is None:
            return None
        if monotonic() >= found[0]:
            self._drop(key)
            return None
        self._values.move_to_end(key)
        return found[1]

    def _save_local(self, key: str, value: bytes, ttl: float) -> bool:
        self._drop(key)
        if len(value) + _OVERHEAD > self.max_bytes:
            return False
        self._values[key] = (monotonic() + ttl, value)
        self.bytes += len(value) + _OVERHEAD
        while self.bytes > self.max_bytes:
            self._drop(next(iter(self._values)))
        return True

    def _drop(self, key: str) -> None:
        found = self._values.pop(key, None)
        if found is not None:
            self.bytes -= len(found[1]) + _OVERHEAD
