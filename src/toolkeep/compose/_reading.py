"""A plan from plain data: every shape that a plan may have, and what is wrong with any other.

Only shapes are looked at here. Whether names and references mean something is for the check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from toolkeep.compose import _conditions as conditions
from toolkeep.compose._conditions import Condition
from toolkeep.compose._parts import Fallback, ForEach, Parallel, Part, Plan, Sequence, Step
from toolkeep.compose._plain import DEEPEST, PlainReader, loaded
from toolkeep.compose._problems import PlanRefused
from toolkeep.compose._refs import Ref
from toolkeep.compose._writing import FROM

__all__ = ["MOST_AT_ONCE", "MOST_ELEMENTS", "MOST_SECONDS", "plain", "read"]

MOST_AT_ONCE = 100
MOST_ELEMENTS = 100_000
MOST_SECONDS = 86_400
"""All three our choice."""

KEYS = {
    "tool": ("name", "tool", "arguments", "when", "on_failure", "timeout"),
    "sequence": ("sequence", "when"),
    "parallel": ("parallel", "when"),
    "for_each": ("name", "for_each", "do", "limit", "at_once", "item", "when", "on_failure"),
}
"""What a part may have, by the key that tells what it is."""

PAIRS: dict[str, Callable[[Any, Any], Condition]] = {
    "equals": conditions.Equals,
    "less": conditions.Less,
    "in": conditions.OneOf,
}
MANY: dict[str, Callable[..., Condition]] = {"all": conditions.AllOf, "any": conditions.AnyOf}
A_STEP = Step("step", "tool")
"""In place of a part that could not be read, while the rest is."""
NEVER = conditions.AnyOf()


def read(given: str | bytes | Mapping[str, Any]) -> Plan:
    """Raises `PlanRefused` with all that is wrong with its shape."""
    reader = Reader()
    plan = reader.plan(loaded(given) if isinstance(given, str | bytes) else given)
    if reader.problems:
        raise PlanRefused(reader.problems)
    return plan


def plain(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of what a plan is started with. Raises `PlanRefused`, if that is no JSON."""
    reader = PlainReader()
    found = reader.value(reader.mapping(inputs, "inputs", ""), "inputs", refs=False)
    if reader.problems:
        raise PlanRefused(reader.problems)
    return found


class Reader(PlainReader):
    """Parts and conditions."""

    def plan(self, given: Any) -> Plan:
        found = self.mapping(given, "", 'Give {"steps": […]}')
        if self.problems:
            raise PlanRefused(self.problems)
        self.only(found, ("steps", "siblings", "at_once"), "")
        steps = self.parts(found.get("steps"), "steps", 1)
        siblings = self.one_of(found.get("siblings", "finish"), ("finish", "cancel"), "siblings")
        at_once = self.number(found.get("at_once", 16), "at_once", MOST_AT_ONCE)
        return Plan(*steps, siblings=siblings, at_once=at_once)

    def parts(self, given: Any, place: str, depth: int) -> list[Part]:
        if not isinstance(given, list) or not given:
            self.complain(place, "it is no list of steps, or an empty one", "Give at least one")
            return []
        many = cast("list[Any]", given)
        return [self.part(one, f"{place}[{at}]", depth) for at, one in enumerate(many)]

    def part(self, given: Any, place: str, depth: int) -> Part:
        self.count()
        if depth > DEEPEST:
            self.complain(place, f"it is more than {DEEPEST} levels deep")
            return A_STEP
        found = self.mapping(given, place, "Give a step")
        kinds = [key for key in KEYS if key in found]
        if len(kinds) != 1:
            if isinstance(given, Mapping):
                remedy = f"Give exactly one of: {', '.join(KEYS)}"
                self.complain(place, "it does not say what it is", remedy)
            return A_STEP
        self.only(found, KEYS[kinds[0]], place)
        when = self.when(found.get("when"), f"{place}.when", depth)
        match kinds[0]:
            case "tool":
                return self.step(found, place, when)
            case "for_each":
                return self.for_each(found, place, when, depth)
            case kind:
                steps = self.parts(found[kind], f"{place}.{kind}", depth + 1)
                return (Sequence if kind == "sequence" else Parallel)(*steps, when=when)

    def step(self, found: Mapping[str, Any], place: str, when: Condition | None) -> Step:
        tool = self.value(found["tool"], f"{place}.tool", refs=False)
        if not isinstance(tool, str) or not tool:
            self.complain(f"{place}.tool", "it is no text", "Name the tool: server.tool")
        arguments = self.mapping(found.get("arguments", {}), f"{place}.arguments", "Give an object")
        if FROM in arguments:
            self.complain(f"{place}.arguments", "they are a reference", "Refer to each of them")
            arguments = {}
        return Step(
            self.word(found.get("name"), f"{place}.name"),
            str(tool),
            self.value(arguments, f"{place}.arguments"),
            when=when,
            on_failure=self.policy(found.get("on_failure", "stop"), f"{place}.on_failure"),
            timeout=self.seconds(found.get("timeout"), f"{place}.timeout", MOST_SECONDS),
        )

    def for_each(
        self, found: Mapping[str, Any], place: str, when: Condition | None, depth: int
    ) -> ForEach:
        over = self.value(found["for_each"], f"{place}.for_each")
        if not isinstance(over, Ref | list):
            self.complain(f"{place}.for_each", "it is no list", f'Give {{"{FROM}": …}}, or a list')
        if "limit" not in found:
            remedy = "Say for how many elements it may run at most"
            self.complain(place, "it has no limit", remedy)
        policy = found.get("on_failure", "stop")
        return ForEach(
            self.word(found.get("name"), f"{place}.name"),
            cast("Any", over),
            self.part(found.get("do"), f"{place}.do", depth + 1),
            limit=self.number(found.get("limit", 1), f"{place}.limit", MOST_ELEMENTS),
            at_once=self.number(found.get("at_once", 4), f"{place}.at_once", MOST_AT_ONCE),
            item=self.word(found.get("item", "item"), f"{place}.item"),
            when=when,
            on_failure=self.one_of(policy, ("stop", "go_on"), f"{place}.on_failure"),
        )

    def policy(self, given: Any, place: str) -> Any:
        if isinstance(given, Mapping) and set(cast("Mapping[str, Any]", given)) == {"fallback"}:
            value = cast("Mapping[str, Any]", given)["fallback"]
            return Fallback(self.value(value, f"{place}.fallback", refs=False))
        if given not in ("stop", "go_on"):
            remedy = 'Say "stop", "go_on", or {"fallback": value}'
            self.complain(place, "it is none of the policies", remedy)
            return "stop"
        return given

    # -- conditions -------------------------------------------------------------------------------

    def when(self, given: Any, place: str, depth: int) -> Condition | None:
        return None if given is None else self.condition(given, place, depth)

    def condition(self, given: Any, place: str, depth: int) -> Condition:
        self.count()
        words = ("exists", *PAIRS, "not", *MANY)
        found = self.mapping(given, place, f"Give an object with one of: {', '.join(words)}")
        word, held = next(iter(found.items()), ("", None))
        if len(found) != 1 or word not in words or depth > DEEPEST:
            if isinstance(given, Mapping):
                remedy = f"Give exactly one of: {', '.join(words)}"
                self.complain(place, "it is no condition", remedy)
            return NEVER
        inside = f"{place}.{word}"
        if word == "not":
            return conditions.Not(self.condition(held, inside, depth + 1))
        if word == "exists":
            what = self.value(held, inside)
            if not isinstance(what, Ref):
                self.complain(inside, "it is no reference", f'Give {{"{FROM}": "step.data"}}')
                return NEVER
            return conditions.Exists(what)
        many = cast("list[Any]", held) if isinstance(held, list) else None
        if many is None or (word in PAIRS and len(many) != 2):
            count = "two values" if word in PAIRS else "conditions"
            self.complain(inside, f"it is no list of {count}")
            return NEVER
        if word in PAIRS:
            left, right = (self.value(one, f"{inside}[{at}]") for at, one in enumerate(many))
            return PAIRS[word](left, right)
        inner = (self.condition(one, f"{inside}[{at}]", depth + 1) for at, one in enumerate(many))
        return MANY[word](*inner)
