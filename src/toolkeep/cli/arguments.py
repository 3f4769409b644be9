"""From the words of a command line to a tool's arguments, checked against its schema.

    call add '{"a": 1, "b": 2}'       JSON
    call add a=1 b=2                  each value as the schema wants it
    call add tags=x tags=y at.x=1     a repeated key is a list, a dotted key is nested
    call add @arguments.json          JSON from a file
    call add -                        JSON from standard input

The functions that read a schema do so as far as it is plain, and accept everything where it is
not: the arguments as a whole are validated at the end. A schema comes from a server and may be
anything.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from toolkeep.cli.errors import UsageError, suggest
from toolkeep.cli.output import escape, first_line
from toolkeep.errors import InvalidArguments

if TYPE_CHECKING:
    from toolkeep import Tool

Schema = Mapping[str, Any]
Pairs = tuple[tuple[str, str], ...]
KeyPath = tuple[str, ...]
"""The keys from the arguments to a value inside of them."""

MAX_BYTES = 32 * 1024 * 1024
"""Bytes of a file or of standard input."""
EXCERPT = 60
"""Columns of the line in which JSON is broken."""
MAX_DEPTH = 20
"""References and nested alternatives of a schema that are followed."""
MAX_CHOICES = 50

TYPE_NAMES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "object": "an object, as JSON",
    "array": "a list: JSON, or the key repeated",
}


class Mismatch(ValueError):
    """A value is not what the schema asks for; the message says what is expected."""


# -- what was typed ------------------------------------------------------------------------------


@dataclass(frozen=True)
class TypedArguments:
    """Arguments before the schema is known: a JSON object, or keys with texts."""

    whole: Mapping[str, Any] | None = None
    pairs: Pairs = ()


def parse(words: Sequence[str]) -> TypedArguments:
    """Raises `UsageError` for words that are arguments of no tool."""
    if not words:
        return TypedArguments()
    first, rest = words[0], words[1:]
    if first == "-" or first.startswith("@") or first.lstrip().startswith(("{", "[")):
        if rest:
            raise UsageError(f"JSON must be the only argument: remove {rest[0]!r}")
        return TypedArguments(whole=_parse_object(*_read(first)))
    return TypedArguments(pairs=tuple(_parse_pair(word) for word in words))


def _read(word: str) -> tuple[str, str]:
    """The JSON text that a word stands for, and its name in errors."""
    if word == "-":
        return _decode(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input")
    if word.startswith("@"):
        try:
            with Path(word[1:]).expanduser().open("rb") as file:
                return _decode(file.read(MAX_BYTES + 1), word[1:])
        except OSError as error:
            raise UsageError(f"cannot read {word[1:]!r}: {error.strerror}") from None
    return word, "the arguments"


def _decode(given: bytes, name: str) -> tuple[str, str]:
    if len(given) > MAX_BYTES:
        raise UsageError(f"{name}: longer than {MAX_BYTES // 1024 // 1024} MB")
    try:
        return given.decode("utf-8-sig"), name
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: not UTF-8 at byte {error.start}") from None


def _parse_object(text: str, name: str) -> Mapping[str, Any]:
    try:
        value = parse_json(text.rstrip())
    except json.JSONDecodeError as error:
        raise UsageError(f"{name}: invalid JSON: {_point_at(error)}") from None
    except ValueError as error:
        raise UsageError(f"{name}: invalid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{name}: a tool takes an object, {{…}}, not {json_type(value)}")
    return cast("Mapping[str, Any]", value)


def _point_at(error: json.JSONDecodeError) -> str:
    """Line and column, and the line itself with a caret below the place."""
    line = error.doc.split("\n")[error.lineno - 1].rstrip("\r")
    column = error.colno - 1
    start = max(0, column - EXCERPT // 2)
    before = escape(line[start:column]).replace("\t", " ")
    after = escape(line[column : start + EXCERPT]).replace("\t", " ")
    where = f"line {error.lineno}, column {error.colno}: {error.msg}"
    return f"{where}\n  {before}{after}\n  {' ' * len(before)}^"


def _parse_pair(word: str) -> tuple[str, str]:
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise UsageError(f"{word!r} is neither key=value nor JSON")
    return key, text


def parse_json(text: str) -> Any:
    """Strict JSON: Python's NaN and Infinity are refused. Raises ValueError."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


# -- what the tool is sent -----------------------------------------------------------------------


def build(typed: TypedArguments, tool: Tool) -> dict[str, Any]:
    """The arguments for this tool. Raises `InvalidArguments` with every problem."""
    schema = tool.input_schema
    problems: list[str] = []
    built = _convert_pairs(typed.pairs, schema, problems)
    arguments = dict(typed.whole) if typed.whole is not None else built
    problems += _unknown(arguments, schema, strict=typed.whole is None)
    typed_names = {_key_path(key, schema)[0] for key, _ in typed.pairs}
    problems += _missing({*arguments, *typed_names}, schema)
    if not problems:
        from toolkeep._rules.json_schema import compile_schema

        problems += compile_schema(schema, what=tool.name).problems(arguments)
    if problems:
        raise _invalid(tool, problems)
    return arguments


def _invalid(tool: Tool, problems: Sequence[str]) -> InvalidArguments:
    listed = "".join(f"\n  {one}" for one in problems)
    usage = f"{tool.name} takes {_usage(tool.input_schema) or 'no arguments'}"
    text = f"{tool.name} was not called: the arguments do not match its schema{listed}\n  {usage}"
    return InvalidArguments(text, server=tool.server, tool=tool.tool, problems=tuple(problems))


def _usage(schema: Schema) -> str:
    """The arguments as they are typed, with their types: `a=INTEGER [b=STRING]`."""
    needed, words = set(required(schema)), list[str]()
    for name, part in properties(schema).items():
        word = f"{name}={'|'.join(sorted(json_types(part, schema))).upper() or 'VALUE'}"
        words.append(word if name in needed else f"[{word}]")
    return " ".join(words)


def _convert_pairs(pairs: Pairs, schema: Schema, problems: list[str]) -> dict[str, Any]:
    built: dict[str, Any] = {}
    given: dict[KeyPath, list[str]] = {}
    for key, text in pairs:
        given.setdefault(_key_path(key, schema), []).append(text)
    for path, texts in given.items():
        try:
            _put(built, path, _convert_all(texts, _subschema(path, schema), schema), given)
        except Mismatch as mismatch:
            problems.append(f"{'.'.join(path)}: {mismatch}")
    return built


def _key_path(key: str, schema: Schema) -> KeyPath:
    """A key with dots is nested, unless the schema has a property of that very name."""
    return (key,) if key in properties(schema) else tuple(key.split("."))


def _subschema(path: KeyPath, schema: Schema) -> Any:
    part: Any = schema
    for key in path:
        inner = [properties(one) for one in alternatives(part, schema)]
        part = next((one[key] for one in inner if key in one), None)
    return part


def _convert_all(texts: Sequence[str], part: Any, schema: Schema) -> Any:
    arrays = [one for one in alternatives(part, schema) if one.get("type") == "array"]
    if len(texts) == 1 and not (arrays and not texts[0].lstrip().startswith("[")):
        return convert(texts[0], part, schema)
    if not arrays and part is not None:
        raise Mismatch(f"given {len(texts)} times, but it is not a list")
    items = arrays[0].get("items") if arrays else None
    return [convert(text, items, schema) for text in texts]


def _put(built: dict[str, Any], path: KeyPath, value: Any, given: Collection[KeyPath]) -> None:
    inside = built
    for length, key in enumerate(path[:-1], 1):
        if path[:length] in given:
            raise Mismatch(f"{'.'.join(path[:length])} is also given as a whole")
        inside = inside.setdefault(key, {})
    inside[path[-1]] = value


def _unknown(given: Mapping[str, Any], schema: Schema, *, strict: bool) -> list[str]:
    """Names that the schema lacks. JSON may have more names where the schema does not forbid it;
    key=value may not (`strict`)."""
    known, more = properties(schema), schema.get("additionalProperties")
    if not known or not (more is False or (more is None and strict)):
        return []
    unknown = (name for name in given if name not in known)
    return [f"{name[:80]} is not an argument: {suggest(name, known)}" for name in unknown]


def _missing(given: Collection[str], schema: Schema) -> list[str]:
    parts = properties(schema)
    return [
        f"{name} is missing: {describe_expected(parts.get(name), schema)}"
        for name in required(schema)
        if name not in given
    ]


# -- what a schema says --------------------------------------------------------------------------


def properties(part: Any) -> dict[str, Any]:
    found: object = cast("Schema", part).get("properties") if isinstance(part, Mapping) else None
    return dict(cast("Schema", found)) if isinstance(found, Mapping) else {}


def required(part: Any) -> list[str]:
    found: object = cast("Schema", part).get("required") if isinstance(part, Mapping) else None
    return [name for name in _list(found) if isinstance(name, str)]


def resolve(part: Any, root: Schema) -> Schema:
    """The schema behind a reference; an empty one, which allows everything, if there is none."""
    from toolkeep._rules.schema_references import resolve_reference

    for _ in range(MAX_DEPTH):
        if not isinstance(part, Mapping):
            return {}
        given = cast("Schema", part)
        if "$ref" not in given:
            return given
        part = resolve_reference(given["$ref"], root)
    return {}


def alternatives(part: Any, root: Schema, depth: int = 0) -> list[Schema]:
    """The schemas of which a value has to match one."""
    given = resolve(part, root)
    inner = [one for key in ("anyOf", "oneOf") for one in _list(given.get(key))]
    if not inner or depth > MAX_DEPTH:
        return [given]
    return [found for one in inner for found in alternatives(one, root, depth + 1)]


def json_types(part: Any, root: Schema) -> set[str]:
    """The JSON types that are allowed; empty if the schema does not say."""
    found: set[str] = set()
    for branch in alternatives(part, root):
        stated = branch.get("type")
        if isinstance(stated, str):
            found.add(stated)
        elif isinstance(stated, list):
            found |= {one for one in cast("list[object]", stated) if isinstance(one, str)}
        elif values := _listed_values(branch):
            found |= {json_type(value) for value in values}
        else:
            return set()
    return found


def json_type(value: object) -> str:
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
    """The values that the schema lists, as they are typed."""
    found: list[object] = []
    for branch in alternatives(part, root):
        found += _listed_values(branch)
        found += [True, False] if branch.get("type") == "boolean" else []
    return [one if isinstance(one, str) else json.dumps(one) for one in found][:MAX_CHOICES]


def _listed_values(branch: Schema) -> list[Any]:
    return _list(branch.get("enum")) + ([branch["const"]] if "const" in branch else [])


def description_of(part: Any) -> str:
    """The first line of the schema's description. A title says no more than the name: most are
    generated from it."""
    given: Schema = cast("Schema", part) if isinstance(part, Mapping) else {}
    text = given.get("description")
    return first_line(text) if isinstance(text, str) else ""


def describe_expected(part: Any, root: Schema) -> str:
    """What a value has to be, in words."""
    values, types = choices(part, root), json_types(part, root)
    wanted = " or ".join(TYPE_NAMES.get(one, f"a {one}") for one in sorted(types)) or "any value"
    if values and "boolean" not in types:
        wanted = f"one of {', '.join(values)}"
    description = description_of(part)
    return f'{wanted} ("{description}")' if description else wanted


def convert(text: str, part: Any, root: Schema) -> Any:
    """The typed text as a value of the type that the schema asks for. Raises `Mismatch`."""
    allowed = json_types(part, root)
    if allowed == {"string"}:
        return text
    try:
        value = parse_json(text)
    except ValueError:
        value = text
    if _is_of(allowed, value):
        return value
    if "string" in allowed:
        return text
    raise Mismatch(f"{text[:80]!r} is not {describe_expected(part, root)}")


def _is_of(allowed: set[str], value: object) -> bool:
    kind = json_type(value)
    is_whole = isinstance(value, float) and value.is_integer()
    return (
        not allowed
        or kind in allowed
        or (kind == "integer" and "number" in allowed)
        or (is_whole and "integer" in allowed)
    )


def _list(found: object) -> list[Any]:
    return cast("list[Any]", found) if isinstance(found, list) else []
