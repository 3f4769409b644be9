"""`LoopGuard`: an open object belongs to one event loop and one process until it is closed.

Raises `WrongLoop` for use elsewhere, and closes objects that were dropped unclosed. Never
blocks and never opens anything.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from toolkeep.errors import WrongLoop


class _CurrentProcess:
    """The current process id, cached: asking the system costs more than the rest of a check."""

    pid = os.getpid()

    @classmethod
    def refresh(cls) -> None:
        cls.pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_CurrentProcess.refresh)


_close_tasks: set[asyncio.Task[None]] = set()
"""Closings of dropped objects. The event loop itself holds only weak references to tasks."""


def _start_close(
    loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    task = loop.create_task(close(), context=Context())
    _close_tasks.add(task)
    task.add_done_callback(_close_tasks.discard)


class LoopGuard:
    """The event loop and process in which an object was first used. Lives as long as what is
    open."""

    def __init__(self, name: str, what: str = "client", close: str = "aclose()") -> None:
        self._message = f"{name}: this {what} was opened in another", f"Close it there with {close}"
        self._what = what
        self.loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    @property
    def is_forked(self) -> bool:
        """Whether it was opened in the parent process."""
        return self.loop is not None and self._pid != _CurrentProcess.pid

    @property
    def is_unreachable(self) -> bool:
        """Whether its loop is closed or belongs to the parent process."""
        return self.is_forked or (self.loop is not None and self.loop.is_closed())

    def close_unclosed(
        self,
        owner: object,
        close: Callable[[], Coroutine[Any, Any, None]],
        detach: Callable[[], None],
    ) -> None:
        """Close an owner that was dropped unclosed, in its loop if that still runs, and warn. May
        be called from any thread, by a finalizer."""
        if self.is_forked:
            detach()
            return
        loop = self.loop
        if loop is None or loop.is_closed():
            detach()
        else:
            loop.call_soon_threadsafe(_start_close, loop, close)
        warnings.warn(f"unclosed {owner!r}", ResourceWarning, source=owner, stacklevel=3)

    def check(self) -> None:
        """Claim the running loop at first use. Raises `WrongLoop` if another one was claimed."""
        here = asyncio.get_running_loop()
        if self.loop is here and self._pid == _CurrentProcess.pid:
            return
        if self.loop is None:
            self.loop, self._pid = here, _CurrentProcess.pid
            return
        where = "process" if self.is_forked else "event loop"
        opened, remedy = self._message
        raise WrongLoop(f"{opened} {where}. {remedy}, or make a {self._what} here")


async def run_to_completion(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end; a cancellation meanwhile is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    await task
