"""Results that are used again, where the configuration asks for it.

Only of tools that are marked read-only, only for the same caller with the same arguments and
headers, never an error, never a question. Equal calls at the same time are one call: the others
wait for it, and if it comes to nothing each is made by itself. Whatever this runtime writes to a
server (a call of a tool that is not read-only) ends what was kept of that server, both when it is
sent and when it is over.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import uuid
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, cast

from mainstay._engine.belonging import told_apart
from mainstay._engine.wanted import Wanted
from mainstay._rules.headers import identity
from mainstay._rules.patterns import glob
from mainstay._runtime.finding import Found
from mainstay.config import ServerSpec
from mainstay.results import CallResult
from mainstay.stores.results import MemoryResultStore, ResultStore

logger = logging.getLogger("mainstay.results")

_PATIENCE = 1.0
"""Seconds that a store has: it is there to save time."""

Make = Callable[[], Awaitable[CallResult]]


class Reuse:
    """One for each runtime."""

    def __init__(self, store: ResultStore | None) -> None:
        self._store = MemoryResultStore() if store is None else store
        self._under_way: dict[str, asyncio.Future[bytes | None]] = {}
        self._stamps: dict[str, str] = {}
        """For each server that something was written to: another one each time."""
        self._own = uuid.uuid4().hex

    async def answer(
        self, found: Found, wanted: Wanted, make: Make, *, joins: bool, within: float
    ) -> CallResult:
        """What is kept, what an equal call is about to bring, or what `make` brings. `joins`: it
        may wait for another call, since nobody watches it. Raises `TimeoutError` if that does not
        end `within` its own time."""
        if not found.tool.read_only:
            return await self._write(found.supplier.name, make)
        seconds = _seconds(found.supplier.spec, found.tool.tool) if _is_plain(wanted) else None
        began, key = monotonic(), self._key(found, wanted) if seconds else None
        if seconds is None or key is None:
            return await make()
        kept, other = await self._load(key), None
        if kept is None:
            other = self._under_way.get(key) if joins else None
            if other is None:
                return await self._make(key, make, seconds)
            async with asyncio.timeout(within):
                kept = await asyncio.shield(other)
        if kept is None:  # the other came to nothing
            return await make()
        raw = cast("dict[str, Any]", json.loads(kept))
        server, tool = found.tool.key
        return CallResult(raw, server, tool, 0, monotonic() - began, cached=True)

    async def _write(self, server: str, make: Make) -> CallResult:
        self._stamps[server] = uuid.uuid4().hex
        try:
            return await make()
        finally:
            self._stamps[server] = uuid.uuid4().hex

    async def _make(self, key: str, make: Make, seconds: float) -> CallResult:
        under_way: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        first = self._under_way.setdefault(key, under_way) is under_way
        value = None
        try:
            result = await make()
            if result.success:
                value = json.dumps(result.raw).encode()
        finally:
            if first:
                del self._under_way[key]
                under_way.set_result(value)
        if value is not None:
            await self._save(key, value, seconds)
        return result

    def _key(self, found: Found, wanted: Wanted) -> str | None:
        """Of who asks what, where; None: that cannot be said. What credentials a named principal
        brings changes nothing."""
        spec, caller = found.supplier.spec, found.speaker.identity
        told = told_apart(
            identity(found.headers or {}, spec.neutral_headers),
            named=caller is not None and caller.principal is not None,
        )
        where = [spec.name, spec.url, spec.urls, spec.command, spec.args, sorted(spec.env.items())]
        own = self._own if spec.server is not None else ""
        who = [caller.key if caller else None, told, sorted(spec.headers.items())]
        what = [found.tool.tool, wanted.arguments or {}]
        facts = [self._stamps.get(spec.name, ""), own, where, spec.cwd, who, what]
        try:
            written = json.dumps(facts, sort_keys=True)
        except (TypeError, ValueError, RecursionError):  # so it cannot be sent, either
            return None
        return hashlib.sha256(written.encode()).hexdigest()

    # -- the store, which is somebody else's code -----------------------------------------------

    async def _load(self, key: str) -> bytes | None:
        try:
            async with asyncio.timeout(_PATIENCE):
                return await self._store.load(key)
        except Exception as error:
            logger.warning("the result store failed (%s); going on without", type(error).__name__)
            return None

    async def _save(self, key: str, value: bytes, seconds: float) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._store.save(key, value, seconds)
        except Exception as error:
            logger.warning("the result store failed (%s); going on without", type(error).__name__)


def _is_plain(wanted: Wanted) -> bool:
    """Whether nothing but its arguments and its caller tells it from others."""
    goes_on = wanted.request_state is not None or wanted.input_responses is not None
    return wanted.input == "answer" and wanted.meta is None and not goes_on


def _seconds(spec: ServerSpec, tool: str) -> float | None:
    """The shortest of those that are said for this tool."""
    said = [seconds for pattern, seconds in spec.cache_results.items() if glob(pattern).match(tool)]
    return min(said, default=None)
