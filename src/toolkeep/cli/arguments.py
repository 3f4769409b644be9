"""From what was typed to a tool's arguments, checked against its schema before anything is sent.

    call add '{"a": 1, "b": 2}'       JSON
    call add a=1 b=2                  each value as the schema wants it
    call add tags=x tags=y at.x=1     a repeated key is a list, a dotted one reaches inside
    call add @arguments.json          JSON from a file
    call add -                        JSON from standard input

What is wrong is told in the words of the schema, with the place and the nearest name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from toolkeep.cli import shapes
from toolkeep.cli.ending import Misused
from toolkeep.cli.screen import harmless
from toolkeep.errors import InvalidArguments

if TYPE_CHECKING:
    from toolkeep import Tool

LARGEST = 32 * 1024 * 1024
"""Bytes of a file or of standard input."""

SHOWN = 60
"""Columns of the line in which JSON is broken."""

Pairs = tuple[tuple[str, str], ...]
Steps = tuple[str, ...]
"""From the arguments to a value inside of them."""


@dataclass(frozen=True)
class Typed:
    """What was typed, read but not yet judged: JSON, or keys with texts."""

    whole: Mapping[str, Any] | None = None
    pairs: Pairs = ()


def read(words: Sequence[str]) -> Typed:
    """Raises `Misused` for what cannot be arguments of any tool."""
    if not words:
        return Typed()
    first, rest = words[0], words[1:]
    if first == "-" or first.startswith("@") or first.lstrip().startswith(("{", "[")):
        if rest:
            raise Misused(f"after JSON nothing can follow: {rest[0]!r} is left over")
        return Typed(whole=_object(*_text(first)))
    return Typed(pairs=tuple(_pair(word) for word in words))


def _text(word: str) -> tuple[str, str]:
    """The JSON and what to call it."""
    if word == "-":
        return _decoded(sys.stdin.buffer.read(LARGEST + 1), "standard input")
    if word.startswith("@"):
        try:
            with Path(word[1:]).expanduser().open("rb") as file:
                return _decoded(file.read(LARGEST + 1), word[1:])
        except OSError as error:
            raise Misused(f"{word[1:]!r} cannot be read: {error.strerror}") from None
    return word, "the arguments"


def _decoded(given: bytes, name: str) -> tuple[str, str]:
    if len(given) > LARGEST:
        raise Misused(f"{name}: more than {LARGEST // 1024 // 1024} MB")
    try:
        return given.decode("utf-8-sig"), name
    except UnicodeDecodeError as error:
        raise Misused(f"{name}: no UTF-8 at byte {error.start}") from None


def _object(text: str, name: str) -> Mapping[str, Any]:
    try:
        value = shapes.strict_json(text.rstrip())
    except json.JSONDecodeError as error:
        raise Misused(f"{name}: no JSON: {pointed_at(error)}") from None
    except ValueError as error:
        raise Misused(f"{name}: no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Misused(f"{name}: a tool takes an object, {{…}}, not {shapes.kind_of(value)}")
    return cast("Mapping[str, Any]", value)


def pointed_at(error: json.JSONDecodeError) -> str:
    """Line, column, and the line itself with a caret under the place."""
    lines = error.doc.split("\n")
    line, column = lines[error.lineno - 1].rstrip("\r"), error.colno - 1
    start = max(0, column - SHOWN // 2)
    before = harmless(line[start:column]).replace("\t", " ")
    after = harmless(line[column : start + SHOWN]).replace("\t", " ")
    where = f"line {error.lineno}, column {error.colno}: {error.msg}"
    return f"{where}\n  {before}{after}\n  {' ' * len(before)}^"


def _pair(word: str) -> tuple[str, str]:
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise Misused(f"{word!r} is neither key=value nor JSON; a key stands before '='")
    return key, text


# -- judged by the schema -----------------------------------------------------------------------


def judged(typed: Typed, tool: Tool) -> dict[str, Any]:
    """The arguments. Raises `InvalidArguments` with all that is wrong with them."""
    schema = tool.input_schema
    wrong: list[str] = []
    built = _built(typed.pairs, schema, wrong)
    arguments = dict(typed.whole) if typed.whole is not None else built
    wrong += _unknown(arguments, schema, strictly=typed.whole is None)
    typed_at = {_path(key, schema)[0] for key, _ in typed.pairs}
    wrong += _missing({*arguments, *typed_at}, schema)
    if not wrong:
        wrong += _other_problems(arguments, tool)
    if wrong:
        raise refusal(tool, wrong)
    return arguments


def refusal(tool: Tool, wrong: Sequence[str]) -> InvalidArguments:
    told = "".join(f"\n  {one}" for one in wrong)
    text = f"{tool.name} was not called: its arguments break its schema{told}\n  {usage(tool)}"
    return InvalidArguments(text, server=tool.server, tool=tool.tool, problems=tuple(wrong))


def usage(tool: Tool) -> str:
    """`add takes a=…  b=…  [key=…]`."""
    needed = set(shapes.required(tool.input_schema))
    names = [
        f"{name}=…" if name in needed else f"[{name}=…]"
        for name in shapes.properties(tool.input_schema)
    ]
    return f"{tool.name} takes {' '.join(names) or 'no arguments'}"


def _built(pairs: Pairs, schema: shapes.Schema, wrong: list[str]) -> dict[str, Any]:
    built: dict[str, Any] = {}
    given: dict[Steps, list[str]] = {}
    for key, text in pairs:
        given.setdefault(_path(key, schema), []).append(text)
    for path, texts in given.items():
        try:
            _put(built, path, _value(texts, _part(path, schema), schema), given)
        except shapes.Unlike as unlike:
            wrong.append(f"{'.'.join(path)}: {unlike}")
    return built


def _path(key: str, schema: shapes.Schema) -> Steps:
    """A name of the schema's own may have dots in it."""
    return (key,) if key in shapes.properties(schema) else tuple(key.split("."))


def _part(path: Steps, schema: shapes.Schema) -> Any:
    part: Any = schema
    for step in path:
        inner = [shapes.properties(one) for one in shapes.branches(part, schema)]
        part = next((one[step] for one in inner if step in one), None)
    return part


def _value(given: Sequence[str], part: Any, schema: shapes.Schema) -> Any:
    lists = [one for one in shapes.branches(part, schema) if one.get("type") == "array"]
    if len(given) == 1 and not (lists and not given[0].lstrip().startswith("[")):
        return shapes.value_of(given[0], part, schema)
    if not lists and part is not None:
        raise shapes.Unlike(f"it is given {len(given)} times, and is no list")
    items = lists[0].get("items") if lists else None
    return [shapes.value_of(text, items, schema) for text in given]


def _put(built: dict[str, Any], path: Steps, value: Any, given: Collection[Steps]) -> None:
    inside = built
    for place, step in enumerate(path[:-1], 1):
        if path[:place] in given:
            raise shapes.Unlike(f"{'.'.join(path[:place])} is given as a whole, too")
        inside = inside.setdefault(step, {})
    inside[path[-1]] = value


def _unknown(given: Mapping[str, Any], schema: shapes.Schema, *, strictly: bool) -> list[str]:
    """Names that the schema does not have. Where it does not forbid more, JSON may say more."""
    known, more = shapes.properties(schema), schema.get("additionalProperties")
    if not known or not (more is False or (more is None and strictly)):
        return []
    return [_unknown_one(name, known) for name in given if name not in known]


def _unknown_one(name: str, known: Mapping[str, Any]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"{name[:80]} is no argument of it: {hint}"


def _missing(given: Collection[str], schema: shapes.Schema) -> list[str]:
    parts = shapes.properties(schema)
    return [
        f"{name} is missing: {shapes.asked_for(parts.get(name), schema)}"
        for name in shapes.required(schema)
        if name not in given
    ]


def _other_problems(arguments: Mapping[str, Any], tool: Tool) -> tuple[str, ...]:
    from toolkeep._rules.schema import compile

    return compile(tool.input_schema, what=tool.name).problems(dict(arguments))
