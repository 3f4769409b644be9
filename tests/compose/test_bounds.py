"""A plan never makes more calls than its check has promised, however long lists turn out to be."""

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compose._plans import PATIENCE
from toolkeep import Runtime
from toolkeep.compose import (
    Bounds,
    Fallback,
    ForEach,
    Parallel,
    Part,
    Plan,
    Sequence,
    State,
    Step,
    check,
    ref,
    run,
)

made: Counter[str] = Counter()
"""Calls, by tool."""


async def some(count: int) -> list[list[int]]:
    """So many lists, each one longer than the last."""
    made["some"] += 1
    return [list(range(n)) for n in range(count)]


async def fussy(number: int) -> int:
    """Fails for every third."""
    made["fussy"] += 1
    if number % 3 == 2:
        raise ValueError("not this one")
    return number


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    names = (f"s{n}" for n in itertools.count())
    policy: Any = st.sampled_from(["stop", "go_on"])

    def source() -> Step:
        return Step(next(names), "builtin.some", {"count": draw(st.integers(0, 6))})

    def part(depth: int, lists: list[str], numbers: list[str]) -> Part:
        kind = draw(st.integers(0, 3 if depth else 0))
        if kind == 0 or (kind == 3 and not lists):
            number: Any = ref(draw(st.sampled_from(numbers))) if numbers else 1
            on_failure: Any = draw(st.sampled_from(["stop", "go_on", Fallback(0)]))
            return Step(next(names), "builtin.fussy", {"number": number}, on_failure=on_failure)
        if kind == 3:
            name, item, over = next(names), next(names), draw(st.sampled_from(lists))
            is_of_lists = over.endswith(".result")
            do = part(
                depth - 1,
                [*lists, item] if is_of_lists else lists,
                numbers if is_of_lists else [*numbers, item],
            )
            terms: Any = {
                "limit": draw(st.integers(1, 6)),
                "item": item,
                "on_failure": draw(policy),
            }
            return ForEach(name, ref(over), do, **terms)
        inside = [part(depth - 1, lists, numbers) for _ in range(draw(st.integers(1, 3)))]
        return (Sequence if kind == 1 else Parallel)(*inside)

    first = source()
    parts = [part(3, [f"{first.name}.data.result"], []) for _ in range(draw(st.integers(1, 3)))]
    return Plan(first, *parts, at_once=draw(st.sampled_from([1, 4])))


@pytest.mark.requirement("F2")
def test_no_plan_makes_more_calls_than_were_promised() -> None:
    bounds = Bounds(calls=10_000)

    @settings(max_examples=60)
    @given(plans())
    def keeps_its_promise(plan: Plan) -> None:
        promised = check(plan, runtime.catalogue, bounds=bounds).most_calls
        made.clear()
        account = runner.run(run(runtime, plan, bounds=bounds, timeout=PATIENCE))
        assert made.total() <= promised
        begun = [
            call for call in account.calls if call.state in (State.COMPLETED, State.TOOL_ERROR)
        ]
        assert made.total() == len(begun)
        most.append(made.total())

    most: list[int] = []
    with asyncio.Runner() as runner:
        runtime = Runtime({"mcpServers": {}}, functions=[some, fussy])
        runner.run(runtime.connect())
        try:
            keeps_its_promise()
        finally:
            runner.run(runtime.aclose())
    assert max(most) > 10
