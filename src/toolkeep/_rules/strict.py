"""A tool's schema for the strict modes of model providers, as near as it comes.

Strict mode takes a part of JSON Schema only (OpenAI, "Structured Outputs: supported schemas"): the
root is an object; every object is closed and all its properties are required; no `allOf`, `oneOf`,
`not`, conditions or defaults; a `$ref` stands alone.

- What is optional becomes nullable. Take the nulls out before the call (`schema.strip_none`).
- `allOf`, and a `$ref` with something beside it, are written out; `oneOf` becomes `anyOf`; what
  the mode does not know is dropped. So a value that fits the result may still break the server's
  schema, and is checked against that one before it is sent.
- What cannot be said in the mode is left as it is, and then the result is not `is_strict`: above
  all an object that is free in its properties. Closed, a model could only ever leave it empty.

The input is never altered and shares nothing with the result. A schema is the server's word:
nothing here raises because of one, and whatever is beyond the bounds becomes `{}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from toolkeep._rules.schema import MOST_NODES, local

__all__ = ["is_strict", "strict"]

Schema = dict[str, Any]
Within = frozenset[str]

DEEPEST = 50
"""Levels of a schema that are written: our choice."""

MOST_NESTED = 10
"""Objects within objects: OpenAI's bound."""

TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
WORDS = ("title", "description", "pattern", "format")
NUMBERS = ("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
SIZES = ("minItems", "maxItems")
DEFINITIONS = ("$defs", "definitions")
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
)
"""The formats that OpenAI's page lists."""

WRITTEN_OUT = frozenset(
    {
        *(*WORDS, *NUMBERS, *SIZES, *DEFINITIONS, "type", "enum", "const", "anyOf", "oneOf"),
        *("allOf", "properties", "required", "items", "prefixItems", "additionalProperties"),
    }
)
"""What means something beside a `$ref`. The rest is dropped anyway."""

KNOWN = WRITTEN_OUT - {"oneOf", "allOf", "prefixItems"}
KINDS = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"))
SCALAR = (str, int, float, bool, type(None))


def strict(schema: Any) -> Schema:
    """A new schema, for strict mode if it can be: see `is_strict`."""
    given = as_schema(schema)
    writer = Writer(given)
    flat, within = writer.flat(given, 0, frozenset())
    if [one for one in types_of(flat) if one != "null"] in ([], ["object"]):
        flat = {**flat, "type": "object"}
        if not (flat.get("properties") or "additionalProperties" in flat or forks(flat)):
            flat["additionalProperties"] = False  # a tool without parameters
    result = writer.written(flat, 0, within)
    if result.get("properties"):
        result.pop("anyOf", None)  # not at the root; the properties say nearly all
    return result


class Writer:
    """Writes one schema; what it has written is counted, because references can multiply it."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.left = MOST_NODES

    def node(self, given: Any, depth: int, within: Within) -> Schema:
        """One part of the schema. `within`: the references that it was written out from."""
        flat, inside = self.flat(as_schema(given), depth, within)
        return self.written(flat, depth, inside)

    def flat(
        self, given: Schema, depth: int, within: Within, alone: bool = True
    ) -> tuple[Schema, Within]:
        """The part without `allOf`, and without a reference that has something beside it."""
        self.left -= 1
        if self.left < 0 or depth > DEEPEST:
            return {}, within
        reference = given.get("$ref")
        if isinstance(reference, str):
            beside = {key: value for key, value in given.items() if key in WRITTEN_OUT}
            target = target_of(reference, self.root)
            if (alone and not beside) or reference in within or not isinstance(target, dict):
                return {"$ref": reference}, within
            merged = {**cast("Schema", target), **beside}
            return self.flat(merged, depth + 1, within | {reference}, alone)
        parts = given.get("allOf")
        if isinstance(parts, list):
            return self.merged(given, cast("list[Any]", parts), depth, within)
        return given, within

    def merged(
        self, given: Schema, parts: list[Any], depth: int, within: Within
    ) -> tuple[Schema, Within]:
        rest = {key: value for key, value in given.items() if key != "allOf"}
        alone = len(parts) == 1 and not rest.keys() & WRITTEN_OUT
        for part in parts:
            flat, within = self.flat(as_schema(part), depth + 1, within, alone)
            rest = both(rest, flat)
        return rest, within

    def written(self, flat: Schema, depth: int, within: Within) -> Schema:
        if isinstance(flat.get("$ref"), str):
            return {"$ref": flat["$ref"]}
        result, types, branches = plain_keywords(flat), types_of(flat), forks(flat)
        if types:
            result["type"] = types[0] if len(types) == 1 else types
        if branches:
            result["anyOf"] = [self.node(one, depth + 1, within) for one in branches]
            if "properties" not in flat and all(result["anyOf"]):
                result.pop("type", None)  # the branches say it
        if "object" in types:
            result |= self.object_keywords(flat, depth, within)
        if "array" in types and (items := items_of(flat)) is not None:
            result["items"] = self.node(items, depth + 1, within)
        for key in DEFINITIONS:
            if isinstance(flat.get(key), dict):
                result[key] = self.nodes(flat[key], depth, within)
        return result

    def object_keywords(self, flat: Schema, depth: int, within: Within) -> Schema:
        given = as_schema(flat.get("properties"))
        needed = [name for name in texts(flat.get("required")) if name in given]
        parts = self.nodes(given, depth, within)
        extra = flat.get("additionalProperties", not given)
        if extra is not False or flat.get("patternProperties"):
            free = self.node(extra, depth + 1, within) if isinstance(extra, dict) else True
            return {"properties": parts, "required": needed, "additionalProperties": free}
        parts = {n: part if n in needed else nullable(part) for n, part in parts.items()}
        return {"properties": parts, "required": list(parts), "additionalProperties": False}

    def nodes(self, given: Schema, depth: int, within: Within) -> Schema:
        return {name: self.node(part, depth + 1, within) for name, part in given.items()}


# --- reading -----------------------------------------------------------------------------------


def as_schema(given: Any) -> Schema:
    """A mapping with names for keys, whatever was given. Not a copy of what it holds."""
    if not isinstance(given, Mapping):
        return {}
    held = cast("Mapping[Any, Any]", given)
    return {key: value for key, value in held.items() if isinstance(key, str)}


def texts(given: Any) -> list[str]:
    if not isinstance(given, list):
        return []
    return [one for one in cast("list[Any]", given) if isinstance(one, str)]


def target_of(reference: str, root: Schema) -> Any:
    return root if reference == "#" else local(reference, root)


def both(one: Schema, other: Schema) -> Schema:
    """Two parts of an `allOf` as one; where they say different things, the first is kept."""
    merged = {**other, **one}
    ours, theirs = as_schema(one.get("properties")), as_schema(other.get("properties"))
    if ours and theirs:
        shared = {name: {"allOf": [ours[name], theirs[name]]} for name in ours if name in theirs}
        merged["properties"] = {**ours, **theirs, **shared}
    needed = texts(one.get("required")) + texts(other.get("required"))
    return merged | {"required": needed} if needed else merged


def types_of(flat: Schema) -> list[str]:
    """The types that are said, or else those that the other keywords tell."""
    said = flat.get("type")
    types = [one for one in texts([said] if isinstance(said, str) else said) if one in TYPES]
    if not types and "enum" in flat and isinstance(flat["enum"], list):
        types = list(dict.fromkeys(map(type_of, cast("list[Any]", flat["enum"]))))
    elif not types and "const" in flat:
        types = [type_of(flat["const"])]
    elif not types and "properties" in flat:
        types = ["object"]
    elif not types and items_of(flat) is not None:
        types = ["array"]
    return [*types, "null"] if types and flat.get("nullable") is True else types


def type_of(value: Any) -> str:
    if value is None:
        return "null"
    return next((name for kind, name in KINDS if isinstance(value, kind)), "object")


def forks(flat: Schema) -> list[Any]:
    """The branches of `anyOf` or `oneOf`, unless all they do is to require properties."""
    for key in ("anyOf", "oneOf"):
        branches = flat.get(key)
        if isinstance(branches, list):
            given = [as_schema(one) for one in cast("list[Any]", branches)]
            if any(one.keys() - {"required"} for one in given):
                return given
    return []


def items_of(flat: Schema) -> Schema | None:
    """What an array holds; of a tuple, anything that it may hold at any place."""
    for places in (flat.get("prefixItems"), flat.get("items")):
        if isinstance(places, list) and places:
            return {"anyOf": list(cast("list[Any]", places))}
    return as_schema(flat["items"]) if isinstance(flat.get("items"), Mapping) else None


def plain_keywords(flat: Schema) -> Schema:
    result: Schema = {key: flat[key] for key in WORDS if isinstance(flat.get(key), str)}
    if result.get("format", "") not in FORMATS:
        result.pop("format", None)
    if "(?" in result.get("pattern", ""):
        del result["pattern"]  # the provider's engine has no look-around
    for key in (*NUMBERS, *SIZES):
        if isinstance(flat.get(key), int | float):
            result[key] = flat[key]
    if isinstance(flat.get("enum"), list):
        result["enum"] = [one for one in flat["enum"] if isinstance(one, SCALAR)]
    if "const" in flat and isinstance(flat["const"], SCALAR):
        result["const"] = flat["const"]
    return result


def nullable(part: Schema) -> Schema:
    """The part, or null. Beside a simple type as OpenAI writes it, otherwise as a branch."""
    said = part.get("type")
    types: list[str] = [said] if isinstance(said, str) else said or []
    null = {"type": "null"}
    if not part or "null" in types or null in part.get("anyOf", ()):
        return part
    if "anyOf" in part and not types:
        return {**part, "anyOf": [*part["anyOf"], null]}
    if not types or "const" in part or "object" in types or "array" in types:
        return {"anyOf": [part, null]}
    more = {"enum": [*part["enum"], None]} if "enum" in part else {}
    return {**part, **more, "type": [*types, "null"]}


# --- judging -----------------------------------------------------------------------------------


def is_strict(schema: Any) -> bool:
    """Whether strict mode takes this schema as it is."""
    root = as_schema(schema)
    if root.get("type") != "object" or "anyOf" in root:
        return False
    waiting: list[tuple[Schema, int]] = [(root, 0)]
    looked_at = 0
    while waiting:
        node, above = waiting.pop()
        nested = above + ("properties" in node)
        looked_at += 1
        if looked_at > MOST_NODES or nested > MOST_NESTED or not is_fit(node, root):
            return False
        waiting += [(as_schema(part), nested) for part in parts_of(node)]
    return True


def is_fit(node: Schema, root: Schema) -> bool:
    """One part, its own parts not looked at."""
    if "$ref" in node:
        return len(node) == 1 and isinstance(target_of(str(node["$ref"]), root), dict)
    said = node.get("type")
    types = texts([said] if isinstance(said, str) else said)
    return (
        node.keys() <= KNOWN
        and set(types) <= set(TYPES)
        and bool(types) != ("anyOf" in node)
        and ("array" not in types or "items" in node)
        and ("object" not in types or is_closed(node))
        and node.get("enum") != []
    )


def is_closed(node: Schema) -> bool:
    named, needed = as_schema(node.get("properties")), texts(node.get("required"))
    return node.get("additionalProperties") is False and set(needed) == set(named)


def parts_of(node: Schema) -> list[Any]:
    held = [node.get(key) for key in ("properties", *DEFINITIONS)]
    parts = [part for one in held for part in as_schema(one).values()]
    branches = node.get("anyOf")
    parts += cast("list[Any]", branches) if isinstance(branches, list) else []
    return [*parts, node["items"]] if "items" in node else parts
