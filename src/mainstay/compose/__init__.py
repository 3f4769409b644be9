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
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Any

from mainstay.compose._account import Account, PlanFailed, Record, State
from mainstay.compose._bounds import Bounds
from mainstay.compose._calls import Calls
from mainstay.compose._checking import Checked, check
from mainstay.compose._conditions import (
    AllOf,
    AnyOf,
    Condition,
    Equals,
    Exists,
    Less,
    Not,
    OneOf,
)
from mainstay.compose._events import (
    Finished,
    OnEvent,
    PlanEvent,
    StepEnded,
    StepProgress,
    StepStarted,
)
from mainstay.compose._parts import Fallback, ForEach, Parallel, Part, Plan, Sequence, Step
from mainstay.compose._problems import PlanRefused, Problem
from mainstay.compose._refs import EACH, Ref, ref
from mainstay.compose._running import Run
from mainstay.compose._schema import plan_schema
from mainstay.compose._streaming import Running
from mainstay.context import CallContext
from mainstay.errors import CallNotSentInTime, Delivery

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
    "StepProgress",
    "StepStarted",
    "check",
    "plan_schema",
    "ref",
    "run",
    "stream",
]


async def run(
    runtime: Calls,
    plan: Plan,
    *,
    inputs: Mapping[str, Any] | None = None,
    context: CallContext | None = None,
    timeout: float | None = None,
    bounds: Bounds | None = None,
    on_event: OnEvent | None = None,
) -> Account:
    """Check the plan against what this context may see, run it, and give its account.

    `timeout`: seconds for all of it; without, each call has those of its server. Raises
    `PlanRefused` before anything is called, and nothing because of a step. When it is cancelled,
    the last event, `Finished`, has the account.
    """
    until = None if timeout is None else monotonic() + timeout
    given = dict(inputs or {})
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            catalogue = await runtime.catalogue_for(context)
    except TimeoutError:
        if not limit.expired():
            raise
        text = "the time was over before it was known what can be called. Nothing ran"
        raise CallNotSentInTime(text, server="", delivery=Delivery.NOT_SENT) from None
    checked = check(plan, catalogue, given, bounds)
    return await Run(runtime, checked, given, context, until, on_event).carry_out()


def stream(
    runtime: Calls,
    plan: Plan,
    *,
    inputs: Mapping[str, Any] | None = None,
    context: CallContext | None = None,
    timeout: float | None = None,
    bounds: Bounds | None = None,
) -> Running:
    """Run a plan and watch it: `async with stream(…) as running`, then iterate it for its events.
    The arguments are those of `run`."""

    def watched(on_event: OnEvent) -> Any:
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
