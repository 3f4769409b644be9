"""A call that is watched: its events as they happen, and its result at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

from toolkeep._rules.unread import Unread, size_of_report
from toolkeep.errors import Delivery, ToolkeepError
from toolkeep.events import CallEvent
from toolkeep.results import CallResult

logger = logging.getLogger("toolkeep.client")

Emit = Callable[[CallEvent], None]


class LeftEarly(ToolkeepError):
    """The result of a call that was left before it ended. It may have run."""

    delivery = Delivery.UNKNOWN


class Call:
    """Made by `stream`, entered once, iterated by one task.

        async with client.stream("analyze", {"rows": 10_000}) as call:
            async for event in call: ...
            result = await call.result()

    Leaving the block early cancels the call. Iterating is optional: `result()` alone works too.
    Events wait until they are read. Of progress and log lines no more than 8 MB wait: then the
    oldest are dropped, and `dropped` counts them.
    """

    def __init__(self, run: Callable[[Emit], Awaitable[CallResult]]) -> None:
        self._run = run
        self._task: asyncio.Task[CallResult] | None = None
        self._events = Unread[CallEvent](size_of_report)
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("a call runs once; stream again for another")
        self._task = asyncio.ensure_future(self._carry_out())
        self._task.add_done_callback(lambda _: self._news.set())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task = self._running()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # told by `result` and the last event; never "never retrieved"

    def __aiter__(self) -> AsyncIterator[CallEvent]:
        return self

    async def __anext__(self) -> CallEvent:
        task = self._running()
        while not self._events:
            if task.done():
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._events.popleft()

    @property
    def dropped(self) -> int:
        """How many progress reports and log lines were dropped, because they were not read."""
        return self._events.dropped

    async def result(self) -> CallResult:
        """The result; raises what the call raised."""
        task = self._running()
        await asyncio.wait((task,))
        if task.cancelled():
            raise LeftEarly("the call was cancelled when its block was left; it has no result")
        return task.result()

    async def _carry_out(self) -> CallResult:
        return await self._run(self._receive)

    def _receive(self, event: CallEvent) -> None:
        dropped = self._events.dropped
        self._events.append(event)
        if self._events.dropped and not dropped:
            text = "%s: events of %s come faster than they are read; the oldest are dropped"
            logger.warning(text, event.server, event.tool)
        self._news.set()

    def _running(self) -> asyncio.Task[CallResult]:
        if self._task is None:
            raise RuntimeError("enter the call first: async with client.stream(…) as call")
        return self._task
