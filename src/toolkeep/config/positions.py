"""In which line of a text each key stands. Pure; the text has been parsed before.

For JSON exact, duplicate keys included. For TOML, whose grammar is larger, as good as its headers
and `key =` lines tell: a key inside an inline table has the line of the table.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from json import loads
from typing import Any, cast

from toolkeep.config.draft import Steps

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|\n')


@dataclass(slots=True)
class Lines:
    """Of each key and each member of a list."""

    of: dict[Steps, int] = field(default_factory=dict[Steps, int])
    twice: list[tuple[Steps, int]] = field(default_factory=list[tuple[Steps, int]])
    """Keys that their object has already, with the line of the second."""

    def note(self, steps: Steps, line: int) -> None:
        if steps in self.of:
            self.twice.append((steps, line))
        else:
            self.of[steps] = line


def lines_of_json(text: str) -> Lines:
    lines, line = Lines({(): 1}), 1
    way: list[str | int] = []
    """The current key or index in each open object or list."""
    kinds: list[str] = []
    expects_key = False
    for token in _TOKEN.findall(text):
        if token == "\n":
            line += 1
        elif token in "{[":
            if kinds and kinds[-1] == "[":
                lines.note(tuple(way), line)
            kinds.append(token)
            way.append("" if token == "{" else 0)
            expects_key = token == "{"
        elif token in "}]":
            kinds.pop()
            way.pop()
            expects_key = False
        elif token == ",":
            expects_key = kinds[-1] == "{"
            if not expects_key:
                way[-1] = cast("int", way[-1]) + 1
        elif expects_key:
            way[-1] = loads(token, strict=False)
            lines.note(tuple(way), line)
            expects_key = False
        elif token != ":" and kinds and kinds[-1] == "[":
            lines.note(tuple(way), line)
    return lines


_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"))*)\s*=""")
_HEADER = re.compile(r"\s*\[\[?[^\]]+\]\]?\s*(?:#.*)?$")


def lines_of_toml(text: str) -> dict[Steps, int]:
    found: dict[Steps, int] = {(): 1}
    table: Steps = ()
    for number, line in _outside_of_texts(text):
        if _HEADER.match(line) and (steps := _steps_in(line)) is not None:
            table = steps
            found.setdefault(table, number)
        elif (key := _KEY.match(line)) and (steps := _steps_in(f"{key[1]} = 0")) is not None:
            found.setdefault((*table, *steps), number)
    return found


def _outside_of_texts(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines that do not begin inside a text of several lines."""
    quote = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not quote:
            yield number, line
        for mark in re.findall(r'"""|' + "'''", line):
            quote = "" if mark == quote else quote or mark


def _steps_in(line: str) -> Steps | None:
    """The keys that a header, or a key with a value, names."""
    try:
        inner: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    steps: list[str | int] = []
    while isinstance(inner, dict | list) and inner:
        if isinstance(inner, list):
            inner = cast("list[Any]", inner)[0]
            continue
        key, inner = next(iter(cast("dict[str, Any]", inner).items()))
        steps.append(key)
    return tuple(steps)
