"""What is known of a value before it is there: where a path leads in it, and which kinds it can be.

A schema is the server's word, as everywhere. Whatever cannot be told is no problem: only a path
that can lead nowhere, or a kind that can never fit, is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from toolkeep._rules.schema import local
from toolkeep.compose._problems import nearest
from toolkeep.compose._refs import EACH, Key

__all__ = [
    "ANY",
    "Astray",
    "Fields",
    "Listing",
    "Of",
    "Shape",
    "kinds",
    "kinds_of",
    "lead",
    "listed",
    "mapping",
    "step",
    "told",
]

MOST_HOPS = 30
"""References to references that are followed."""

KINDS = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})


class Astray(Exception):
    """A path that leads nowhere, whatever the value will be."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        self.problem, self.remedy = problem, remedy
        super().__init__(problem)


@dataclass(frozen=True, slots=True)
class Of:
    """What keeps to a part of a JSON Schema."""

    part: Any
    root: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of ours: it has these keys, and no others."""

    fields: Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class Listing:
    element: Shape
    most: int | None = None
    """Elements that it can have."""


Shape = Of | Fields | Listing
ANY = Of(True, {})


def step(output_schema: Mapping[str, Any] | None) -> Fields:
    """What a step gives; see `_values`."""
    data = ANY if output_schema is None else Of(output_schema, output_schema)
    text, content = Of({"type": "string"}, {}), Of({"type": "array"}, {})
    return Fields({"data": data, "text": text, "content": content})


# -- where a path leads ---------------------------------------------------------------------------


def lead(shape: Shape, path: tuple[Key, ...]) -> Shape:
    """What is at the end of the path. Raises `Astray`."""
    for at, key in enumerate(path):
        if key is EACH:
            return Listing(lead(_element(shape, None), path[at + 1 :]))
        shape = _element(shape, key) if isinstance(key, int) else _field(shape, key)
    return shape


def _element(shape: Shape, index: int | None) -> Shape:
    match shape:
        case Listing(element, most):
            if most is not None and index is not None and index >= most:
                raise Astray(f"there are never more than {most} elements")
            return element
        case Fields():
            raise Astray("there is an object, and no list", nearest("", shape.fields))
        case Of(part, root):
            part = resolved(part, root)
            _must_be("array", part, root)
            items = mapping(part).get("items", True)
            return ANY if "prefixItems" in mapping(part) else Of(items, root)


def _field(shape: Shape, key: str) -> Shape:
    match shape:
        case Listing():
            raise Astray(f"there is a list, and no {key!r}", f"Write [0].{key} or [*].{key}")
        case Fields(fields):
            if key not in fields:
                raise Astray(f"there is no {key!r}", nearest(key, fields))
            return fields[key]
        case Of(part, root):
            part = resolved(part, root)
            _must_be("object", part, root, f"Write [0].{key} or [*].{key}")
            return _property(mapping(part), root, key)


def _property(part: Mapping[str, Any], root: Mapping[str, Any], key: str) -> Shape:
    known = mapping(part.get("properties"))
    if key in known:
        return Of(known[key], root)
    others = part.get("additionalProperties", True)
    if others is False and "patternProperties" not in part:
        raise Astray(f"there is no {key!r}", nearest(key, known))
    is_plain = not any(word in part for word in ("patternProperties", "$ref", "allOf", "anyOf"))
    return Of(others, root) if is_plain and "oneOf" not in part else ANY


def _must_be(kind: str, part: Any, root: Mapping[str, Any], of_a_list: str = "") -> None:
    found = kinds(part, root)
    if kind not in found:
        text = f"there is {told(found)}, and no {kind}"
        raise Astray(text, of_a_list if "array" in found else "")


def resolved(part: Any, root: Mapping[str, Any]) -> Any:
    """The part that a reference alone stands for."""
    for _ in range(MOST_HOPS):
        held = mapping(part)
        if "$ref" not in held or "properties" in held or "items" in held:
            return part
        part = local(held["$ref"], root)
    return True


# -- which kinds it can be ------------------------------------------------------------------------


def kinds_of(shape: Shape) -> frozenset[str]:
    match shape:
        case Fields():
            return frozenset({"object"})
        case Listing():
            return frozenset({"array"})
        case Of(part, root):
            return kinds(part, root)


def kinds(part: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """In doubt all."""
    try:
        return _kinds(part, root, {})
    except RecursionError:
        return KINDS


def _kinds(part: Any, root: Mapping[str, Any], seen: dict[int, frozenset[str]]) -> frozenset[str]:
    """Every part is looked at once: a circle, or references that double, cost nothing."""
    if part is False:
        return frozenset()
    if not isinstance(part, Mapping):
        return KINDS
    held = cast("Mapping[str, Any]", part)
    if id(held) in seen:
        return seen[id(held)]
    seen[id(held)] = KINDS

    def of(sub: Any) -> frozenset[str]:
        return _kinds(sub, root, seen)

    found = _named(held.get("type"))
    if "const" in held:
        found &= kind_of(held["const"])
    if isinstance(held.get("enum"), list):
        found &= frozenset[str]().union(*map(kind_of, held["enum"]))
    if "$ref" in held:
        found &= of(local(held["$ref"], root))
    for sub in listed(held.get("allOf")):
        found &= of(sub)
    for word in ("anyOf", "oneOf"):
        if listed(held.get(word)):
            found &= frozenset[str]().union(*map(of, listed(held[word])))
    seen[id(held)] = found
    return found


def _named(given: Any) -> frozenset[str]:
    """The kinds that a `type` names. One that we do not know says nothing."""
    names = frozenset(str(one) for one in listed(given) or [given]) & KINDS
    if not names:
        return KINDS
    return names | {"integer"} if "number" in names else names


def kind_of(value: Any) -> frozenset[str]:
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int() | float():
            return frozenset({"number", "integer"})
        case str():
            return frozenset({"string"})
        case list():
            return frozenset({"array"})
        case _:
            return frozenset({"object"})


def told(found: frozenset[str]) -> str:
    """The kinds, for people."""
    shown = found - {"integer"} if "number" in found else found
    return " or ".join(sorted(shown)) or "nothing"


def mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def listed(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
