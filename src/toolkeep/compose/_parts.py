"""What a plan is made of. Plain frozen records: nothing here checks, runs or knows a server.

A plan is a sequence of parts. A `Step` calls one tool. `Sequence` and `Parallel` hold parts, and a
`ForEach` does one part for every element of a list. Every part may have a condition, `when`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolkeep.compose._conditions import Condition
from toolkeep.compose._refs import Ref

__all__ = [
    "Fallback",
    "ForEach",
    "Parallel",
    "Part",
    "Plan",
    "Sequence",
    "Step",
    "inner",
    "leaves",
    "named",
]


@dataclass(frozen=True, slots=True)
class Fallback:
    """If the step fails, the plan goes on with this, as the step's `data`."""

    value: Any


OnFailure = Literal["stop", "go_on"] | Fallback
"""What becomes of the plan when a step fails."""


def _nothing() -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Step:
    """One call of one tool. Arguments may hold references, at any depth."""

    name: str
    tool: str
    arguments: Mapping[str, Any] = field(default_factory=_nothing)
    when: Condition | None = field(default=None, kw_only=True)
    on_failure: OnFailure = field(default="stop", kw_only=True)
    timeout: float | None = field(default=None, kw_only=True)
    """Seconds for this call, within those of the plan."""


@dataclass(frozen=True, slots=True, init=False)
class Sequence:
    """One after the other."""

    steps: tuple[Part, ...]
    when: Condition | None

    def __init__(self, *steps: Part, when: Condition | None = None) -> None:
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "when", when)


@dataclass(frozen=True, slots=True, init=False)
class Parallel:
    """All at once. None of them sees what another of them gives."""

    steps: tuple[Part, ...]
    when: Condition | None

    def __init__(self, *steps: Part, when: Condition | None = None) -> None:
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "when", when)


@dataclass(frozen=True, slots=True)
class ForEach:
    """One part for every element of a list.

    Inside, the element goes by the name `item`. Outside, the name of the whole is a list with what
    the steps gave for each element, by their names: `mails[0].send.data.id`.
    """

    name: str
    over: Ref | list[Any]
    do: Part
    limit: int = field(kw_only=True)
    """Elements. A longer list is refused, and nothing is done for any of it."""
    at_once: int = field(default=4, kw_only=True)
    item: str = field(default="item", kw_only=True)
    when: Condition | None = field(default=None, kw_only=True)
    on_failure: Literal["stop", "go_on"] = field(default="stop", kw_only=True)
    """`go_on`: what fails for one element ends that element's steps, and no other's."""


Part = Step | Sequence | Parallel | ForEach


@dataclass(frozen=True, slots=True, init=False)
class Plan:
    """Parts, one after the other."""

    steps: tuple[Part, ...]
    siblings: Literal["finish", "cancel"]
    """What becomes of calls under way when a step stops the plan. Nothing new begins either way;
    to `cancel` a call that may have run makes one more whose outcome is not known."""
    at_once: int
    """Calls at the same time, in the whole plan."""

    def __init__(
        self,
        *steps: Part,
        siblings: Literal["finish", "cancel"] = "finish",
        at_once: int = 16,
    ) -> None:
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "siblings", siblings)
        object.__setattr__(self, "at_once", at_once)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data, ready for `json.dumps`."""
        from toolkeep.compose._writing import written

        return written(self)

    @staticmethod
    def from_json(given: str | bytes | Mapping[str, Any]) -> Plan:
        """A plan that was written as JSON. Raises `PlanRefused` with all that is wrong with it."""
        from toolkeep.compose._reading import read

        return read(given)


def inner(part: Part) -> tuple[Part, ...]:
    """The parts of a part."""
    match part:
        case Step():
            return ()
        case ForEach():
            return (part.do,)
        case Sequence() | Parallel():
            return part.steps


def leaves(parts: Iterable[Part]) -> Iterator[Step | ForEach]:
    """All that has a name, in the order of the plan; what is inside of a fan-out is its own."""
    for part in parts:
        if isinstance(part, Step | ForEach):
            yield part
        else:
            yield from leaves(part.steps)


def named(plan: Plan) -> Iterator[tuple[Step | ForEach, str, tuple[ForEach, ...]]]:
    """All that has a name, with its place in the plan and the fan-outs around it."""
    for at, part in enumerate(plan.steps):
        yield from _named(part, f"steps[{at}]", ())


def _named(
    part: Part, place: str, within: tuple[ForEach, ...]
) -> Iterator[tuple[Step | ForEach, str, tuple[ForEach, ...]]]:
    match part:
        case Step():
            yield part, place, within
        case ForEach():
            yield part, place, within
            yield from _named(part.do, f"{place}.do", (*within, part))
        case Sequence() | Parallel():
            kind = "sequence" if isinstance(part, Sequence) else "parallel"
            for at, one in enumerate(part.steps):
                yield from _named(one, f"{place}.{kind}[{at}]", within)
