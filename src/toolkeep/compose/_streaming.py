"""A plan that is watched: its events as they happen, and its account at the end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

from toolkeep.compose._account import Account
from toolkeep.compose._events import Finished, OnEvent, PlanEvent

__all__ = ["Running"]


class Running:
    """Made by `stream`, entered once, iterated by one task.

    Leaving the block early cancels the plan; `account` says then what was under way. Iterating is
    optional: `result()` alone works too.
    """

    def __init__(self, run: Callable[[OnEvent], Awaitable[Account]]) -> None:
        self._run = run
        self._task: asyncio.Task[Account] | None = None
        self._events: deque[PlanEvent] = deque()
        self._news = asyncio.Event()
        self._account: Account | None = None

    @property
    def account(self) -> Account:
        """How it went. Only once the plan is over."""
        if self._account is None:
            raise RuntimeError("the plan has not ended, or was not started")
        return self._account

    async def result(self) -> Account:
        """The account, as soon as there is one; raises `PlanRefused`, if there is none to come."""
        task = self._running()
        await asyncio.wait((task,))
        return self.account if task.cancelled() else task.result()

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("a plan is run once; stream again for another time")
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
            # Not at once: a task that is cancelled before its first step has no account to give.
            asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # told by `result`; never "never retrieved"

    def __aiter__(self) -> AsyncIterator[PlanEvent]:
        return self

    async def __anext__(self) -> PlanEvent:
        task = self._running()
        while not self._events:
            if task.done():
                if not task.cancelled() and (refused := task.exception()) is not None:
                    raise refused
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._events.popleft()

    async def _carry_out(self) -> Account:
        return await self._run(self._receive)

    def _receive(self, event: PlanEvent) -> None:
        if isinstance(event, Finished):
            self._account = event.account
        self._events.append(event)
        self._news.set()

    def _running(self) -> asyncio.Task[Account]:
        if self._task is None:
            raise RuntimeError("enter it first: async with compose.stream(…) as running")
        return self._task
