"""A result store, handled as what it is: somebody else's code.

It is there to save time, and never costs a call. What fails or hangs is told in the log by its kind
alone, and left alone for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from time import monotonic
from typing import Any, TypeVar, cast

from mainstay._wire.cancelling import cancellations, is_cancelled
from mainstay.stores.results import MemoryResultStore, ResultStore

logger = logging.getLogger("mainstay.results")

PATIENCE = 1.0
"""Seconds that a store has."""
LEFT_ALONE = 10.0
"""Seconds after it failed."""

Found = TypeVar("Found")


class Shelving:
    """One for each runtime."""

    def __init__(self, store: ResultStore | None) -> None:
        self._store = MemoryResultStore() if store is None else store
        self._not_before = 0.0

    async def load(self, key: str) -> bytes | None:
        if monotonic() < self._not_before:
            return None
        found = cast("object", await self._ask(self._store.load(key), None))
        return found if isinstance(found, bytes) and found else None

    async def save(self, key: str, value: bytes, seconds: float) -> None:
        if monotonic() >= self._not_before:
            await self._ask(self._store.save(key, value, seconds), None)

    async def _ask(self, asking: Coroutine[Any, Any, Found], otherwise: Found) -> Found:
        before = cancellations()
        try:
            async with asyncio.timeout(PATIENCE):
                return await asking
        except asyncio.CancelledError as error:
            if is_cancelled(before):
                raise
            kind = type(error).__name__
        except Exception as error:
            kind = type(error).__name__
        self._not_before = monotonic() + LEFT_ALONE
        logger.warning("the result store failed (%s); going on without it for a while", kind)
        return otherwise
