"""An event loop in a thread of its own, for callers without one.

Whoever waits for work that is done there and is interrupted has the work cancelled, and goes on
when that has ended. The thread does not keep the interpreter from exiting.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextvars import Context, copy_context
from threading import RLock, Thread
from typing import Any, TypeVar

from toolkeep._engine.call import LeftEarly
from toolkeep.errors import ServerUnavailable, WrongLoop

T = TypeVar("T")
Work = Callable[[], Awaitable[T]]

GLANCE = 0.1 if sys.platform == "win32" else None
"""Seconds: on Windows, Ctrl-C does not interrupt a thread that waits for a lock."""
_GRACE = 1.0
"""Seconds in which work that was told of the end by its runtime may come to its own."""


class Portal:
    """For one opening of a runtime; used from any thread that runs no event loop.

    anyio's portal would not do: its futures end before the work that they cancel has, and the end
    of the interpreter would wait for a portal that nobody has stopped.
    """

    def __init__(self) -> None:
        self._lock, self._is_over = RLock(), False
        self._process = os.getpid()
        self._jobs: dict[Future[Any], asyncio.Task[Any]] = {}
        started = Future[asyncio.AbstractEventLoop]()
        target = functools.partial(asyncio.run, self._live(started))
        self._thread = Thread(target=target, name="toolkeep-runtime", daemon=True)
        self._thread.start()
        self._loop = started.result()

    def run(self, work: Work[T]) -> T:
        """Have this done, and wait until it is."""
        refuse_loops()
        done = Future[T]()
        try:
            self.submit(work, done)
            while GLANCE and not done.done():
                wait((done,), timeout=GLANCE)
            return done.result()
        except BaseException:
            self.give_up(done)
            raise

    def submit(self, work: Work[T], done: Future[T]) -> None:
        """Have this done, with the context of this thread."""
        if self.forked:
            text = "this runtime was opened in another process. Close it, or make a runtime here"
            raise WrongLoop(text)
        if not self._soon(self._start, work, done, copy_context()):
            raise not_open()

    @property
    def forked(self) -> bool:
        """Whether it is the parent process's."""
        return self._process != os.getpid()

    def give_up(self, done: Future[Any]) -> None:
        """Cancel it, and wait until it has ended."""
        if not done.done() and self._soon(self._cancel, done):
            wait((done,))

    def stop(self) -> None:
        """End what is under way, and the thread."""
        self._soon(self._end.set)
        self._thread.join()

    def _soon(self, function: Callable[..., object], *args: Any) -> bool:
        """In the order of coming; False: nothing is done there any more."""
        if not self._thread.is_alive():
            return False  # it was never alive in a process that was forked
        with self._lock:
            if not self._is_over:
                self._loop.call_soon_threadsafe(function, *args)
            return not self._is_over

    # -- in the loop ----------------------------------------------------------------------------

    async def _live(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        self._end = asyncio.Event()
        started.set_result(asyncio.get_running_loop())
        try:
            await self._end.wait()
        finally:
            with self._lock:
                self._is_over = True
            await asyncio.sleep(0)  # for what has come until now
            if self._jobs:
                await asyncio.wait(self._jobs.values(), timeout=_GRACE)
            for task in self._jobs.values():
                task.cancel()

    def _start(self, work: Work[Any], done: Future[Any], context: Context) -> None:
        async def job() -> Any:
            return await work()

        task = self._jobs[done] = self._loop.create_task(job(), context=context)
        task.add_done_callback(functools.partial(self._settle, done))

    def _settle(self, done: Future[Any], task: asyncio.Task[Any]) -> None:
        del self._jobs[done]
        error = _cut_off() if task.cancelled() else task.exception()
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(task.result())

    def _cancel(self, done: Future[Any]) -> None:
        task = self._jobs.get(done)
        if task is not None:
            task.cancel()
        elif not done.done():  # interrupted before it was submitted
            done.set_exception(not_open())


def not_open() -> ServerUnavailable:
    text = "the runtime is not open: use `with Runtime.open(…)`, or connect() first"
    return ServerUnavailable(text, server="runtime")


def _cut_off() -> LeftEarly:
    return LeftEarly("it was given up before it ended; it may have been done")


def refuse_loops() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    text = "this thread runs an event loop, which must not block: use `toolkeep.Runtime` there"
    raise WrongLoop(text)
