"""Do arguments fit a tool, with references in them that are not known yet?

What is literal is checked as the runtime will check it. A reference is a hole: it fits unless it
can be of no kind that the tool takes there. Only real problems are told, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from toolkeep._rules.schema import compile, local
from toolkeep.compose._refs import Ref
from toolkeep.compose._shapes import Shape, kinds, kinds_of, listed, mapping, told

__all__ = ["Hole", "fit", "has_holes"]

Told = tuple[str, str]
"""A place and a problem."""

SHARED = ("$defs", "definitions", "$schema")
"""What a part of a schema needs of the whole."""


@dataclass(frozen=True, slots=True)
class Hole:
    """What may come in place of a reference."""

    shape: Shape
    literals: list[Any] = field(default_factory=list[Any])
    """Values that may come instead: a default, a fallback."""


Look = Callable[[Ref], Hole | None]
"""None: the reference is wrong anyway, and has been told."""


def has_holes(value: Any) -> bool:
    match value:
        case Ref():
            return True
        case Mapping():
            return any(map(has_holes, cast("Mapping[str, Any]", value).values()))
        case list():
            return any(map(has_holes, cast("list[Any]", value)))
        case _:
            return False


def fit(value: Any, schema: Mapping[str, Any], place: str, look: Look) -> list[Told]:
    """What is wrong with the value, for all that is known of it."""
    try:
        return list(_Fitting(schema, look).fit(value, schema, place))
    except RecursionError:  # a schema of one reference after the other: nothing can be told
        return []


class _Fitting:
    def __init__(self, root: Mapping[str, Any], look: Look) -> None:
        self._root, self._look = root, look
        self._met: set[tuple[str, int]] = set()

    def fit(self, value: Any, part: Any, place: str) -> Iterator[Told]:
        """No place meets the same part of the schema twice: a circle ends, and whatever doubles at
        every step of it does not."""
        meeting = (place, id(part))
        if not isinstance(part, Mapping) or meeting in self._met:
            return
        self._met.add(meeting)
        held = cast("Mapping[str, Any]", part)
        if not has_holes(value):
            yield from self._literal(value, held, place)
            return
        yield from self._combined(value, held, place)
        match value:
            case Ref():
                yield from self._hole(value, held, place)
            case Mapping():
                yield from self._object(cast("Mapping[str, Any]", value), held, place)
            case list():
                yield from self._list(cast("list[Any]", value), held, place)
            case _:
                pass

    def _literal(self, value: Any, part: Mapping[str, Any], place: str) -> Iterator[Told]:
        shared = {key: self._root[key] for key in SHARED if key in self._root}
        for problem in compile({**shared, **part}, what=place).problems(value):
            yield place, problem

    def _combined(self, value: Any, part: Mapping[str, Any], place: str) -> Iterator[Told]:
        if "$ref" in part:
            yield from self.fit(value, local(part["$ref"], self._root), place)
        for sub in listed(part.get("allOf")):
            yield from self.fit(value, sub, place)
        for word in ("anyOf", "oneOf"):
            branches = [list(self.fit(value, sub, place)) for sub in listed(part.get(word))]
            if branches and all(branches):
                yield from branches[0]

    def _hole(self, ref: Ref, part: Mapping[str, Any], place: str) -> Iterator[Told]:
        hole = self._look(ref)
        if hole is None:
            return
        given, wanted = kinds_of(hole.shape), kinds(part, self._root)
        if not given & wanted:
            yield place, f"{ref} is {told(given)}, and {told(wanted)} is wanted"
        for literal in hole.literals:
            for _, problem in self._literal(literal, part, place):
                yield place, f"what comes in place of {ref} does not fit: {problem}"

    def _object(
        self, value: Mapping[str, Any], part: Mapping[str, Any], place: str
    ) -> Iterator[Told]:
        if "object" not in kinds(part, self._root):
            yield place, f"it is an object, and {told(kinds(part, self._root))} is wanted"
            return
        for name in listed(part.get("required")):
            if isinstance(name, str) and name not in value:
                yield place, f"{name!r} is a required property"
        known = mapping(part.get("properties"))
        others = part.get("additionalProperties", True)
        for name, one in value.items():
            inside = f"{place}.{name}"
            if name in known:
                yield from self.fit(one, known[name], inside)
            elif "patternProperties" not in part:
                if others is False:
                    yield inside, "the tool takes no such argument"
                yield from self.fit(one, others, inside)

    def _list(self, value: list[Any], part: Mapping[str, Any], place: str) -> Iterator[Told]:
        if "array" not in kinds(part, self._root):
            yield place, f"it is a list, and {told(kinds(part, self._root))} is wanted"
            return
        if "prefixItems" not in part:
            for at, one in enumerate(value):
                yield from self.fit(one, part.get("items", True), f"{place}[{at}]")
