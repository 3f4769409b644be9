"""How much a plan may be, and what its names are. Counted on the plan alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolkeep.compose._parts import ForEach, Part, Plan, Step, inner, named
from toolkeep.compose._problems import PlanRefused, Problem
from toolkeep.compose._refs import INPUTS

__all__ = ["Bounds", "Measured", "measure"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is too much. The defaults are our choice, far above what one would write by hand."""

    steps: int = 200
    depth: int = 8
    calls: int = 1_000


@dataclass(frozen=True, slots=True)
class Measured:
    calls: int
    """That it makes at most."""
    names: dict[str, str]
    """Of all steps and fan-outs, with the fan-out that they are in, if any."""
    problems: list[Problem]


def measure(plan: Plan, bounds: Bounds) -> Measured:
    """Raises `PlanRefused`, if it is too much."""
    names = {part.name: within[-1].name if within else "" for part, _, within in named(plan)}
    calls, depth = sum(map(_calls, plan.steps)), max(map(_depth, plan.steps))
    too_much: list[Problem] = []
    for count, most, what in (
        (sum(1 for _ in named(plan)), bounds.steps, "steps"),
        (depth, bounds.depth, "levels"),
        (calls, bounds.calls, "calls"),
    ):
        if count > most:
            text = f"it has {count} {what}, and at most {most} are allowed"
            remedy = "Make several plans of it, or lower the limits of its fan-outs"
            too_much.append(Problem("", text, remedy))
    if too_much:  # and no further look at it: that would take as long as it is large
        raise PlanRefused(too_much)
    return Measured(calls, names, list(_taken(plan)))


def _taken(plan: Plan) -> Iterator[Problem]:
    names = {INPUTS, *(part.name for part, _, _ in named(plan))}
    seen = {INPUTS}
    for part, place, within in named(plan):
        if part.name in seen:
            yield Problem(f"{place}.name", f"the name {part.name!r} is taken", "Choose another")
        seen.add(part.name)
        if isinstance(part, ForEach) and (
            part.item in names or part.item in [one.item for one in within]
        ):
            text = f"its elements cannot be called {part.item!r}: the name is taken"
            yield Problem(f"{place}.item", text, "Choose another")


def _calls(part: Part) -> int:
    if isinstance(part, Step):
        return 1
    inside = sum(map(_calls, inner(part)))
    return part.limit * inside if isinstance(part, ForEach) else inside


def _depth(part: Part) -> int:
    return 1 + max(map(_depth, inner(part)), default=0)
