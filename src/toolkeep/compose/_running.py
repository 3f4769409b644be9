"""A plan, carried out: one deadline, one caller, and a record for every step.

- Nothing outlives the deadline: not a call whose server extends its time by progress, and not one
  in which the server asks something and nobody answers.
- A step that fails stops the plan, unless its policy says otherwise: nothing new begins, and what
  is under way ends, or is cancelled if the plan says so.
- Nothing is sent twice. What the runtime replays below is its own affair, and known to be safe.
- Cancelling whoever runs the plan cancels every call under way, waits for them, and goes on up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from toolkeep.compose._account import Account, Record, State
from toolkeep.compose._calls import Halt, deliver
from toolkeep.compose._checking import Checked
from toolkeep.compose._conditions import holds
from toolkeep.compose._events import (
    Finished,
    OnEvent,
    PlanEvent,
    StepEnded,
    StepProgress,
    StepStarted,
    tell,
)
from toolkeep.compose._parts import Fallback, ForEach, Parallel, Part, Plan, Sequence, Step, leaves
from toolkeep.compose._refs import INPUTS, NOTHING
from toolkeep.compose._values import Nowhere, given_by, given_instead, known, resolved
from toolkeep.context import CallContext
from toolkeep.errors import InvalidArguments

if TYPE_CHECKING:
    from toolkeep.runtime import Runtime

__all__ = ["Run", "not_begun"]

GRACE = 0.2
"""Seconds after the deadline in which calls end by themselves, and say what became of them."""

_WORST = (
    State.UNKNOWN,
    State.CANCELLED,
    State.FAILED,
    State.TOOL_ERROR,
    State.NOT_DELIVERED,
    State.NOT_REACHED,
)
"""What is told of a fan-out, if it is true of any of its calls."""


@dataclass(slots=True)
class Scope:
    """What one level of the plan knows: the plan itself, or one element of a fan-out."""

    values: dict[str, Any]
    halt: Halt
    items: tuple[int, ...] = ()
    path: str = ""
    """What is before the names of its steps: `mails[0].`"""
    records: dict[str, Record] = field(default_factory=dict[str, Record])


class Run:
    """Used once, by one task."""

    def __init__(
        self,
        runtime: Runtime,
        checked: Checked,
        inputs: Mapping[str, Any],
        context: CallContext | None,
        until: float | None,
        on_event: OnEvent | None,
    ) -> None:
        self._runtime, self._plan, self._tools = runtime, checked.plan, checked.tools
        self._context, self._until, self._on_event = context, until, on_event
        self._turns = asyncio.Semaphore(self._plan.at_once)
        self._top = Scope({INPUTS: dict(inputs)}, Halt())

    async def carry_out(self) -> Account:
        """Raises nothing but a cancellation; also then, the last event has the account."""
        began, cancelled = monotonic(), True
        end = self._at_the_end()
        try:
            await self._sequence(self._plan.steps, self._top)
            cancelled = False
        finally:
            if end is not None:
                end.cancel()
            top, why = self._top, self._top.halt.why
            steps = self._account_of(self._plan.steps, top)
            ended = "it was cancelled" if cancelled else why
            values = {name: one for name, one in top.values.items() if name != INPUTS}
            account = Account(steps, ended, cancelled, monotonic() - began, values)
            self._tell(Finished(server="", account=account))
        return account

    def _at_the_end(self) -> asyncio.TimerHandle | None:
        if self._until is None:
            return None
        stop = partial(self._top.halt.stop, _LATE, cancel=True)
        left = self._until - monotonic() + GRACE
        return asyncio.get_running_loop().call_later(left, stop)

    # -- parts ------------------------------------------------------------------------------------

    async def _part(self, part: Part, scope: Scope) -> None:
        if scope.halt.why:
            return
        if part.when is not None and not holds(part.when, partial(known, values=scope.values)):
            for leaf in leaves([part]):
                skipped = replace(self._blank(leaf, scope), state=State.SKIPPED, why=_FALSE)
                self._note(scope, skipped)
            return
        match part:
            case Step():
                await self._step(part, scope)
            case Sequence():
                await self._sequence(part.steps, scope)
            case Parallel():
                async with asyncio.TaskGroup() as group:
                    for one in part.steps:
                        group.create_task(self._part(one, scope))
            case ForEach():
                await self._for_each(part, scope)

    async def _sequence(self, parts: tuple[Part, ...], scope: Scope) -> None:
        for part in parts:
            await self._part(part, scope)

    # -- one call ---------------------------------------------------------------------------------

    async def _step(self, step: Step, scope: Scope) -> None:
        try:
            arguments = resolved(step.arguments, scope.values)
        except Nowhere as nowhere:
            tool = self._tools[step.name]
            text = f"{tool.name[:200]} was not sent: {nowhere}"
            error = InvalidArguments(text, server=tool.server, tool=tool.tool)
            failed = replace(self._blank(step, scope), state=State.NOT_DELIVERED, error=error)
            self._note(scope, failed)
        else:
            async with self._turns:
                if not self._may_begin(scope):
                    return
                await self._call(step, arguments, scope)
        self._go_on(step, scope)

    def _may_begin(self, scope: Scope) -> bool:
        if self._until is not None and monotonic() >= self._until:
            self._stop(self._top.halt, _LATE)
        return not scope.halt.why

    async def _call(self, step: Step, arguments: dict[str, Any], scope: Scope) -> None:
        tool = self._tools[step.name]
        about: dict[str, Any] = {"server": tool.server, "step": step.name, "items": scope.items}

        def on_progress(progress: float, total: float | None, message: str | None) -> None:
            self._tell(StepProgress(progress=progress, total=total, message=message, **about))

        self._tell(StepStarted(tool=tool.tool, **about))
        call = partial(
            self._runtime.call,
            tool,  # itself, and not by name: then nothing else can be taken for it
            arguments,
            context=self._context,
            timeout=self._time_for(step),
            on_progress=on_progress,
        )
        await deliver(call, scope.halt, partial(self._note, scope), self._blank(step, scope))

    def _time_for(self, step: Step) -> float | None:
        left = None if self._until is None else max(self._until - monotonic(), 0.001)
        given = [one for one in (step.timeout, left) if one is not None]
        return min(given, default=None)

    def _go_on(self, step: Step, scope: Scope) -> None:
        """What a step's end means for the plan."""
        record = scope.records[step.name]
        if record.state is State.COMPLETED and record.result is not None:
            scope.values[step.name] = given_by(record.result)
        elif isinstance(step.on_failure, Fallback):
            scope.values[step.name] = given_instead(step.on_failure.value)
        elif step.on_failure == "stop":
            self._stop(scope.halt, _ended_with(record))

    # -- a fan-out --------------------------------------------------------------------------------

    async def _for_each(self, part: ForEach, scope: Scope) -> None:
        elements = known(part.over, scope.values)
        if problem := _no_fan_out(part, elements):
            blank = self._blank(part, scope)
            self._note(scope, replace(blank, state=State.NOT_DELIVERED, why=problem))
            self._stop(scope.halt, f"{blank.path}: {problem}")
            return
        began = monotonic()
        inside = [self._within(part, scope, at, one) for at, one in enumerate(elements)]
        waiting = iter(inside)

        async def work() -> None:
            for one in waiting:
                await self._part(part.do, one)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(part.at_once, len(inside))):
                    group.create_task(work())
        finally:
            self._note(scope, self._fan_out(part, scope, inside, monotonic() - began))
        scope.values[part.name] = [
            {
                leaf.name: one.values[leaf.name]
                for leaf in leaves([part.do])
                if leaf.name in one.values
            }
            for one in inside
        ]

    def _within(self, part: ForEach, scope: Scope, at: int, element: Any) -> Scope:
        halt = Halt(scope.halt) if part.on_failure == "go_on" else scope.halt
        path = f"{scope.path}{part.name}[{at}]."
        return Scope({**scope.values, part.item: element}, halt, (*scope.items, at), path)

    def _fan_out(self, part: ForEach, scope: Scope, inside: list[Scope], seconds: float) -> Record:
        items = tuple(self._account_of((part.do,), one) for one in inside)
        states = {step.state for steps in items for step in steps}
        state = next((one for one in _WORST if one in states), State.COMPLETED)
        return replace(self._blank(part, scope), state=state, seconds=seconds, items=items)

    # -- telling ----------------------------------------------------------------------------------

    def _stop(self, halt: Halt, why: str) -> None:
        halt.stop(why, cancel=self._plan.siblings == "cancel")

    def _blank(self, leaf: Step | ForEach, scope: Scope) -> Record:
        tool = self._tools[leaf.name].name if isinstance(leaf, Step) else ""
        return Record(leaf.name, tool, scope.path + leaf.name)

    def _note(self, scope: Scope, record: Record) -> None:
        scope.records[record.name] = record
        server = self._tools[record.name].server if record.name in self._tools else ""
        self._tell(StepEnded(server=server, step=record.name, items=scope.items, record=record))

    def _account_of(self, parts: tuple[Part, ...], scope: Scope) -> tuple[Record, ...]:
        return tuple(
            scope.records.get(leaf.name) or replace(self._blank(leaf, scope), why=scope.halt.why)
            for leaf in leaves(parts)
        )

    def _tell(self, event: PlanEvent) -> None:
        tell(self._on_event, event)


def not_begun(plan: Plan) -> Account:
    """Of a plan that was cancelled before it was known what can be called."""
    why, blank = "it was cancelled", list[Record]()
    for leaf in leaves(plan.steps):
        tool = leaf.tool if isinstance(leaf, Step) else ""
        blank.append(Record(leaf.name, tool, leaf.name, why=why))
    return Account(tuple(blank), why, cancelled=True)


_FALSE = "its condition was false"
_LATE = "its time was over"


def _no_fan_out(part: ForEach, elements: Any) -> str:
    if elements is NOTHING:
        return f"{part.over} leads nowhere"
    if not isinstance(elements, list):
        return f"{part.over} is no list"
    count = len(cast("list[Any]", elements))
    if count > part.limit:
        return f"{count} elements are more than its limit, {part.limit}; nothing was done for any"
    return ""


def _ended_with(record: Record) -> str:
    words = {
        State.TOOL_ERROR: "failed by its own account",
        State.FAILED: "brought no result that can be used",
        State.NOT_DELIVERED: "could not be delivered",
        State.UNKNOWN: "has an outcome that is not known",
        State.CANCELLED: "was cancelled",
    }
    return f"{record.path} {words[record.state]}"
