"""The stocks of one server by identity, each listed once however many wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from time import monotonic
from typing import Any

from toolkeep._catalogue.stock import Aged, Stock
from toolkeep._engine.tenancy import superseded
from toolkeep._wire.cancelling import cancellations, is_cancelled
from toolkeep.errors import ServerUnavailable

_MOMENT = 0.05
"""Seconds longer than the work itself may take, since that knows better what it waited for."""

_SHUNNED = 5.0
"""Seconds."""

OWN = ""
"""The key of the server's own client."""


class Stocks:
    """One for each supplier. Remembers those last used; what is fetched is kept by who fetches."""

    def __init__(self, server: str, most: int) -> None:
        self._server, self._most = server, most
        self._kept: OrderedDict[str, Stock] = OrderedDict()
        self._outdated: set[str] = set()
        self._shunned: dict[str, float] = {}
        self.changes = 0
        """How often something was outdated."""
        self._fetching: dict[tuple[str, int], asyncio.Task[Stock]] = {}
        """By key, and by what was known to have changed when it began."""
        self._listing: Counter[str] = Counter()
        self._waiting: Counter[asyncio.Task[Stock]] = Counter()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: str) -> Stock | None:
        """What is true, as far as anybody knows."""
        found = self._kept.get(key)
        if found is None or key in self._outdated or found.expired:
            return None
        self._kept.move_to_end(key)
        return found

    def last(self, key: str) -> Stock | None:
        """What was true last, however long ago."""
        return self._kept.get(key)

    def keep(self, key: str, stock: Stock) -> None:
        self._outdated.discard(key)
        self._shunned.pop(key, None)
        self._kept[key] = stock
        self._kept.move_to_end(key)
        while len(self._kept) > self._most:
            self._outdated.discard(self._kept.popitem(last=False)[0])

    def outdate(self, key: str | None = None) -> None:
        """One, or all, may no longer be true; nor may what is being fetched."""
        self.changes += 1
        self._outdated |= self._kept.keys() if key is None else self._kept.keys() & {key}

    def age(self) -> None:
        """The server is out of reach."""
        known: dict[int, Aged] = {}
        for key, stock in self._kept.items():
            self._kept[key] = stock.aged_like(known)

    def shun(self, key: str) -> None:
        """It could not be listed just now: whoever only looks around does not wait for it."""
        now = monotonic()
        self._shunned = {one: until for one, until in self._shunned.items() if until > now}
        self._shunned[key] = now + _SHUNNED

    def is_shunned(self, key: str) -> bool:
        return self._shunned.get(key, 0) > monotonic()

    def forget(self, key: str) -> None:
        self.changes += 1
        self._kept.pop(key, None)
        self._outdated.discard(key)

    async def fetch(
        self, key: str, work: Callable[[], Coroutine[Any, Any, Stock]], within: float
    ) -> Stock:
        """What `work` brings, or what somebody else's brings who came first. The work goes on until
        the last of those who wait goes away."""
        number = key, self.changes
        task = self._fetching.get(number)
        if task is None or task.done():
            task = asyncio.get_running_loop().create_task(work(), context=Context())
            self._fetching[number] = task
            task.add_done_callback(lambda done: self._ended(number, done))
        self._waiting[task] += 1
        before = cancellations()
        try:
            async with asyncio.timeout(within + _MOMENT):
                return await asyncio.shield(task)
        except TimeoutError:
            text = f"{self._server} has not listed its tools within {within:.3g} s"
            raise ServerUnavailable(text, server=self._server) from None
        except asyncio.CancelledError:
            if is_cancelled(before) or not task.cancelled():
                raise
            raise superseded(self._server) from None
        finally:
            self._leave(task)

    def _leave(self, task: asyncio.Task[Stock]) -> None:
        self._waiting[task] -= 1
        if not self._waiting[task]:
            del self._waiting[task]
            task.cancel()

    @contextlib.contextmanager
    def listing(self, key: str) -> Generator[None]:
        """What is listed meanwhile for this key is no news."""
        self._listing[key] += 1
        try:
            yield
        finally:
            self._listing[key] -= 1
            if not self._listing[key]:
                del self._listing[key]

    def is_listing(self, key: str) -> bool:
        return key in self._listing

    async def stop(self) -> None:
        """Vouch for nothing, and fetch nothing more."""
        self.outdate()
        fetching = tuple(self._fetching.values())
        for task in fetching:
            task.cancel()
        if fetching:
            await asyncio.wait(fetching)

    def _ended(self, number: tuple[str, int], task: asyncio.Task[Stock]) -> None:
        if self._fetching.get(number) is task:
            del self._fetching[number]
        if not task.cancelled():
            task.exception()  # told to those who wait, if anybody still does
