"""A client belongs to one event loop and one process, from its first use until it is closed."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from toolkeep.errors import WrongLoop


class _Process:
    """This one. Asking the system which it is takes longer than all else that a check does."""

    number = os.getpid()

    @classmethod
    def ask(cls) -> None:
        cls.number = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Process.ask)


_closings: set[asyncio.Task[None]] = set()
"""Of what was dropped; a loop itself keeps no task alive."""


def _close_soon(
    loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    task = loop.create_task(close(), context=Context())
    _closings.add(task)
    task.add_done_callback(_closings.discard)


class Home:
    """Where a client was first used."""

    def __init__(self, name: str, what: str = "client", close: str = "aclose()") -> None:
        self._told = f"{name}: this {what} was opened in another", f"Close it there with {close}"
        self._what = what
        self.loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    @property
    def forked(self) -> bool:
        """Whether it is the parent process's."""
        return self.loop is not None and self._process != _Process.number

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it can be reached from here."""
        return self.forked or (self.loop is not None and self.loop.is_closed())

    def close_dropped(
        self,
        owner: object,
        close: Callable[[], Coroutine[Any, Any, None]],
        abandon: Callable[[], None],
    ) -> None:
        """The owner was dropped without being closed: close it in its loop, if there still is one,
        and warn. May be called in any thread, by a finalizer."""
        if self.forked:
            abandon()
            return
        loop = self.loop
        if loop is None or loop.is_closed():
            abandon()
        else:
            loop.call_soon_threadsafe(_close_soon, loop, close)
        warnings.warn(f"unclosed {owner!r}", ResourceWarning, source=owner, stacklevel=3)

    def check(self) -> None:
        """This is it, if there was none yet. Raises `WrongLoop`."""
        here = asyncio.get_running_loop()
        if self.loop is here and self._process == _Process.number:
            return
        if self.loop is None:
            self.loop, self._process = here, _Process.number
            return
        where = "process" if self.forked else "event loop"
        opened, remedy = self._told
        raise WrongLoop(f"{opened} {where}. {remedy}, or make a {self._what} here")
