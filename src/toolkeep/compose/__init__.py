"""Several calls as one: a plan of steps, checked as a whole, run with one deadline, accounted for.

    plan = Plan(
        Step("find", "crm.search", {"query": ref("inputs.query")}),
        ForEach("mails", ref("find.data.hits"),
                Step("send", "mail.send", {"to": ref("item.email")}), limit=20),
    )
    account = await run(runtime, plan, inputs={"query": "overdue"}, timeout=60)
    print(account.text())

A plan is data: the same in Python and as JSON. It has no loops without a bound, and runs no code.
Nothing is called before the whole plan has been checked. A step's failure is never an exception:
the account says what ran, what did not, and what is not known.

Inside: what a plan is (`_parts`, `_conditions`, `_refs`), its JSON (`_writing`, `_plain`,
`_reading`, `_schema`), whether it is sound (`_finding`, `_bounds`, `_shapes`, `_fitting`,
`_checking`), how it runs (`_values`, `_calls`, `_running`, `_streaming`), and what is told of it
(`_problems`, `_account`, `_events`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from toolkeep.compose._account import Account, PlanFailed, Record, State
from toolkeep.compose._bounds import Bounds, measure
from toolkeep.compose._checking import Checked, check, sound
from toolkeep.compose._conditions import (
    AllOf,
    AnyOf,
    Condition,
    Equals,
    Exists,
    Less,
    Not,
    OneOf,
)
from toolkeep.compose._events import (
    Finished,
    OnEvent,
    PlanEvent,
    StepEnded,
    StepEvent,
    StepProgress,
    StepStarted,
    tell,
)
from toolkeep.compose._finding import found
from toolkeep.compose._parts import Fallback, ForEach, Parallel, Part, Plan, Sequence, Step
from toolkeep.compose._problems import PlanRefused, Problem
from toolkeep.compose._reading import plain
from toolkeep.compose._refs import EACH, Ref, ref
from toolkeep.compose._running import Run, not_begun
from toolkeep.compose._schema import plan_schema
from toolkeep.compose._streaming import Running
from toolkeep.context import CallContext

if TYPE_CHECKING:
    from toolkeep.runtime import Runtime

__all__ = [
    "EACH",
    "Account",
    "AllOf",
    "AnyOf",
    "Bounds",
    "Checked",
    "Condition",
    "Equals",
    "Exists",
    "Fallback",
    "Finished",
    "ForEach",
    "Less",
    "Not",
    "OneOf",
    "Parallel",
    "Part",
    "Plan",
    "PlanEvent",
    "PlanFailed",
    "PlanRefused",
    "Problem",
    "Record",
    "Ref",
    "Running",
    "Sequence",
    "State",
    "Step",
    "StepEnded",
    "StepEvent",
    "StepProgress",
    "StepStarted",
    "check",
    "plan_schema",
    "ref",
    "run",
    "stream",
]


async def run(
    runtime: Runtime,
    plan: Plan,
    *,
    inputs: Mapping[str, Any] | None = None,
    context: CallContext | None = None,
    timeout: float | None = None,
    bounds: Bounds | None = None,
    on_event: OnEvent | None = None,
) -> Account:
    """Check the plan against what this context may see, run it, and give its account.

    `timeout`: seconds for all of it; without, each call has those of its server. Before anything
    is called it raises `PlanRefused`, or whatever keeps it from knowing what can be called
    (`ServerUnavailable`, `CallNotSentInTime`); after that nothing, whatever becomes of a step. When
    it is cancelled, the last event, `Finished`, has the account.
    """
    if timeout is not None and not timeout > 0:
        raise PlanRefused([Problem("timeout", "it is no positive number of seconds")])
    until = None if timeout is None else monotonic() + timeout
    given = plain(inputs or {})
    shaped = sound(plan)
    measure(shaped, bounds or Bounds())
    try:
        tools = await found(runtime, shaped, context, timeout)
    except asyncio.CancelledError:
        tell(on_event, Finished(server="", account=not_begun(shaped)))
        raise
    checked = check(shaped, tools, given, bounds)
    return await Run(runtime, checked, given, context, until, on_event).carry_out()


def stream(
    runtime: Runtime,
    plan: Plan,
    *,
    inputs: Mapping[str, Any] | None = None,
    context: CallContext | None = None,
    timeout: float | None = None,
    bounds: Bounds | None = None,
) -> Running:
    """Run a plan and watch it: `async with stream(…) as running`, then iterate it for its events.
    The arguments are those of `run`."""

    def watched(on_event: OnEvent) -> Awaitable[Account]:
        return run(
            runtime,
            plan,
            inputs=inputs,
            context=context,
            timeout=timeout,
            bounds=bounds,
            on_event=on_event,
        )

    return Running(watched)
