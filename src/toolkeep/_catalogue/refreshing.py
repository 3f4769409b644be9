"""Listing again what may no longer be true: soon, never twice at a time, with patience."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextvars import Context

from toolkeep._catalogue.stock import SHORTEST_TTL
from toolkeep._rules.budget import Backoff, Pace
from toolkeep.errors import ToolkeepError

logger = logging.getLogger("toolkeep.catalogue")

_BACKOFF = Backoff(first=0.5, cap=30.0)
_TRIES = 6
"""In a row; then what is known stays until something else happens. A server that changes whenever
it is listed is listed ever more slowly."""

Kinds = frozenset[str]


class Refreshing:
    """One for each supplier. `work` lists some kinds, once `ready` returns; `failed` is called when
    that did not work."""

    def __init__(
        self,
        server: str,
        work: Callable[[Kinds], Awaitable[object]],
        *,
        ready: Callable[[], Awaitable[None]],
        failed: Callable[[], None],
    ) -> None:
        self._server, self._work, self._ready, self._failed = server, work, ready, failed
        self.due: Kinds = frozenset()
        """What may no longer be true."""
        self._pace = Pace(SHORTEST_TTL)
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, kinds: Kinds) -> None:
        """These may no longer be true."""
        self.due |= kinds
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), context=Context())

    def start_after(self, ttl: float, kinds: Kinds) -> None:
        """These are vouched for so long; 0: until somebody says so."""
        if self._timer is not None:
            self._timer.cancel()
        if ttl:
            wait = max(ttl, SHORTEST_TTL)
            self._timer = asyncio.get_running_loop().call_later(wait, self.start, kinds)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _run(self) -> None:
        tries, clock = 0, asyncio.get_running_loop().time
        while self.due and tries < _TRIES:
            await asyncio.sleep(self._pace.wait(clock()))
            await self._ready()
            kinds, self.due = self.due, frozenset()
            try:
                await self._work(kinds)
                tries = 0
                self._pace.done(clock())
            except ToolkeepError as error:
                self.due |= kinds
                tries += 1
                logger.warning("%s: it could not be listed again: %s", self._server, error)
                self._failed()
                await asyncio.sleep(_BACKOFF.delay(tries, random.random()))
