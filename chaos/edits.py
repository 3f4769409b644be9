"""Edits of the configuration while calls are in flight, and which edition may be in force when.

One author, who makes one edit at a time; others forget principals, list and open servers again
whenever they like. Each edit of headers is an edition; the ledger shows by which one a call went.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable
from typing import Any, TypeVar

from chaos.scene import BY_NAME, EDITION, GUEST, VISITOR
from chaos.schedule import Event
from toolkeep import Runtime

_T = TypeVar("_T")
PATIENCE = 60.0
"""Seconds for one edit."""
_HASTE: dict[str, Any] = {
    "breaker_threshold": 25,
    "breaker_cooldown": 0.1,
    "retry_rate": 200.0,
    "retry_burst": 500,
    "timeouts": {"connect": 5.0, "close": 2.0},
    "keep_alive": 1.0,
}
"""A server in trouble all the time is tried again sooner than one would otherwise."""


class Edits:
    """All that is configured, as it changes."""

    def __init__(self, specs: dict[str, dict[str, Any]]) -> None:
        self._specs = specs
        self._written: Counter[str] = Counter()
        self._applied: Counter[str] = Counter()
        self._present = {GUEST, VISITOR}
        self._turn = asyncio.Lock()
        self._runtime: Runtime | None = None
        self.slowest = (0.0, "")
        """How long an edit took at most, without waiting for its turn, and which one."""

    async def govern(self, runtime: Runtime) -> None:
        """From now on its configuration is edited here. It was opened with `configuration`."""
        self._runtime, self._applied = runtime, Counter(self._written)
        self._present = {GUEST, VISITOR}
        await runtime.add({"name": VISITOR, **self._spec(VISITOR)})

    def certain(self, server: str) -> int:
        """The oldest edition that a call which begins now may go by."""
        return self._applied[server]

    def possible(self, server: str) -> int:
        """The newest edition that a call which ends now may have gone by."""
        return self._written[server]

    @property
    def present(self) -> tuple[str, ...]:
        """The servers that there are, when no edit is under way."""
        return tuple(name for name in BY_NAME if name not in {GUEST, VISITOR} - self._present)

    def configuration(self) -> dict[str, Any]:
        absent = {GUEST} - self._present
        return {name: self._spec(name) for name in BY_NAME if name not in {VISITOR, *absent}}

    def _spec(self, name: str) -> dict[str, Any]:
        edition = str(self._written[name])
        spec = {**self._specs[name], **_HASTE, **BY_NAME[name].own}
        if BY_NAME[name].kind != "stdio":
            return {**spec, "headers": {EDITION: edition}}
        return {**spec, "env": {**spec["env"], "EDITION": edition}}

    async def apply(self, event: Event) -> int:
        runtime = self._runtime
        assert runtime is not None
        match event.kind:
            case "headers edited" | "environment edited":
                return await self._edit(runtime, event.target)
            case "guest goes and comes" | "visitor goes and comes":
                await self._go_and_come(runtime, event.target, event.seconds)
            case "principal forgotten":
                await self._timed(event.kind, runtime.forget(event.target))
            case "failed servers retried":
                await self._timed(event.kind, runtime.reconnect())
            case "all servers opened again":
                await self._timed(event.kind, runtime.reconnect(failed_only=False))
            case "lists refreshed":
                await self._timed(event.kind, runtime.refresh())
            case "event loop held up":
                time.sleep(event.seconds)
            case _:
                raise ValueError(event.kind)
        return 1

    async def _timed(self, what: str, edit: Awaitable[_T]) -> _T:
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                return await edit
        finally:
            self.slowest = max(self.slowest, (time.monotonic() - began, what))

    async def _edit(self, runtime: Runtime, server: str) -> int:
        async with self._turn:
            self._written[server] += 1
            return await self._reload(runtime, server)

    async def _reload(self, runtime: Runtime, server: str) -> int:
        edit = await self._timed(f"reload for {server}", runtime.reload(self.configuration()))
        self._applied[server] = self._written[server]
        return len(edit.added) + len(edit.removed) + len(edit.changed)

    async def _go_and_come(self, runtime: Runtime, server: str, seconds: float) -> None:
        """Others may do the same at the same time: who is gone already goes no further."""
        try:
            await self._be(runtime, server, present=False)
            await asyncio.sleep(seconds)
        finally:
            await self._be(runtime, server, present=True)

    async def _be(self, runtime: Runtime, server: str, *, present: bool) -> None:
        async with self._turn:
            if present == (server in self._present):
                return
            self._present ^= {server}
            if server == GUEST:
                await self._reload(runtime, GUEST)
            elif not present:
                await self._timed("remove", runtime.remove(VISITOR))
            else:
                self._written[VISITOR] += 1
                spec = {"name": VISITOR, **self._spec(VISITOR)}
                await self._timed("add", runtime.add(spec))
                self._applied[VISITOR] = self._written[VISITOR]
