"""Operations that take turns, each in a task of its own.

In a task of its own, because a caller may be cancelled twice, or at every await (anyio): the
operation is undone, or goes on to its end, all the same, and the caller is told of its cancellation
at once or after the undoing, never not at all. What an operation meets is a value until it is back
in the caller's task: raised in another one, a `KeyboardInterrupt` would end the event loop rather
than the caller's `await`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any

from toolkeep._engine.home import Home

Work = Callable[[], Awaitable[None]]
Confirmed = Callable[[], Awaitable[None]]
"""Returns when the caller has taken note; until then the work may have to be undone."""
UndoableWork = Callable[[Confirmed], Awaitable[None]]
Operation = asyncio.Task[BaseException | None]


class Turns:
    """One for each group. Belongs to an event loop while something is open or under way in it.

    `is_idle` says whether the group has nothing open; `forget` is called when what it had was lost
    with its event loop.
    """

    def __init__(self, is_idle: Callable[[], bool], forget: Callable[[], None]) -> None:
        self._is_idle, self._forget = is_idle, forget
        self._under_way: set[Operation] = set()
        self._undoable: set[Operation] = set()
        self._undone: set[Operation] = set()
        self._turn, self._home = asyncio.Lock(), Home("group", "group", "cleanup_all()")

    async def undoably(self, work: UndoableWork) -> bool:
        """Run what undoes itself when cancelled: with the caller, or by `undo_all`. False: the
        latter happened."""
        ready: asyncio.Future[None] = asyncio.Future()
        leave: asyncio.Future[None] = asyncio.Future()

        async def confirmed() -> None:
            # Between the end of an operation and the caller's next step the caller may be
            # cancelled: then nobody would know that something is open.
            ready.set_result(None)
            await leave

        operation = self._begin(lambda: work(confirmed))
        self._undoable.add(operation)
        try:
            await asyncio.wait((operation, ready), return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not leave.done() and operation not in self._undone:
                leave.set_result(None)
                return True
            await asyncio.wait((operation,))
            if operation not in self._undone:
                _raise_what_it_met(operation)
            return operation not in self._undone
        except asyncio.CancelledError:
            operation.cancel()
            await asyncio.wait((operation,))
            raise
        finally:
            self._undoable.discard(operation)
            self._undone.discard(operation)

    async def to_the_end(self, work: Work, *, letting_go: bool = False) -> None:
        """Run what goes on when the caller is cancelled. `letting_go`: a forked process may do it,
        too, since it only forgets what is its parent's."""
        operation = self._begin(work, letting_go=letting_go)
        await asyncio.wait((operation,))
        _raise_what_it_met(operation)

    def undo_all(self) -> None:
        """Have every operation undone that can be, also those that wait for their turn."""
        for operation in self._undoable - self._undone:
            self._undone.add(operation)
            operation.cancel()

    def _begin(self, work: Work, *, letting_go: bool = False) -> Operation:
        self._be_at_home(letting_go=letting_go)
        loop = asyncio.get_running_loop()
        operation = loop.create_task(self._in_turn(work), context=Context())
        self._under_way.add(operation)
        operation.add_done_callback(self._under_way.discard)
        return operation

    def _be_at_home(self, *, letting_go: bool) -> None:
        if self._home.is_gone and (letting_go or not self._home.forked):
            self._under_way.clear()
            self._forget()
        if not self._under_way and self._is_idle():
            self._turn, self._home = asyncio.Lock(), Home("group", "group", "cleanup_all()")
        self._home.check()

    async def _in_turn(self, work: Work) -> BaseException | None:
        try:
            async with self._turn:
                await work()
        except BaseException as error:
            return error
        return None


async def uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end what must not be left half done; a cancellation meanwhile is raised after."""
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


def _raise_what_it_met(operation: Operation) -> None:
    error = asyncio.CancelledError() if operation.cancelled() else operation.result()
    if error is not None:
        raise error
