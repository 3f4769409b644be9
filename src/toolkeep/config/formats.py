"""Read configuration files and parse JSON, JSON with comments, TOML and `.env` text.

A `Document` is a parsed source with the line of each key; `ErrorCollector` gathers the errors
found in it. Errors name file, line and remedy and never quote the text. Only regular UTF-8
files of at most 1 MiB are read. A key that occurs twice in one object is an error.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

from dotenv.parser import parse_stream

from toolkeep.config.spec import Origin
from toolkeep.errors import ConfigError

KeyPath = tuple[str | int, ...]
"""The path to a value: keys and indices, from the outermost."""

Parsed = tuple[Any, Mapping[KeyPath, int]]
"""A value, and the line of each of its keys."""

MAX_FILE_BYTES = 1024 * 1024
"""Bytes. A thousand servers need less."""

MAX_DEPTH = 32
"""Levels of a document. Our own format has six."""

MAX_ERRORS = 1000
"""Errors that are collected from one source."""

_WIDE_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|\n')
_TOML_KEY = re.compile(
    r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"))*)\s*="""
)
_TOML_HEADER = re.compile(r"\s*\[\[?[^\]]+\]\]?\s*(?:#.*)?$")
_COMMENT = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:[^"\\\n]|\\.)*")|,(?=\s*[}\]])')
_TOML_ERROR_LINE = re.compile(r"\(at line (\d+), column \d+\)$")
_LONG_KEY = re.compile(
    r"""(?<![\w"'-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){200}"""
)
"""A dotted key of 200 parts or more. tomllib's time grows with the square of their number: a file
of 1 MB would take an hour."""


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed source."""

    value: Any = field(repr=False)
    file: str | None = None
    """The file's path for messages."""
    lines: Mapping[KeyPath, int] = field(default_factory=dict[KeyPath, int], repr=False)
    folder: Path = Path()
    """The value of `${workspaceFolder}`."""
    path: Path | None = None
    discovered: bool = False
    """Whether the file was found by searching, not named by the user."""

    def origin(self, path: KeyPath, detail: str = "") -> Origin:
        """The origin of a value, with the line of the nearest key around it that is known."""
        parents = (path[:end] for end in range(len(path), -1, -1))
        line = next((self.lines[parent] for parent in parents if parent in self.lines), None)
        return Origin(self.file, line, detail)


@dataclass(slots=True)
class ErrorCollector:
    """The errors of one source. Lives while the source is read."""

    found: list[tuple[int, ConfigError]] = field(default_factory=list[tuple[int, ConfigError]])
    fatal: bool = False
    """Whether an error concerns the whole source, so that none of its servers can be used."""
    _seen: set[str] = field(default_factory=set[str])
    """Messages collected so far. An error in a default occurs for every server; it counts once."""

    def add(
        self,
        problem: str,
        *,
        remedy: str,
        origin: Origin,
        server: str | None = None,
        key: str | None = None,
        of_one_server: bool = False,
    ) -> None:
        """Add an error. `of_one_server`: it concerns one server, even if that has no name."""
        self.fatal = self.fatal or not (of_one_server or server)
        if len(self.found) >= MAX_ERRORS:
            return
        error = ConfigError(
            problem, remedy=remedy, server=server, key=key, file=origin.location or None
        )
        if str(error) not in self._seen:
            self._seen.add(str(error))
            self.found.append((origin.line or 0, error))

    def raise_first(self) -> None:
        """Raise the first error in the order of the file, if there is one."""
        if (error := self.first) is not None:
            raise error

    @property
    def first(self) -> ConfigError | None:
        """The first error in the order of the file, with the number of the others."""
        return _first_with_count([error for _, error in self.sorted]) if self.found else None

    @property
    def sorted(self) -> list[tuple[int, ConfigError]]:
        return sorted(self.found, key=lambda one: one[0])

    def by_server(self) -> tuple[ConfigError, ...]:
        """One error for each invalid server."""
        servers: dict[object, list[ConfigError]] = {}
        for number, (_, error) in enumerate(self.sorted):
            servers.setdefault(error.server or number, []).append(error)
        return tuple(_first_with_count(errors) for errors in servers.values())


def _first_with_count(errors: list[ConfigError]) -> ConfigError:
    first, more = errors[0], len(errors) - 1
    problem = f"{first.problem} (and {more} more)" if more else first.problem
    return ConfigError(
        problem, remedy=first.remedy, server=first.server, key=first.key, file=first.file
    )


def display_path(path: Path, cwd: Path) -> str:
    """The path relative to `cwd` if it is below, else as it is."""
    try:
        return str(path.relative_to(cwd))
    except ValueError:
        return str(path)


def path_exists(path: Path) -> bool:
    """Whether the path exists, also if it cannot be read: reading it then reports why."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True
    return True


def read_text(path: Path, file: str) -> str:
    content = _read_bytes(path, file)
    if content.startswith(_WIDE_BOMS) or b"\0" in content[:4]:
        raise ConfigError("the file is UTF-16 or UTF-32", remedy="Save it as UTF-8", file=file)
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        where = f"{file}:{line}"
        raise ConfigError("the file is not UTF-8", remedy="Save it as UTF-8", file=where) from None
    if not text.strip():
        raise ConfigError("the file is empty", remedy="Fill it, or remove it", file=file)
    return text


def _read_bytes(path: Path, file: str) -> bytes:
    try:
        # Checked before opening: opening a named pipe blocks until there is a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ConfigError("this is not a regular file", remedy="Name a file", file=file)
        with open(path, "rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError("there is no such file", remedy="Correct the path", file=file) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the path is invalid"
        remedy = "Make it readable, or name another file"
        raise ConfigError(f"the file cannot be read: {reason}", remedy=remedy, file=file) from None
    if len(content) > MAX_FILE_BYTES:
        remedy = "Name another file; a configuration is much shorter"
        raise ConfigError(
            f"the file has more than {MAX_FILE_BYTES} bytes", remedy=remedy, file=file
        )
    return content


@dataclass(slots=True)
class KeyLines:
    """The line of each key and each list item."""

    lines: dict[KeyPath, int] = field(default_factory=dict[KeyPath, int])
    duplicates: list[tuple[KeyPath, int]] = field(default_factory=list[tuple[KeyPath, int]])
    """Keys that occur twice in their object, with the line of the second."""

    def add(self, path: KeyPath, line: int) -> None:
        if path in self.lines:
            self.duplicates.append((path, line))
        else:
            self.lines[path] = line


def locate_json_keys(text: str) -> KeyLines:
    """Find the line of each key in valid JSON."""
    lines, line = KeyLines({(): 1}), 1
    path: list[str | int] = []
    """The current key or index in each open object or list."""
    kinds: list[str] = []
    expects_key = False
    for token in _JSON_TOKEN.findall(text):
        if token == "\n":
            line += 1
        elif token in "{[":
            if kinds and kinds[-1] == "[":
                lines.add(tuple(path), line)
            kinds.append(token)
            path.append("" if token == "{" else 0)
            expects_key = token == "{"
        elif token in "}]":
            kinds.pop()
            path.pop()
            expects_key = False
        elif token == ",":
            expects_key = kinds[-1] == "{"
            if not expects_key:
                path[-1] = cast("int", path[-1]) + 1
        elif expects_key:
            path[-1] = json.loads(token, strict=False)
            lines.add(tuple(path), line)
            expects_key = False
        elif token != ":" and kinds and kinds[-1] == "[":
            lines.add(tuple(path), line)
    return lines


def locate_toml_keys(text: str) -> dict[KeyPath, int]:
    """Find the line of each table and key in valid TOML."""
    found: dict[KeyPath, int] = {(): 1}
    table: KeyPath = ()
    for number, line in _lines_outside_strings(text):
        if _TOML_HEADER.match(line) and (path := _key_path(line)) is not None:
            table = path
            found.setdefault(table, number)
        elif (key := _TOML_KEY.match(line)) and (path := _key_path(f"{key[1]} = 0")) is not None:
            found.setdefault((*table, *path), number)
    return found


def _lines_outside_strings(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines that do not begin inside a multi-line string."""
    quote = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not quote:
            yield number, line
        for mark in re.findall(r'"""|' + "'''", line):
            quote = "" if mark == quote else quote or mark


def _key_path(line: str) -> KeyPath | None:
    """The keys in a table header, or in a line with a key and a value."""
    try:
        inner: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    path: list[str | int] = []
    while isinstance(inner, dict | list) and inner:
        if isinstance(inner, list):
            inner = cast("list[Any]", inner)[0]
            continue
        key, inner = next(iter(cast("dict[str, Any]", inner).items()))
        path.append(key)
    return tuple(path)


def parse_json(text: str, file: str | None, *, comments: bool = False) -> Parsed:
    """Parse JSON. `comments`: allow comments and trailing commas, as VS Code does in its files."""
    text = _without_comments(text) if comments else text
    try:
        value = json.loads(text, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        raise _json_error(error, file) from None
    except RecursionError:
        raise _error("the document is nested too deeply", file, None, "Use fewer levels") from None
    except ValueError:
        raise _error("a number is not valid JSON", file, None, "Correct the number") from None
    check_depth(value, file)
    lines = locate_json_keys(text)
    _reject_duplicates(lines.duplicates, lines.lines, file)
    return value, lines.lines


def check_depth(value: object, file: str | None) -> None:
    """Raise if the value is nested too deeply, also for a Python value that contains itself."""
    left: list[tuple[object, int]] = [(value, 0)]
    while left:
        inner, depth = left.pop()
        if depth > MAX_DEPTH:
            raise _error("the document is nested too deeply", file, None, "Use fewer levels")
        if isinstance(inner, Mapping):
            left.extend((one, depth + 1) for one in cast("Mapping[Any, Any]", inner).values())
        elif isinstance(inner, list | tuple):
            left.extend((one, depth + 1) for one in cast("list[Any]", inner))


def _reject_constant(_name: str) -> NoReturn:
    raise ValueError


def _json_error(error: json.JSONDecodeError, file: str | None) -> ConfigError:
    rest = error.doc[error.pos :].lstrip()
    before = error.doc[: error.pos].rstrip()
    if not error.doc.strip():
        return _error("the document is empty", file, None, 'Write {"mcpServers": {…}}')
    if rest.startswith(("//", "/*", "#")):
        remedy = "Remove the comment; only .vscode/mcp.json may have comments"
        return _error("JSON does not allow comments", file, error.lineno, remedy)
    if rest[:1] in ("}", "]") and before.endswith(","):
        line = before.count("\n") + 1
        return _error("JSON does not allow a trailing comma", file, line, "Remove the last comma")
    remedy = f"Correct line {error.lineno}, near column {error.colno}"
    return _error(f"not valid JSON: {error.msg}", file, error.lineno, remedy)


def _reject_duplicates(
    duplicates: list[tuple[KeyPath, int]], first: Mapping[KeyPath, int], file: str | None
) -> None:
    errors = ErrorCollector()
    paths = {path for path, _ in duplicates}
    for path, line in duplicates:
        if any(path[:end] in paths for end in range(len(path))):
            continue  # the object around it is a duplicate, and is reported
        key = ".".join(map(str, path))
        problem = f"the key is given twice, first in line {first[path]}"
        errors.found.append((line, _error(problem, file, line, "Keep one of them", key)))
    errors.raise_first()


def _without_comments(text: str) -> str:
    """Replace comments and trailing commas by spaces, so that every line keeps its number."""

    def blank(found: re.Match[str]) -> str:
        return found[1] or re.sub(r"[^\n]", " ", found[0])

    return _TRAILING_COMMA.sub(blank, _COMMENT.sub(blank, text))


def parse_toml(text: str, file: str | None) -> Parsed:
    """Parse TOML."""
    if _LONG_KEY.search(text):
        raise _error("the document is nested too deeply", file, None, "Use fewer levels")
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise _error("the document is nested too deeply", file, None, "Use fewer levels") from None
    except ValueError as error:
        message = str(error)
        at = _TOML_ERROR_LINE.search(message)
        problem = f"not valid TOML: {message[: at.start()].strip()}" if at else "not valid TOML"
        line = int(at[1]) if at else len(text.splitlines()) or None
        raise _error(problem, file, line, "Correct the line; texts need quotes") from None
    check_depth(value, file)
    return value, locate_toml_keys(text)


def parse_env(text: str, file: str | None) -> Parsed:
    """Parse a `.env` file as python-dotenv does: `NAME=value`, `export`, comments, and quoted
    values of several lines. The last value of a name counts. References are not expanded."""
    values: dict[str, str] = {}
    lines: dict[KeyPath, int] = {}
    errors = ErrorCollector()
    for binding in parse_stream(io.StringIO(text)):
        number = binding.original.line + _blank_lines_before(binding.original.string)
        if binding.error or (binding.key is not None and binding.value is None):
            problem = "the line is not NAME=value"
            error = _error(problem, file, number, "Write NAME=value, or quote the value")
            errors.found.append((number, error))
        elif binding.key is not None:
            values[binding.key] = binding.value or ""
            lines[(binding.key,)] = number
    errors.raise_first()
    return values, lines


def _blank_lines_before(text: str) -> int:
    """python-dotenv counts the blank lines before an assignment as its own."""
    return text[: len(text) - len(text.lstrip())].count("\n")


def _error(
    problem: str, file: str | None, line: int | None, remedy: str, key: str | None = None
) -> ConfigError:
    place = f"{file}:{line}" if file and line else file
    return ConfigError(problem, remedy=remedy, file=place, key=key)
