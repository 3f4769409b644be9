"""A plan from plain data: every shape that a plan may have, and what is wrong with any other.

Only shapes are looked at here. Whether names and references mean something is for the check.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

from mainstay.compose import _conditions as conditions
from mainstay.compose._conditions import Condition
from mainstay.compose._parts import Fallback, ForEach, Parallel, Part, Plan, Sequence, Step
from mainstay.compose._problems import PlanRefused, Problem, nearest
from mainstay.compose._refs import NOTHING, Ref, is_word, parse
from mainstay.compose._writing import FROM

__all__ = ["read"]

DEEPEST = 60
"""Levels of anything in a plan: far above what the check lets through."""

MOST_AT_ONCE = 100

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
    reader = Reader()
    plan = reader.plan(reader.parsed(given) if isinstance(given, str | bytes) else given)
    if reader.problems:
        raise PlanRefused(reader.problems)
    return plan


class Reader:
    """Used once. Goes on after a problem, to find all of them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def complain(self, place: str, problem: str, remedy: str = "") -> None:
        self.problems.append(Problem(place, problem, remedy))

    def parsed(self, text: str | bytes) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PlanRefused([Problem("", f"it is no JSON: {error}")]) from None

    # -- parts ------------------------------------------------------------------------------------

    def plan(self, given: Any) -> Plan:
        found = self.mapping(given, "", 'Give {"steps": […]}')
        self.only(found, ("steps", "siblings", "at_once"), "")
        steps = self.parts(found.get("steps"), "steps", 1)
        siblings: Any = self.one_of(
            found.get("siblings", "finish"), ("finish", "cancel"), "siblings"
        )
        at_once = self.number(found.get("at_once", 16), "at_once", MOST_AT_ONCE)
        return Plan(*steps, siblings=siblings, at_once=at_once)

    def parts(self, given: Any, place: str, depth: int) -> list[Part]:
        if not isinstance(given, list) or not given:
            self.complain(place, "it is no list of steps, or an empty one", "Give at least one")
            return []
        many = cast("list[Any]", given)
        return [self.part(one, f"{place}[{at}]", depth) for at, one in enumerate(many)]

    def part(self, given: Any, place: str, depth: int) -> Part:
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
        tool = found["tool"]
        if not isinstance(tool, str) or not tool:
            self.complain(f"{place}.tool", "it is no text", "Name the tool: server.tool")
        arguments = self.mapping(found.get("arguments", {}), f"{place}.arguments", "Give an object")
        if FROM in arguments:
            self.complain(f"{place}.arguments", "they are a reference", "Refer to each of them")
            arguments = {}
        return Step(
            self.name(found, place),
            str(tool),
            self.value(arguments, f"{place}.arguments"),
            when=when,
            on_failure=self.policy(found.get("on_failure", "stop"), f"{place}.on_failure"),
            timeout=self.seconds(found.get("timeout"), f"{place}.timeout"),
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
        policy: Any = self.one_of(
            found.get("on_failure", "stop"), ("stop", "go_on"), f"{place}.on_failure"
        )
        return ForEach(
            self.name(found, place),
            cast("Any", over),
            self.part(found.get("do"), f"{place}.do", depth + 1),
            limit=self.number(found.get("limit", 1), f"{place}.limit"),
            at_once=self.number(found.get("at_once", 4), f"{place}.at_once", MOST_AT_ONCE),
            item=self.word(found.get("item", "item"), f"{place}.item"),
            when=when,
            on_failure=policy,
        )

    # -- conditions -------------------------------------------------------------------------------

    def when(self, given: Any, place: str, depth: int) -> Condition | None:
        return None if given is None else self.condition(given, place, depth)

    def condition(self, given: Any, place: str, depth: int) -> Condition:
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

    # -- values -----------------------------------------------------------------------------------

    def value(self, given: Any, place: str, depth: int = 0) -> Any:
        """A value in which there may be references."""
        if depth > DEEPEST:
            self.complain(place, f"it is more than {DEEPEST} levels deep")
            return None
        match given:
            case Mapping() if FROM in given:
                return self.ref(cast("Mapping[str, Any]", given), place)
            case Mapping():
                held = cast("Mapping[Any, Any]", given)
                return {
                    self.key(key, place): self.value(one, f"{place}.{key}", depth + 1)
                    for key, one in held.items()
                }
            case list():
                many = enumerate(cast("list[Any]", given))
                return [self.value(one, f"{place}[{at}]", depth + 1) for at, one in many]
            case float() if not math.isfinite(given):
                self.complain(place, "JSON has no such number")
                return None
            case None | bool() | int() | float() | str():
                return given
            case _:
                self.complain(place, f"JSON has no {type(given).__name__}")
                return None

    def literal(self, given: Any, place: str) -> Any:
        """A value that stays as it is: nothing in it is taken for a reference."""
        try:
            return json.loads(json.dumps(given, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            self.complain(place, f"it is no JSON: {error}")
            return None

    def ref(self, given: Mapping[str, Any], place: str) -> Ref:
        self.only(given, (FROM, "default"), place)
        try:
            step, path = parse(str(given[FROM]))
        except ValueError as error:
            self.complain(place, str(error), "Write it so: step.data.items[0].title")
            return Ref("inputs")
        default = self.literal(given["default"], place) if "default" in given else NOTHING
        return Ref(step, path, default)

    def key(self, key: Any, place: str) -> str:
        if not isinstance(key, str):
            self.complain(place, f"{key!r} is no key: in JSON they are texts")
            return str(key)
        return key[1:] if key.startswith("$$") else key

    def policy(self, given: Any, place: str) -> Any:
        if isinstance(given, Mapping) and set(cast("Mapping[str, Any]", given)) == {"fallback"}:
            return Fallback(self.literal(cast("Any", given)["fallback"], f"{place}.fallback"))
        if given not in ("stop", "go_on"):
            remedy = 'Say "stop", "go_on", or {"fallback": value}'
            self.complain(place, "it is none of the policies", remedy)
            return "stop"
        return given

    # -- small things -----------------------------------------------------------------------------

    def mapping(self, given: Any, place: str, remedy: str) -> Mapping[str, Any]:
        if isinstance(given, Mapping):
            return cast("Mapping[str, Any]", given)
        self.complain(place, f"it is no object, but {type(given).__name__}", remedy)
        return {}

    def only(self, found: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
        for key in found:
            if key not in known:
                inside = f"{place}.{key}" if place else str(key)
                self.complain(inside, "there is no such key here", nearest(str(key), known))

    def name(self, found: Mapping[str, Any], place: str) -> str:
        return self.word(found.get("name"), f"{place}.name")

    def word(self, given: Any, place: str) -> str:
        if not isinstance(given, str) or not is_word(given):
            remedy = "Use up to 64 letters, digits, - and _"
            self.complain(place, "it is no name", remedy)
            return "step"
        return given

    def one_of(self, given: Any, known: tuple[str, ...], place: str) -> str:
        if given not in known:
            self.complain(place, "it is none of those", f"Say {' or '.join(map(repr, known))}")
            return known[0]
        return given

    def number(self, given: Any, place: str, most: int | None = None) -> int:
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            self.complain(place, "it is no whole number from 1 up")
            return 1
        if most is not None and given > most:
            self.complain(place, f"it is more than {most}")
        return given

    def seconds(self, given: Any, place: str) -> float | None:
        if given is None:
            return None
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if not is_number or not 0 < given < math.inf:
            self.complain(place, "it is no positive number of seconds")
            return None
        return given
