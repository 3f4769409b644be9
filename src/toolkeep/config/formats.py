"""From text to values: JSON, JSON with comments, TOML and `.env`. Pure; quotes nothing of the text.

An error names the file, the line where the format tells it, and the remedy. A key that an object
has twice is a mistake: JSON's own rule, "the last one wins", hides half of what was written.
"""

from __future__ import annotations

import io
import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any, NoReturn, cast

from dotenv.parser import parse_stream

from toolkeep.config.draft import Mistakes, Steps
from toolkeep.config.positions import lines_of_json, lines_of_toml
from toolkeep.errors import ConfigError

DEEPEST = 32
"""Levels. Ours has six."""

Parsed = tuple[Any, Mapping[Steps, int]]


def parse_json(text: str, file: str | None, *, comments: bool = False) -> Parsed:
    """`comments`: as VS Code reads its own files, with comments and trailing commas."""
    text = _without_comments(text) if comments else text
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise _json_error(error, file) from None
    except RecursionError:
        raise _error("it is nested too deeply", file, None, "Write it flatter") from None
    except ValueError:
        raise _error("it holds a number that is none", file, None, "Correct it") from None
    check_depth(value, file)
    lines = lines_of_json(text)
    _refuse_doubles(lines.twice, lines.of, file)
    return value, lines.of


def check_depth(value: object, file: str | None) -> None:
    """Also stops at what a Python value can be and a text cannot: a part of itself."""
    left: list[tuple[object, int]] = [(value, 0)]
    while left:
        inner, depth = left.pop()
        if depth > DEEPEST:
            raise _error("it is nested too deeply", file, None, "Write it flatter")
        if isinstance(inner, Mapping):
            left.extend((one, depth + 1) for one in cast("Mapping[Any, Any]", inner).values())
        elif isinstance(inner, list | tuple):
            left.extend((one, depth + 1) for one in cast("list[Any]", inner))


def _no_constant(_name: str) -> NoReturn:
    raise ValueError


def _json_error(error: json.JSONDecodeError, file: str | None) -> ConfigError:
    rest = error.doc[error.pos :].lstrip()
    before = error.doc[: error.pos].rstrip()
    if not error.doc.strip():
        return _error("it is empty", file, None, 'Write {"mcpServers": {…}}')
    if rest.startswith(("//", "/*", "#")):
        remedy = "Remove the comment; only .vscode/mcp.json may hold some"
        return _error("JSON has no comments", file, error.lineno, remedy)
    if rest[:1] in ("}", "]") and before.endswith(","):
        line = before.count("\n") + 1
        return _error("a comma before the end", file, line, "Remove the last comma")
    remedy = f"Correct line {error.lineno}, near column {error.colno}"
    return _error(f"not JSON: {error.msg}", file, error.lineno, remedy)


def _refuse_doubles(
    twice: list[tuple[Steps, int]], first: Mapping[Steps, int], file: str | None
) -> None:
    mistakes = Mistakes()
    whole = {steps for steps, _ in twice}
    for steps, line in twice:
        if any(steps[:end] in whole for end in range(len(steps))):
            continue  # its object is there twice; that is told
        key = ".".join(map(str, steps))
        error = _error(f"given twice, first in line {first[steps]}", file, line, "Keep one", key)
        mistakes.found.append((line, error))
    mistakes.check()


_COMMENT = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r'("(?:[^"\\\n]|\\.)*")|,(?=\s*[}\]])')


def _without_comments(text: str) -> str:
    """Blanks in their place, so that every line keeps its number."""

    def blank(found: re.Match[str]) -> str:
        return found[1] or re.sub(r"[^\n]", " ", found[0])

    return _LAST_COMMA.sub(blank, _COMMENT.sub(blank, text))


_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)$")


_LONG_KEY = re.compile(
    r"""(?<![\w"'-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){200}"""
)
"""A dotted key of more parts than any has. tomllib's time grows with the square of their number:
a file of 1 MB would take an hour."""


def parse_toml(text: str, file: str | None) -> Parsed:
    if _LONG_KEY.search(text):
        raise _error("it is nested too deeply", file, None, "Write it flatter")
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise _error("it is nested too deeply", file, None, "Write it flatter") from None
    except ValueError as error:
        said = str(error)
        at = _AT_LINE.search(said)
        problem = f"not TOML: {said[: at.start()].strip()}" if at else "not TOML"
        line = int(at[1]) if at else len(text.splitlines()) or None
        raise _error(problem, file, line, "Correct the line; texts need quotes") from None
    check_depth(value, file)
    return value, lines_of_toml(text)


def parse_env(text: str, file: str | None) -> Parsed:
    """What python-dotenv reads: `NAME=value`, `export`, comments, and quoted values of several
    lines; of one name twice the last counts. Nothing is expanded here."""
    values: dict[str, str] = {}
    lines: dict[Steps, int] = {}
    mistakes = Mistakes()
    for binding in parse_stream(io.StringIO(text)):
        number = binding.original.line + _blank_lines_before(binding.original.string)
        if binding.error or (binding.key is not None and binding.value is None):
            error = _error("not NAME=value", file, number, "Write NAME=value, or quote the value")
            mistakes.found.append((number, error))
        elif binding.key is not None:
            values[binding.key] = binding.value or ""
            lines[(binding.key,)] = number
    mistakes.check()
    return values, lines


def _blank_lines_before(text: str) -> int:
    """python-dotenv counts the blank lines before an assignment as its own."""
    return text[: len(text) - len(text.lstrip())].count("\n")


def _error(
    problem: str, file: str | None, line: int | None, remedy: str, key: str | None = None
) -> ConfigError:
    place = f"{file}:{line}" if file and line else file
    return ConfigError(problem, remedy=remedy, file=place, key=key)
