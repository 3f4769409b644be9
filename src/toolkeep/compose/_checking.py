"""Is a plan sound? Asked before anything runs, of the whole plan, against one catalogue.

- Names are unique, and references name what certainly came before. Of what may not have run they
  have a default, or a condition that says that it exists.
- Tools are there, and arguments fit them, as far as that is known.
- Steps, depth and calls are bounded. The number of calls that is promised is never exceeded.

Nothing is asked of a server, and the first problem does not end the search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from toolkeep._catalogue.tool import Tool
from toolkeep._rules.schema import compile
from toolkeep.compose import _shapes as shapes
from toolkeep.compose._bounds import Bounds, Measured, measure
from toolkeep.compose._conditions import Condition, operands, proven
from toolkeep.compose._fitting import Hole, fit
from toolkeep.compose._parts import Fallback, ForEach, Parallel, Part, Plan, Sequence, Step
from toolkeep.compose._problems import PlanRefused, Problem, nearest
from toolkeep.compose._reading import plain, read
from toolkeep.compose._refs import INPUTS, NOTHING, Ref, follow
from toolkeep.compose._values import given_instead
from toolkeep.compose._writing import written
from toolkeep.errors import UnknownTool

__all__ = ["Bounds", "Checked", "Knows", "check"]


@dataclass(frozen=True, slots=True)
class Checked:
    """A plan that is sound, for the catalogue that it was checked against."""

    plan: Plan
    tools: Mapping[str, Tool] = field(repr=False)
    """By the names of the steps."""
    most_calls: int
    """It never makes more calls than this."""


class Knows(Protocol):
    """Whoever knows tools by their names: a `Catalogue`."""

    def tool(self, name: str) -> Tool: ...


def check(
    plan: Plan,
    catalogue: Knows,
    inputs: Mapping[str, Any] | None = None,
    bounds: Bounds | None = None,
) -> Checked:
    """The plan, checked. Raises `PlanRefused` with all that is wrong with it.

    Without `inputs` nothing is known of them, and references to them may lead anywhere.
    """
    plan = sound(plan)
    given = None if inputs is None else plain(inputs)
    measured = measure(plan, bounds or Bounds())
    found = _Check(catalogue, given, measured)
    found.parts(plan.steps, "steps", {}, frozenset())
    if found.problems:
        raise PlanRefused(found.problems)
    return Checked(plan, found.tools, measured.calls)


def sound(plan: Plan) -> Plan:
    """The same plan, if its shape is right, however it was made. Raises `PlanRefused`."""
    if not isinstance(cast("object", plan), Plan):
        raise PlanRefused([Problem("", "it is no Plan", "Plan.from_json makes one of JSON")])
    try:
        return read(written(plan))
    except RecursionError:
        raise PlanRefused([Problem("", "it is nested too deeply")]) from None


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a name."""

    shape: shapes.Shape
    sure: bool = True
    """Whether it certainly has a value, once the plan has come past it."""
    instead: Any = NOTHING
    """What it may give in place of that."""


Scope = Mapping[str, Known]


class _Check:
    """Used once."""

    def __init__(
        self, catalogue: Knows, inputs: Mapping[str, Any] | None, measured: Measured
    ) -> None:
        self.problems, self._names = measured.problems, measured.names
        self.tools: dict[str, Tool] = {}
        self._catalogue, self._inputs = catalogue, inputs

    def complain(self, place: str, problem: str, remedy: str = "") -> None:
        self.problems.append(Problem(place, problem, remedy))

    # -- parts ------------------------------------------------------------------------------------

    def parts(
        self, parts: Iterable[Part], place: str, scope: Scope, guards: frozenset[str]
    ) -> dict[str, Known]:
        """One after the other; what they add to what is known."""
        added: dict[str, Known] = {}
        for at, one in enumerate(parts):
            added |= self.part(one, f"{place}[{at}]", {**scope, **added}, guards)
        return added

    def part(
        self, part: Part, place: str, scope: Scope, guards: frozenset[str]
    ) -> dict[str, Known]:
        if part.when is not None:
            self.condition(part.when, f"{place}.when", scope)
            guards |= proven(part.when)
        match part:
            case Step():
                added = self.step(part, place, scope, guards)
            case ForEach():
                added = self.for_each(part, place, scope, guards)
            case Sequence():
                added = self.parts(part.steps, f"{place}.sequence", scope, guards)
            case Parallel():
                added = dict[str, Known]()
                for at, one in enumerate(part.steps):
                    added |= self.part(one, f"{place}.parallel[{at}]", scope, guards)
        if part.when is None:
            return added
        return {name: Known(one.shape, False, one.instead) for name, one in added.items()}

    def step(
        self, step: Step, place: str, scope: Scope, guards: frozenset[str]
    ) -> dict[str, Known]:
        tool = self.tool(step, place)
        schema = (_usable(tool.input_schema) if tool else None) or {}
        inside = f"{place}.arguments"
        arguments = self.known(step.arguments, inside, scope, guards)
        for here, problem in fit(arguments, schema, inside, lambda ref: self.hole(ref, scope)):
            self.complain(here, problem, f"See what {step.tool[:200]} takes")
        policy = step.on_failure
        shape = shapes.step(_usable(tool.output_schema) if tool else None)
        instead = given_instead(policy.value) if isinstance(policy, Fallback) else NOTHING
        return {step.name: Known(shape, policy != "go_on", instead)}

    def tool(self, step: Step, place: str) -> Tool | None:
        try:
            found = self.tools[step.name] = self._catalogue.tool(step.tool)
        except UnknownTool as error:
            near = " or ".join(one[:200] for one in error.suggestions[:3])
            remedy = f"Did you mean {near}?" if near else "Name a tool of the catalogue"
            self.complain(f"{place}.tool", f"no single tool is {step.tool[:200]!r}", remedy)
            return None
        return found

    def for_each(
        self, part: ForEach, place: str, scope: Scope, guards: frozenset[str]
    ) -> dict[str, Known]:
        element = self.element(part, f"{place}.for_each", scope, guards)
        within = {**scope, part.item: Known(element)}
        added = self.part(part.do, f"{place}.do", within, guards)
        fields = shapes.Fields({name: one.shape for name, one in added.items()})
        return {part.name: Known(shapes.Listing(fields, part.limit))}

    def element(
        self, part: ForEach, place: str, scope: Scope, guards: frozenset[str]
    ) -> shapes.Shape:
        over = self.known(part.over, place, scope, guards)
        if isinstance(over, list):
            if len(cast("list[Any]", over)) > part.limit:
                self.complain(place, f"it has more elements than its limit, {part.limit}")
            return shapes.ANY
        for inside, problem in fit(
            over, {"type": "array"}, place, lambda ref: self.hole(ref, scope)
        ):
            self.complain(inside, problem, "A fan-out is over a list")
        hole = self.hole(over, scope) if isinstance(over, Ref) else None
        if hole is None or "array" not in shapes.kinds_of(hole.shape) or hole.literals:
            return shapes.ANY
        return shapes.lead(hole.shape, (0,))

    # -- references -------------------------------------------------------------------------------

    def condition(self, condition: Condition, place: str, scope: Scope) -> None:
        for inside, value in operands(condition):
            for ref in _refs(value):
                self.ref(ref, f"{place}.{inside}", scope)

    def known(self, value: Any, place: str, scope: Scope, guards: frozenset[str]) -> Any:
        """The value with all that is known already in place of references; the others, checked."""

        def known(one: Any, at: str) -> Any:
            return self.known(one, f"{place}{at}", scope, guards)

        match value:
            case Ref(step=step) if step == INPUTS and self._inputs is not None:
                return self.input(value, place, self._inputs)
            case Ref():
                self.settled(value, place, scope, guards)
                return value
            case Mapping():
                items = cast("Mapping[str, Any]", value).items()
                return {key: known(one, f".{key}") for key, one in items}
            case list():
                many = enumerate(cast("list[Any]", value))
                return [known(one, f"[{at}]") for at, one in many]
            case _:
                return value

    def input(self, ref: Ref, place: str, inputs: Mapping[str, Any]) -> Any:
        found = follow(inputs, ref.path)
        found = ref.default if found is NOTHING else found
        if found is NOTHING:
            self.complain(place, f"{ref} leads nowhere", "Give this input, or a default")
        return ref if found is NOTHING else found

    def settled(self, ref: Ref, place: str, scope: Scope, guards: frozenset[str]) -> None:
        if not self.ref(ref, place, scope) or ref.default is not NOTHING:
            return
        known = scope.get(ref.step, Known(shapes.ANY))
        if not known.sure and ref.step not in guards:
            remedy = "Give the reference a default, or the step a condition that it exists"
            self.complain(place, f"{ref.step} may not have run by then", remedy)
        if known.instead is not NOTHING and follow(known.instead, ref.path) is NOTHING:
            remedy = "Give the reference a default, or the step another fallback"
            self.complain(place, f"{ref} leads nowhere in the fallback of {ref.step}", remedy)

    def ref(self, ref: Ref, place: str, scope: Scope) -> bool:
        """Whether it names something, and can lead somewhere."""
        if ref.step == INPUTS:
            return True
        if ref.step not in scope:
            self.complain(place, *self.unknown(ref.step, scope))
            return False
        try:
            shapes.lead(scope[ref.step].shape, ref.path)
        except shapes.Astray as astray:
            self.complain(place, f"{ref} leads nowhere: {astray.problem}", astray.remedy)
            return False
        return True

    def unknown(self, name: str, scope: Scope) -> tuple[str, str]:
        if name not in self._names:
            return f"there is no step {name!r}", nearest(name, [*scope, INPUTS])
        within = self._names[name]
        if within and within not in scope:
            return f"{name} belongs to {within}, and is not known outside of it", ""
        if within:
            remedy = f"Write {within}[0].{name}, or {within}[*].{name}"
            return f"{name} is done once for each element of {within}", remedy
        return f"{name} has not run by then: it comes later, or at the same time", "Move it"

    def hole(self, ref: Ref, scope: Scope) -> Hole | None:
        known = scope.get(ref.step)
        literals = [] if ref.default is NOTHING else [ref.default]
        if known is None:
            return Hole(shapes.ANY, literals) if ref.step == INPUTS else None
        try:
            shape = shapes.lead(known.shape, ref.path)
        except shapes.Astray:
            return None
        if known.instead is not NOTHING:
            instead = follow(known.instead, ref.path)
            literals += [] if instead is NOTHING else [instead]
        return Hole(shape, literals)


def _usable(schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Of a schema that the runtime cannot check against, nothing is known here either."""
    return schema if schema is not None and compile(schema, what="it").usable else None


def _refs(value: Any) -> Iterator[Ref]:
    match value:
        case Ref():
            yield value
        case Mapping():
            for one in cast("Mapping[str, Any]", value).values():
                yield from _refs(one)
        case list():
            for one in cast("list[Any]", value):
                yield from _refs(one)
        case _:
            pass
