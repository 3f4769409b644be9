"""Does a value keep to a JSON Schema? Asked before a call is sent, and of what came back.

A schema is the server's word: it may be wrong, outside the standard, or hostile. So nothing here
raises because of a schema, nothing is ever fetched, and a check has a bound. Whatever cannot be
decided is no problem: the server checks again, and a check of ours that is missing costs one
request, while a problem that is none would make a tool unusable. The problems we tell are real.

- Dialect: JSON Schema 2020-12, or the one that `$schema` names, if it is known. `format` is an
  annotation, as the standard has it. A tuple is an array, because it is sent as one.
- `$ref` reaches into the schema itself and the standard's own meta-schemas. Any other makes the
  schema not `usable`; so does being invalid, or over the bounds below.

The validator is jsonschema-rs. Measured on 3.11 against jsonschema 4.26: a check costs 0.3 µs and
not 10 to 25, compiling 6 µs and not 1,600, its regular expressions cannot explode, and a schema
that refers to itself does not exhaust the stack. One thing it leaves to us: references that
double at every step make it build 2^n parts, so they are counted before (`MOST_PARTS`).
It is imported by the first `compile`, never by importing toolkeep.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

__all__ = ["Checker", "compile", "strip_none"]

MOST_NODES = 10_000
"""Objects and arrays in a schema: our choice, far above any honest tool's."""

MOST_DEPTH = 100
"""Levels of a schema: our choice, likewise."""

MOST_PARTS = 100_000
"""Parts of a schema with all its references written out: 2^30 of them took 12 s (0.60.3)."""

MOST_PROBLEMS = 5
"""Enough to mend a call, and short enough to be shown to a model."""

LONGEST_TEXT = 200
"""Characters of one problem: it quotes the value, which may be of any size."""


@dataclass(frozen=True, slots=True)
class Checker:
    """One schema, compiled. Immutable, for any number of checks; kept by who knows the tool."""

    what: str
    usable: bool
    reason: str = ""
    """Why not usable: one line for a log."""
    validator: Any = field(default=None, repr=False)

    def problems(self, value: Any) -> tuple[str, ...]:
        """What is wrong with the value: at most five, none if nothing can be said."""
        if not self.usable:
            return ()
        try:
            if self.validator.is_valid(value):
                return ()
            errors = (e for e in self.validator.iter_errors(value) if is_decided(e))
            return tuple(told(error) for error in itertools.islice(errors, MOST_PROBLEMS))
        except ValueError:
            return ()  # not JSON: whoever writes it to the wire says so


def compile(schema: Mapping[str, Any], *, what: str) -> Checker:
    """A checker for the schema; `what` names it in `reason`."""
    try:
        reason = oversized(schema)
        if reason:
            return unusable(what, reason)
        return Checker(what, usable=True, validator=validator_of(schema))
    except (ValueError, TypeError, RecursionError) as error:
        return unusable(what, told(error) if hasattr(error, "kind") else short(str(error)))


def unusable(what: str, reason: str) -> Checker:
    return Checker(what, usable=False, reason=f"the schema of {what} cannot be used: {reason}")


def validator_of(schema: Mapping[str, Any]) -> Any:
    from jsonschema_rs import Draft202012Validator, validator_cls_for

    written = dict(schema)
    dialect = validator_cls_for(written)
    if dialect is Draft202012Validator:
        written.pop("$schema", None)  # an unknown dialect is read as the newest
    return dialect(written, validate_formats=False, offline=True)


# --- bounds ------------------------------------------------------------------------------------


def oversized(schema: Mapping[str, Any]) -> str:
    """Why the schema is not even tried, or nothing. Iterative: it may be of any depth."""
    waiting: list[tuple[Any, int]] = [(schema, 1)]
    seen = 0
    while waiting:
        node, depth = waiting.pop()
        seen += 1
        if seen > MOST_NODES:
            return f"it has more than {MOST_NODES} objects and arrays"
        if depth > MOST_DEPTH:
            return f"it is more than {MOST_DEPTH} levels deep"
        waiting += [(child, depth + 1) for child in children(node)]
    if parts(schema, schema, {}) > MOST_PARTS:
        return f"its references unfold to more than {MOST_PARTS} parts"
    return ""


def children(node: Any) -> list[Any]:
    held = cast("Iterable[Any]", node.values() if isinstance(node, Mapping) else node)
    return [child for child in held if isinstance(child, dict | list)]


def parts(node: Any, root: Mapping[str, Any], counted: dict[int, int]) -> int:
    """How many parts a node has with its references written out. A circle counts once."""
    key = id(node)
    if key in counted:
        return counted[key]
    counted[key] = 1
    total = 1 + sum(parts(child, root, counted) for child in children(node))
    if isinstance(node, Mapping):
        reference = cast("Mapping[str, Any]", node).get("$ref")
        target = local(reference, root)
        if isinstance(target, dict | list):
            total += parts(target, root, counted)
        elif isinstance(reference, str) and not reference.startswith("https://json-schema.org/"):
            total += MOST_PARTS // 100  # an anchor: where it leads is not looked up
    counted[key] = total
    return total


# --- telling -----------------------------------------------------------------------------------


def is_decided(error: Any) -> bool:
    """Whether the value is at fault, and not a regular expression that was given up."""
    from jsonschema_rs import ValidationErrorKind

    given_up = (ValidationErrorKind.BacktrackLimitExceeded, ValidationErrorKind.RegexEngineFailure)
    return not isinstance(error.kind, given_up)


def told(error: Any) -> str:
    place, message = place_of(error.instance_path), short(error.message)
    branches = [branch[0].message for branch in getattr(error.kind, "context", ()) if branch]
    if branches:
        message = short(f"{message}: {', '.join(branches)}")
    return f"{place}: {message}" if place else message


def place_of(path: list[str | int]) -> str:
    """The path as one would write it: `user.tags[2]`."""
    place = ""
    for step in path:
        if isinstance(step, int) or not step.isidentifier():
            place += f"[{step!r}]"
        else:
            place += f".{step}" if place else step
    return short(place)


def short(text: str) -> str:
    """The text, with its middle left out when it is long: the end names the fault."""
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}…{text[-half:]}"


# --- arguments that are None -------------------------------------------------------------------


def strip_none(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without those that are None, optional, and may not be null; in objects and
    lists within them, too, as far as the schema says plainly what is there. A copy."""
    return _stripped(arguments, schema, schema, 0)


def _stripped(value: Any, part: Any, root: Mapping[str, Any], depth: int) -> Any:
    if isinstance(part, Mapping) and "$ref" in part:
        part = local(cast("Mapping[str, Any]", part)["$ref"], root)
    if not isinstance(part, Mapping) or depth > MOST_DEPTH:
        return value
    given = cast("Mapping[str, Any]", part)
    if isinstance(value, list):
        items, found = given.get("items"), cast("list[Any]", value)
        return [_stripped(one, items, root, depth + 1) for one in found]
    if not isinstance(value, Mapping):
        return value
    required: Any = given.get("required") or ()
    properties: Any = given.get("properties") or {}
    kept: dict[str, Any] = {}
    for name, one in cast("Mapping[str, Any]", value).items():
        optional = name in properties and name not in required
        if one is not None or not optional or accepts_null(properties[name], root):
            kept[name] = _stripped(one, properties.get(name), root, depth + 1)
    return kept


def accepts_null(part: Any, root: Mapping[str, Any], depth: int = 0) -> bool:
    """Read off the schema itself. In doubt yes: then None is sent, as it was given."""
    if not isinstance(part, dict) or depth > MOST_DEPTH:
        return part is not False
    given = cast("dict[str, Any]", part)

    def accepted(sub: Any) -> bool:
        return accepts_null(sub, root, depth + 1)

    types = given.get("type", "null")
    return (
        (types == "null" or (isinstance(types, list) and "null" in types))
        and given.get("const") is None
        and None in given.get("enum", (None,))
        and all(accepted(sub) for sub in given.get("allOf", ()))
        and all(any(map(accepted, given.get(key, (True,)))) for key in ("anyOf", "oneOf"))
        and accepted(local(given.get("$ref"), root))
    )


def local(reference: Any, root: Mapping[str, Any]) -> Any:
    """The part of the schema that a plain `#/…` points to. True, which accepts all, if none."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return True
    found: Any = root
    for step in reference[2:].split("/"):
        if not isinstance(found, Mapping):
            return True
        found = cast("Mapping[str, Any]", found).get(step.replace("~1", "/").replace("~0", "~"))
    return found
