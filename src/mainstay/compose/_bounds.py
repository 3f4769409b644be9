"""How much a plan may be, and what its names are. Counted on the plan alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mainstay.compose._parts import ForEach, Parallel, Part, Plan, Sequence, Step, inner
from mainstay.compose._problems import Problem
from mainstay.compose._refs import INPUTS

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
    """Of all steps, with the fan-out that they are in."""
    problems: list[Problem] = field(default_factory=list[Problem])


@dataclass(frozen=True, slots=True)
class Named:
    name: str
    place: str
    within: tuple[ForEach, ...]


def measure(plan: Plan, bounds: Bounds) -> Measured:
    named = list(_named(plan.steps, "steps", ()))
    calls, depth = sum(map(_calls, plan.steps)), max(map(_depth, plan.steps))
    problems = list(_taken(named))
    for count, most, what in (
        (len(named), bounds.steps, "steps"),
        (depth, bounds.depth, "levels"),
        (calls, bounds.calls, "calls"),
    ):
        if count > most:
            remedy = "Make several plans of it, or lower the limits of its fan-outs"
            text = f"it has {count} {what}, and at most {most} are allowed"
            problems.append(Problem("", text, remedy))
    names = {one.name: one.within[-1].name if one.within else "" for one in named}
    return Measured(calls, names, problems)


def _taken(named: list[Named]) -> Iterator[Problem]:
    steps = {one.name for one in named}
    seen = {INPUTS}
    for one in named:
        if one.name in seen:
            yield Problem(one.place, f"the name {one.name!r} is taken", "Choose another")
        seen.add(one.name)
        items = [each.item for each in one.within]
        if items and (items[-1] in steps | {INPUTS} or items[-1] in items[:-1]):
            what = f"the elements of {one.within[-1].name} cannot be called {items[-1]!r}"
            yield Problem(one.place, f"{what}: the name is taken", "Say another `item`")


def _named(parts: Iterable[Part], place: str, within: tuple[ForEach, ...]) -> Iterator[Named]:
    for at, part in enumerate(parts):
        here = f"{place}[{at}]" if place.endswith(("steps", "sequence", "parallel")) else place
        match part:
            case Step():
                yield Named(part.name, here, within)
            case ForEach():
                yield Named(part.name, here, within)
                yield from _named([part.do], f"{here}.do", (*within, part))
            case Sequence():
                yield from _named(part.steps, f"{here}.sequence", within)
            case Parallel():
                yield from _named(part.steps, f"{here}.parallel", within)


def _calls(part: Part) -> int:
    if isinstance(part, Step):
        return 1
    inside = sum(map(_calls, inner(part)))
    return part.limit * inside if isinstance(part, ForEach) else inside


def _depth(part: Part) -> int:
    return 1 + max(map(_depth, inner(part)), default=0)
