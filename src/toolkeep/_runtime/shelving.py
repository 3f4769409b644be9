"""A result store, handled as what it is: somebody else's code.

It is there to save time, and never costs a call. What fails or hangs is told in the log by its kind
alone, and left alone for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from time import monotonic
from typing import TypeVar, cast

from toolkeep._wire.cancelling import cancellations, is_cancelled
from toolkeep.stores.results import MemoryResultStore, ResultStore

logger = logging.getLogger("toolkeep.results")

PATIENCE = 1.0
"""Seconds that a store has at most."""
LEFT_ALONE = 10.0
"""Seconds after it failed."""

Found = TypeVar("Found")


class Shelving:
    """One for each runtime."""

    def __init__(self, store: ResultStore | None) -> None:
        self._store = MemoryResultStore() if store is None else store
        self._not_before = 0.0
        self._saving: set[asyncio.Task[None]] = set()

    async def load(self, key: str, within: float) -> bytes | None:
        """What is kept, if that is told before half of the time is over: the other half is for the
        call itself."""
        if monotonic() < self._not_before or within <= 0:
            return None
        patience = min(PATIENCE, within / 2)
        found = cast("object", await self._ask(partial(self._store.load, key), patience))
        return found if isinstance(found, bytes) and found else None

    async def save(self, key: str, value: bytes, seconds: float, within: float) -> None:
        """Waits `within` the time for it to be kept; after that it goes on by itself."""
        if monotonic() < self._not_before:
            return
        saving = asyncio.get_running_loop().create_task(
            self._save(partial(self._store.save, key, value, seconds)), context=Context()
        )
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)
        await asyncio.wait((saving,), timeout=max(within, 0))

    async def settle(self) -> None:
        """Wait for what is being kept: a second at most."""
        if self._saving:
            await asyncio.wait(self._saving)

    def abandon(self) -> None:
        """The loop is gone, and with it whoever was keeping something."""
        self._saving.clear()

    async def _save(self, save: Callable[[], Awaitable[None]]) -> None:
        await self._ask(save, PATIENCE)

    async def _ask(self, ask: Callable[[], Awaitable[Found]], patience: float) -> Found | None:
        before = cancellations()
        try:
            async with asyncio.timeout(patience):
                return await ask()
        except asyncio.CancelledError as error:
            if is_cancelled(before):
                raise
            kind = type(error).__name__
        except Exception as error:
            kind = type(error).__name__
        self._not_before = monotonic() + LEFT_ALONE
        logger.warning("the result store failed (%s); going on without it for a while", kind)
        return None
