"""What a schema says about a value that somebody types: its kind, its choices, its own words.

Reads JSON Schema as far as it speaks plainly, and in doubt lets everything pass: the whole value is
checked against the whole schema afterwards. Pure; a schema is a server's word and may be anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from toolkeep._rules.schema import local
from toolkeep.cli.screen import one_line

Schema = Mapping[str, Any]

MOST_STEPS = 20
"""From reference to reference, and from branch to branch."""

NAMES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "object": "an object, as JSON",
    "array": "a list: JSON, or the key repeated",
}


class Unlike(ValueError):
    """The text is not what the schema asks for; the message says what is."""


def properties(part: Any) -> dict[str, Any]:
    found: object = cast("Schema", part).get("properties") if isinstance(part, Mapping) else None
    return dict(cast("Schema", found)) if isinstance(found, Mapping) else {}


def required(part: Any) -> list[str]:
    found: object = cast("Schema", part).get("required") if isinstance(part, Mapping) else None
    names = cast("Sequence[object]", found) if isinstance(found, list) else ()
    return [name for name in names if isinstance(name, str)]


def resolved(part: Any, root: Schema) -> Schema:
    """What a reference leads to; an empty schema, which allows everything, if nowhere."""
    for _ in range(MOST_STEPS):
        if not isinstance(part, Mapping):
            return {}
        given = cast("Schema", part)
        if "$ref" not in given:
            return given
        part = local(given["$ref"], root)
    return {}


def branches(part: Any, root: Schema, depth: int = 0) -> list[Schema]:
    """The alternatives that a value may be one of."""
    given = resolved(part, root)
    inner = [one for key in ("anyOf", "oneOf") for one in _listed(given.get(key))]
    if not inner or depth > MOST_STEPS:
        return [given]
    return [found for one in inner for found in branches(one, root, depth + 1)]


def kinds(part: Any, root: Schema) -> set[str]:
    """The JSON types that are allowed; none if the schema does not say."""
    found: set[str] = set()
    for branch in branches(part, root):
        said = branch.get("type")
        if isinstance(said, str):
            found.add(said)
        elif isinstance(said, list):
            found |= {one for one in cast("list[object]", said) if isinstance(one, str)}
        else:
            values = [
                *_listed(branch.get("enum")),
                *([branch["const"]] if "const" in branch else []),
            ]
            found |= {kind_of(value) for value in values}
            if not values:
                return set()
    return found


def kind_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list() | tuple():
            return "array"
        case _:
            return "object"


def choices(part: Any, root: Schema) -> list[str]:
    """The values of which it has to be one, as they are typed."""
    found: list[object] = []
    for branch in branches(part, root):
        found += _listed(branch.get("enum"))
        found += [branch["const"]] if "const" in branch else []
        found += [True, False] if branch.get("type") == "boolean" else []
    return [one if isinstance(one, str) else json.dumps(one) for one in found][:50]


def described(part: Any) -> str:
    """The schema's own words, in one line."""
    given: Schema = cast("Schema", part) if isinstance(part, Mapping) else {}
    said = given.get("description") or given.get("title")
    return one_line(said) if isinstance(said, str) else ""


def asked_for(part: Any, root: Schema) -> str:
    """What is wanted, for somebody who typed something else."""
    values = choices(part, root)
    wanted = " or ".join(NAMES.get(kind, f"a {kind}") for kind in sorted(kinds(part, root)))
    if values and "boolean" not in kinds(part, root):
        wanted = f"one of {', '.join(values)}"
    said = described(part)
    return f'{wanted or "any value"} ("{said}")' if said else wanted or "any value"


def value_of(text: str, part: Any, root: Schema) -> Any:
    """The typed text as the schema wants it. Raises `Unlike`."""
    allowed = kinds(part, root)
    if allowed == {"string"}:
        return text
    try:
        value = strict_json(text)
    except ValueError:
        value = text
    if _fits(value, allowed):
        return value
    if not allowed or "string" in allowed:
        return text
    raise Unlike(f"{text[:80]!r} is not {asked_for(part, root)}")


def strict_json(text: str) -> Any:
    """JSON, without what only Python takes for it. Raises ValueError."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _no_number(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


def _fits(value: object, allowed: set[str]) -> bool:
    kind = kind_of(value)
    if not allowed:
        return True
    whole = kind == "number" and isinstance(value, float) and value.is_integer()
    return (
        kind in allowed
        or (kind == "integer" and "number" in allowed)
        or (whole and "integer" in allowed)
    )


def _listed(found: object) -> list[Any]:
    return cast("list[Any]", found) if isinstance(found, list) else []
