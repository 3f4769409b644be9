"""Conditions: a small closed language over what is already known. Data, never code.

A condition is always decided and never fails. What leads nowhere exists not, equals nothing, is in
nothing and is less than nothing; two values that have no order are not less than each other.
Values are equal as JSON has it: 1 equals 1.0, and neither equals true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from toolkeep.compose._refs import NOTHING, Ref

__all__ = [
    "AllOf",
    "AnyOf",
    "Condition",
    "Equals",
    "Exists",
    "Less",
    "Not",
    "OneOf",
    "holds",
    "operands",
    "proven",
]


@dataclass(frozen=True, slots=True)
class Exists:
    """Whether a reference leads somewhere. `null` is somewhere."""

    what: Ref


@dataclass(frozen=True, slots=True)
class Equals:
    """Whether two values are the same, as JSON has it."""

    left: Any
    right: Any


@dataclass(frozen=True, slots=True)
class Less:
    """Of two numbers or two texts, whether the first is less."""

    left: Any
    right: Any


@dataclass(frozen=True, slots=True)
class OneOf:
    """Whether a value is one of these: a list, or a reference to one."""

    what: Any
    among: Any


@dataclass(frozen=True, slots=True)
class Not:
    """Whether the condition does not hold."""

    condition: Condition


@dataclass(frozen=True, slots=True, init=False)
class AllOf:
    """Whether all of them hold. Of none, they do."""

    conditions: tuple[Condition, ...]

    def __init__(self, *conditions: Condition) -> None:
        object.__setattr__(self, "conditions", conditions)


@dataclass(frozen=True, slots=True, init=False)
class AnyOf:
    """Whether at least one of them holds. Of none, none does."""

    conditions: tuple[Condition, ...]

    def __init__(self, *conditions: Condition) -> None:
        object.__setattr__(self, "conditions", conditions)


Condition = Exists | Equals | Less | OneOf | Not | AllOf | AnyOf

Look = Callable[[Any], Any]
"""From an operand to its value, or NOTHING."""


def holds(condition: Condition, look: Look) -> bool:
    match condition:
        case Exists(what):
            return look(what) is not NOTHING
        case Equals(left, right):
            return same(look(left), look(right))
        case Less(left, right):
            return less(look(left), look(right))
        case OneOf(what, among):
            value, held = look(what), look(among)
            return isinstance(held, list) and any(
                same(value, one) for one in cast("list[Any]", held)
            )
        case Not(inner):
            return not holds(inner, look)
        case AllOf(conditions):
            return all(holds(one, look) for one in conditions)
        case AnyOf(conditions):
            return any(holds(one, look) for one in conditions)


def operands(condition: Condition) -> Iterator[tuple[str, Any]]:
    """Each of its values, with its place in it."""
    match condition:
        case Exists(what):
            yield "exists", what
        case Equals(left, right):
            yield from (("equals[0]", left), ("equals[1]", right))
        case Less(left, right):
            yield from (("less[0]", left), ("less[1]", right))
        case OneOf(what, among):
            yield from (("in[0]", what), ("in[1]", among))
        case Not(inner):
            yield from ((f"not.{place}", value) for place, value in operands(inner))
        case AllOf(conditions) | AnyOf(conditions):
            word = "all" if isinstance(condition, AllOf) else "any"
            for at, one in enumerate(conditions):
                yield from ((f"{word}[{at}].{place}", value) for place, value in operands(one))


def proven(condition: Condition | None) -> frozenset[str]:
    """The names of which something certainly is there, if the condition holds."""
    match condition:
        case Exists(what):
            return frozenset({what.step})
        case AllOf(conditions):
            return frozenset[str]().union(*map(proven, conditions))
        case _:
            return frozenset()


def same(one: Any, other: Any) -> bool:
    try:
        return _same(one, other)
    except RecursionError:  # nested deeper than Python goes: a server may send anything
        return False


def _same(one: Any, other: Any) -> bool:
    if one is NOTHING or other is NOTHING:
        return False
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        left, right = cast("list[Any]", one), cast("list[Any]", other)
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        mine, theirs = cast("Mapping[str, Any]", one), cast("Mapping[str, Any]", other)
        return mine.keys() == theirs.keys() and all(_same(mine[key], theirs[key]) for key in mine)
    return one == other


def less(one: Any, other: Any) -> bool:
    for kind in (str, int | float):
        if isinstance(one, kind) and isinstance(other, kind):
            return not isinstance(one, bool) and not isinstance(other, bool) and one < other
    return False
