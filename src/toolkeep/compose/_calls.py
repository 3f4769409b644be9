"""One call of a plan, and what ends many of them.

A call runs in a task of its own, so that it can be given up without giving up the plan. Its record
is true whatever ended it: a result that is there when everything is cancelled is a result. One that
was cut or set aside on its way here is none: nobody takes a part of it for the whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from time import monotonic

from toolkeep._runtime.oversized import MARK
from toolkeep.compose._account import Record, State, state_of
from toolkeep.results import CallResult

__all__ = ["Halt", "deliver"]

Task = asyncio.Task[CallResult | Exception]


@dataclass(slots=True)
class Halt:
    """Whether anything new may begin. One for a plan, and one for each element of a fan-out whose
    failure is its own."""

    above: Halt | None = None
    _why: str = ""
    under_way: set[Task] = field(default_factory=set[Task])

    @property
    def why(self) -> str:
        """Empty: go on."""
        return self._why or (self.above.why if self.above else "")

    def stop(self, why: str, *, cancel: bool) -> None:
        self._why = self._why or why
        if cancel:
            for task in self.under_way:
                task.cancel()

    def begin(self, task: Task) -> None:
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        if self.above is not None:
            self.above.begin(task)


async def deliver(
    call: Callable[[], Awaitable[CallResult]],
    halt: Halt,
    note: Callable[[Record], None],
    to: Record,
) -> None:
    """Carry out the call and note what became of it, also when this is cancelled."""
    began = monotonic()
    task: Task | None = None
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_ended(call))
            halt.begin(task)
    finally:
        if task is not None:
            note(_record(to, task, monotonic() - began, halt.why))


async def _ended(call: Callable[[], Awaitable[CallResult]]) -> CallResult | Exception:
    try:
        return await call()
    except Exception as error:
        return error


def _record(to: Record, task: Task, seconds: float, why: str) -> Record:
    if task.cancelled():
        return replace(to, state=State.CANCELLED, why=why or "cancelled", seconds=seconds)
    ended = task.result()
    if isinstance(ended, Exception):
        return replace(to, state=state_of(ended), error=ended, seconds=seconds)
    if MARK in ended.meta and not ended.is_error:
        return replace(to, state=State.FAILED, why=_CUT, result=ended, seconds=seconds)
    state = State.TOOL_ERROR if ended.is_error else State.COMPLETED
    return replace(to, state=state, result=ended, seconds=seconds)


_CUT = "it ran, and its result is larger than its server's result_limit, so it is not here whole"
