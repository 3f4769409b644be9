"""Tasks that nobody waits for: cancellations on their way, answers to the server's requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

logger = logging.getLogger("toolkeep.wire")

_MOST_ERRANDS = 1000
"""A server that asks for more at once than this gets no answer to the rest."""


class Errands:
    """The errands of one dispatcher. None outlives it: after `cancel` nothing starts."""

    def __init__(self) -> None:
        self._over = False
        self._running: set[asyncio.Task[None]] = set()
        self._owed: set[asyncio.Task[None]] = set()

    def start(
        self,
        errand: Coroutine[Any, Any, None],
        *,
        context: Context | None = None,
        owed: bool = True,
    ) -> None:
        """`owed`: to the server, so that closing gives it a moment."""
        if self._over or len(self._running) >= _MOST_ERRANDS:
            errand.close()
            logger.debug("an errand is dropped: closed, or more than %d at once", _MOST_ERRANDS)
            return
        task = asyncio.get_running_loop().create_task(errand, context=context)
        for kept in (self._running, self._owed) if owed else (self._running,):
            kept.add(task)
            task.add_done_callback(kept.discard)

    async def flush(self, within: float) -> None:
        """Give those that are owed a moment to finish."""
        if self._owed:
            await asyncio.wait(tuple(self._owed), timeout=within)

    def cancel(self) -> None:
        self._over = True
        for task in tuple(self._running):
            task.cancel()


async def outlive(task: asyncio.Task[None], within: float) -> None:
    """Let a task end by itself, for a while."""
    try:
        await asyncio.wait((task,), timeout=within)
    finally:
        task.cancel()
