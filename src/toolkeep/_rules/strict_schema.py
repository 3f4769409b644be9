"""Rewrite a tool's schema for the strict mode of model providers, as closely as possible.

Strict mode accepts a subset of JSON Schema (OpenAI, "Structured Outputs: supported schemas"): the
root is an object, every object is closed, all properties are required, and `allOf`, `oneOf`,
`not`, conditions and defaults are absent. Optional properties become nullable; remove the nulls
before the call (`json_schema.strip_none`). What strict mode cannot express stays as it is, and
`is_strict` is then false. The input is never changed and shares nothing with the result. No
schema raises an error; a part that exceeds the limits becomes `{}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from toolkeep._rules.json_schema import MAX_NODES
from toolkeep._rules.schema_references import resolve_reference

Schema = dict[str, Any]
OpenReferences = frozenset[str]

MAX_DEPTH = 50
"""Levels of the written schema: our choice."""

MAX_NESTED_OBJECTS = 10
"""Levels of nested objects: OpenAI's limit."""

TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
TEXT_KEYWORDS = ("title", "description", "pattern", "format")
NUMBER_KEYWORDS = ("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
SIZE_KEYWORDS = ("minItems", "maxItems")
DEFINITION_KEYWORDS = ("$defs", "definitions")
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
)
"""The formats that OpenAI's page lists."""

INLINED_KEYWORDS = frozenset(
    {
        *(
            *TEXT_KEYWORDS,
            *NUMBER_KEYWORDS,
            *SIZE_KEYWORDS,
            *DEFINITION_KEYWORDS,
            "type",
            "enum",
            "const",
            "anyOf",
            "oneOf",
        ),
        *("allOf", "properties", "required", "items", "prefixItems", "additionalProperties"),
    }
)
"""Keywords that matter beside a `$ref`. All others are dropped."""

KNOWN_KEYWORDS = INLINED_KEYWORDS - {"oneOf", "allOf", "prefixItems"}
PYTHON_TYPES = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
)
SCALAR_TYPES = (str, int, float, bool, type(None))


def to_strict(schema: Any) -> Schema:
    """Return a new schema for strict mode. Check it with `is_strict`."""
    given = as_schema(schema)
    writer = StrictSchemaWriter(given)
    flat, within = writer.flatten(given, 0, frozenset())
    if [one for one in types_of(flat) if one != "null"] in ([], ["object"]):
        flat = {**flat, "type": "object"}
        if not (flat.get("properties") or "additionalProperties" in flat or union_branches(flat)):
            flat["additionalProperties"] = False  # a tool without parameters
    result = writer.write(flat, 0, within)
    if result.get("properties"):
        result.pop("anyOf", None)  # not allowed at the root; the properties remain
    return result


class StrictSchemaWriter:
    """Writes one schema. Counts the nodes it has written, because references can multiply them."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.nodes_left = MAX_NODES

    def write_node(self, given: Any, depth: int, within: OpenReferences) -> Schema:
        """Write one part of the schema. `within` are the references expanded around it."""
        flat, inside = self.flatten(as_schema(given), depth, within)
        return self.write(flat, depth, inside)

    def flatten(
        self, given: Schema, depth: int, within: OpenReferences, alone: bool = True
    ) -> tuple[Schema, OpenReferences]:
        """Merge `allOf`, and expand a reference that has other keywords beside it."""
        self.nodes_left -= 1
        if self.nodes_left < 0 or depth > MAX_DEPTH:
            return {}, within
        reference = given.get("$ref")
        if isinstance(reference, str):
            beside = {key: value for key, value in given.items() if key in INLINED_KEYWORDS}
            target = resolve_reference(reference, self.root)
            if (alone and not beside) or reference in within or not isinstance(target, dict):
                return {"$ref": reference}, within
            merged = {**cast("Schema", target), **beside}
            return self.flatten(merged, depth + 1, within | {reference}, alone)
        parts = given.get("allOf")
        if isinstance(parts, list):
            return self.merge_all_of(given, cast("list[Any]", parts), depth, within)
        return given, within

    def merge_all_of(
        self, given: Schema, parts: list[Any], depth: int, within: OpenReferences
    ) -> tuple[Schema, OpenReferences]:
        rest = {key: value for key, value in given.items() if key != "allOf"}
        alone = len(parts) == 1 and not rest.keys() & INLINED_KEYWORDS
        for part in parts:
            flat, within = self.flatten(as_schema(part), depth + 1, within, alone)
            rest = merge_schemas(rest, flat)
        return rest, within

    def write(self, flat: Schema, depth: int, within: OpenReferences) -> Schema:
        if isinstance(flat.get("$ref"), str):
            return {"$ref": flat["$ref"]}
        result, types, branches = plain_keywords(flat), types_of(flat), union_branches(flat)
        if types:
            result["type"] = types[0] if len(types) == 1 else types
        if branches:
            result["anyOf"] = [self.write_node(one, depth + 1, within) for one in branches]
            if "properties" not in flat and all(result["anyOf"]):
                result.pop("type", None)  # each branch has its own
        if "object" in types:
            result |= self.object_keywords(flat, depth, within)
        if "array" in types and (items := items_of(flat)) is not None:
            result["items"] = self.write_node(items, depth + 1, within)
        for key in DEFINITION_KEYWORDS:
            if isinstance(flat.get(key), dict):
                result[key] = self.write_nodes(flat[key], depth, within)
        return result

    def object_keywords(self, flat: Schema, depth: int, within: OpenReferences) -> Schema:
        given = as_schema(flat.get("properties"))
        needed = [name for name in strings(flat.get("required")) if name in given]
        parts = self.write_nodes(given, depth, within)
        extra = flat.get("additionalProperties", not given)
        if extra is not False or flat.get("patternProperties"):
            free = self.write_node(extra, depth + 1, within) if isinstance(extra, dict) else True
            return {"properties": parts, "required": needed, "additionalProperties": free}
        parts = {n: part if n in needed else nullable(part) for n, part in parts.items()}
        return {"properties": parts, "required": list(parts), "additionalProperties": False}

    def write_nodes(self, given: Schema, depth: int, within: OpenReferences) -> Schema:
        return {name: self.write_node(part, depth + 1, within) for name, part in given.items()}


# --- reading -----------------------------------------------------------------------------------


def as_schema(given: Any) -> Schema:
    """A shallow copy with the string keys of a mapping; empty for anything else."""
    if not isinstance(given, Mapping):
        return {}
    mapping = cast("Mapping[Any, Any]", given)
    return {key: value for key, value in mapping.items() if isinstance(key, str)}


def strings(given: Any) -> list[str]:
    if not isinstance(given, list):
        return []
    return [one for one in cast("list[Any]", given) if isinstance(one, str)]


def merge_schemas(one: Schema, other: Schema) -> Schema:
    """Merge two parts of an `allOf`. Of two different values, the first is kept."""
    merged = {**other, **one}
    ours, theirs = as_schema(one.get("properties")), as_schema(other.get("properties"))
    if ours and theirs:
        shared = {name: {"allOf": [ours[name], theirs[name]]} for name in ours if name in theirs}
        merged["properties"] = {**ours, **theirs, **shared}
    needed = strings(one.get("required")) + strings(other.get("required"))
    return merged | {"required": needed} if needed else merged


def types_of(flat: Schema) -> list[str]:
    """The types in `type`, or else those that the other keywords imply."""
    given = flat.get("type")
    types = [one for one in strings([given] if isinstance(given, str) else given) if one in TYPES]
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
    return next((name for kind, name in PYTHON_TYPES if isinstance(value, kind)), "object")


def union_branches(flat: Schema) -> list[Any]:
    """The branches of `anyOf` or `oneOf`, unless they only list required properties."""
    for key in ("anyOf", "oneOf"):
        branches = flat.get(key)
        if isinstance(branches, list):
            given = [as_schema(one) for one in cast("list[Any]", branches)]
            if any(one.keys() - {"required"} for one in given):
                return given
    return []


def items_of(flat: Schema) -> Schema | None:
    """The schema of an array's items; for a tuple, a union of its item schemas."""
    for places in (flat.get("prefixItems"), flat.get("items")):
        if isinstance(places, list) and places:
            return {"anyOf": list(cast("list[Any]", places))}
    return as_schema(flat["items"]) if isinstance(flat.get("items"), Mapping) else None


def plain_keywords(flat: Schema) -> Schema:
    result: Schema = {key: flat[key] for key in TEXT_KEYWORDS if isinstance(flat.get(key), str)}
    if result.get("format", "") not in FORMATS:
        result.pop("format", None)
    if "(?" in result.get("pattern", ""):
        del result["pattern"]  # the provider's engine has no look-around
    for key in (*NUMBER_KEYWORDS, *SIZE_KEYWORDS):
        if isinstance(flat.get(key), int | float):
            result[key] = flat[key]
    if isinstance(flat.get("enum"), list):
        result["enum"] = [one for one in flat["enum"] if isinstance(one, SCALAR_TYPES)]
    if "const" in flat and isinstance(flat["const"], SCALAR_TYPES):
        result["const"] = flat["const"]
    return result


def nullable(part: Schema) -> Schema:
    """The part, or null: as a second type where that is possible, otherwise as a branch."""
    given = part.get("type")
    types: list[str] = [given] if isinstance(given, str) else given or []
    null = {"type": "null"}
    if not part or "null" in types or null in part.get("anyOf", ()):
        return part
    if "anyOf" in part and not types:
        return {**part, "anyOf": [*part["anyOf"], null]}
    if not types or "const" in part or "object" in types or "array" in types:
        return {"anyOf": [part, null]}
    more = {"enum": [*part["enum"], None]} if "enum" in part else {}
    return {**part, **more, "type": [*types, "null"]}


# --- checking ----------------------------------------------------------------------------------


def is_strict(schema: Any) -> bool:
    """Whether strict mode accepts this schema."""
    root = as_schema(schema)
    if root.get("type") != "object" or "anyOf" in root:
        return False
    waiting: list[tuple[Schema, int]] = [(root, 0)]
    looked_at = 0
    while waiting:
        node, above = waiting.pop()
        nested = above + ("properties" in node)
        looked_at += 1
        if looked_at > MAX_NODES or nested > MAX_NESTED_OBJECTS or not is_strict_node(node, root):
            return False
        waiting += [(as_schema(part), nested) for part in child_schemas(node)]
    return True


def is_strict_node(node: Schema, root: Schema) -> bool:
    """Whether strict mode accepts this part, without its children."""
    if "$ref" in node:
        return len(node) == 1 and isinstance(resolve_reference(str(node["$ref"]), root), dict)
    given = node.get("type")
    types = strings([given] if isinstance(given, str) else given)
    return (
        node.keys() <= KNOWN_KEYWORDS
        and set(types) <= set(TYPES)
        and bool(types) != ("anyOf" in node)
        and ("array" not in types or "items" in node)
        and ("object" not in types or is_closed(node))
        and node.get("enum") != []
    )


def is_closed(node: Schema) -> bool:
    named, needed = as_schema(node.get("properties")), strings(node.get("required"))
    return node.get("additionalProperties") is False and set(needed) == set(named)


def child_schemas(node: Schema) -> list[Any]:
    held = [node.get(key) for key in ("properties", *DEFINITION_KEYWORDS)]
    parts = [part for one in held for part in as_schema(one).values()]
    branches = node.get("anyOf")
    parts += cast("list[Any]", branches) if isinstance(branches, list) else []
    return [*parts, node["items"]] if "items" in node else parts
