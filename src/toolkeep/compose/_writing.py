"""A plan as plain data.

What is not as it should be is written as it is: the reader says what is wrong with it. So a plan
that was made in Python is held to the same rules as one that came as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from toolkeep.compose import _conditions as conditions
from toolkeep.compose._parts import Fallback, ForEach, Parallel, Plan, Sequence, Step
from toolkeep.compose._refs import NOTHING, Ref

__all__ = ["FROM", "value", "written"]

FROM = "$from"
"""The key of a reference. As a key of a tool's own it is written `$$from`."""


def written(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = {"steps": [part(one) for one in plan.steps]}
    if plan.siblings != "finish":
        found["siblings"] = plan.siblings
    if plan.at_once != 16:
        found["at_once"] = plan.at_once
    return found


def part(given: Any) -> Any:
    match given:
        case Step():
            found = {"name": given.name, "tool": given.tool, **_arguments(given)}
            if given.timeout is not None:
                found["timeout"] = given.timeout
            return found | _terms(given)
        case Sequence():
            return {"sequence": [part(one) for one in given.steps]} | _terms(given)
        case Parallel():
            return {"parallel": [part(one) for one in given.steps]} | _terms(given)
        case ForEach():
            return _for_each(given) | _terms(given)
        case _:
            return given


def _arguments(step: Step) -> dict[str, Any]:
    is_empty = isinstance(cast("Any", step.arguments), Mapping) and not step.arguments
    return {} if is_empty else {"arguments": value(step.arguments)}


def _for_each(given: ForEach) -> dict[str, Any]:
    found = {"name": given.name, "for_each": value(given.over), "do": part(given.do)}
    found |= {"limit": given.limit}
    if given.at_once != 4:
        found["at_once"] = given.at_once
    if given.item != "item":
        found["item"] = given.item
    return found


def _terms(given: Step | Sequence | Parallel | ForEach) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if given.when is not None:
        found["when"] = condition(given.when)
    if isinstance(given, Step | ForEach) and given.on_failure != "stop":
        policy: Any = given.on_failure
        found["on_failure"] = {"fallback": policy.value} if isinstance(policy, Fallback) else policy
    return found


def value(given: Any) -> Any:
    match given:
        case Ref():
            more = {} if given.default is NOTHING else {"default": given.default}
            return {FROM: str(given), **more}
        case Mapping():
            items = cast("Mapping[Any, Any]", given).items()
            return {_key(key): value(one) for key, one in items}
        case list() | tuple():
            return [value(one) for one in cast("list[Any]", given)]
        case _:
            return given


def _key(key: Any) -> Any:
    is_taken = isinstance(key, str) and (key == FROM or key.startswith("$$"))
    return f"${key}" if is_taken else key


def condition(given: Any) -> Any:
    match given:
        case conditions.Exists(what):
            return {"exists": value(what)}
        case conditions.Equals(left, right):
            return {"equals": [value(left), value(right)]}
        case conditions.Less(left, right):
            return {"less": [value(left), value(right)]}
        case conditions.OneOf(what, among):
            return {"in": [value(what), value(among)]}
        case conditions.Not(inner):
            return {"not": condition(inner)}
        case conditions.AllOf(inner):
            return {"all": [condition(one) for one in inner]}
        case conditions.AnyOf(inner):
            return {"any": [condition(one) for one in inner]}
        case _:
            return given
