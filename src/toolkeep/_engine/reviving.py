"""Opening again for those who only listen: no call of theirs would notice that nothing is open."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextvars import Context

from toolkeep._rules.budget import Backoff

_BACKOFF = Backoff()


class Reviving:
    """One for each keeper. At most one task at a time, which ends with the client."""

    def __init__(
        self,
        open_again: Callable[[], Awaitable[bool]],
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._open_again, self._pause = open_again, pause
        self._task: asyncio.Task[None] | None = None
        self._attempts, self._revived_at = 0, 0.0

    def start(self) -> None:
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._revive(), context=Context())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _revive(self) -> None:
        clock = asyncio.get_running_loop().time
        if clock() - self._revived_at > _BACKOFF.cap:
            self._attempts = 0  # what was opened last has lasted
        while True:
            if self._attempts:
                await self._pause(_BACKOFF.delay(self._attempts, random.random()))
            self._attempts += 1
            if await self._open_again():
                self._revived_at = clock()
                return
