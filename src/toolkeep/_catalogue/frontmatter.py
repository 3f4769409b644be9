"""What stands between two lines of dashes at the top of a Markdown file.

    ---
    description: Looks for mistakes
    arguments:
      - language
      - name: tone
        description: How to say it
        required: false
    ---

As much of YAML as such lines need: texts, lists of them, lists of small mappings. Between two lines
of `+++` it is TOML. Keys that are none of ours are another product's, and passed over unread. Pure;
a line that cannot be understood is a `ConfigError` with its number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkeep.config.draft import Steps
from toolkeep.config.formats import parse_toml
from toolkeep.errors import ConfigError

KEYS = ("name", "title", "description", "arguments")

_KEY = re.compile(r"([A-Za-z][\w-]*):(?:[ \t]+(.*))?")
_COMMENT = re.compile(r"(?:^|[ \t])#.*")
_SWITCHES = {"true": True, "false": False}


def split(text: str, file: str) -> tuple[dict[str, Any], str, Mapping[Steps, int]]:
    """What the front matter says, the rest of the text, and the lines of the keys."""
    lines = text.replace("\r\n", "\n").split("\n")
    fence = lines[0].rstrip()
    if fence not in ("---", "+++"):
        return {}, text, {}
    end = next((at for at in range(1, len(lines)) if lines[at].rstrip() == fence), None)
    if end is None:
        remedy = f"Close it with a line {fence}, or begin the file with an empty line"
        raise ConfigError("the front matter has no end", remedy=remedy, file=f"{file}:1")
    body = "\n".join(lines[end + 1 :])
    if fence == "+++":
        said, places = parse_toml("\n".join(["", *lines[1:end]]), file)
    else:
        said, places = _parsed(lines[1:end], file)
    return {key: said[key] for key in KEYS if key in said}, body, places


@dataclass(slots=True)
class _Entry:
    """One key, with the lines below it that are its own."""

    key: str
    rest: str
    line: int
    more: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])


def _parsed(lines: list[str], file: str) -> tuple[dict[str, Any], dict[Steps, int]]:
    found: dict[str, _Entry] = {}
    last: _Entry | None = None
    for number, line in enumerate(lines, 2):
        key = _KEY.fullmatch(line.rstrip())
        if key is not None:
            last = _Entry(key[1], (key[2] or "").strip(), number)
            if found.setdefault(last.key, last) is not last:
                told = f"given twice, first in line {found[last.key].line}"
                raise _error(told, file, number, "Keep one", last.key)
        elif last is not None and (not line.strip() or line[0] in " \t-"):
            last.more.append((number, line))
        elif line.strip() and not line.startswith("#"):
            raise _error("not front matter", file, number, "Write key: value")
    said = {key: _value(entry, file) for key, entry in found.items() if key in KEYS}
    return said, {(key,): entry.line for key, entry in found.items()}


def _value(entry: _Entry, file: str) -> Any:
    if entry.key == "arguments":
        return _listed(entry, file)
    folded = entry.rest[:1] in ("|", ">")
    below = [line.strip() for _, line in entry.more]
    if folded:
        return ("\n" if entry.rest[0] == "|" else " ").join(below).strip()
    return _scalar(" ".join([entry.rest, *below]).strip(), file, entry.line)


def _listed(entry: _Entry, file: str) -> list[Any]:
    inline = _COMMENT.sub("", entry.rest)
    if inline:
        if not (inline.startswith("[") and inline.endswith("]")):
            raise _error("not a list", file, entry.line, "Write [one, two]", entry.key)
        parts = [part.strip() for part in inline[1:-1].split(",")]
        return [_scalar(part, file, entry.line) for part in parts if part]
    items: list[Any] = []
    for number, line in entry.more:
        text = line.strip()
        if text and not text.startswith("#"):
            _add(items, text, file, number)
    return items


def _add(items: list[Any], text: str, file: str, number: int) -> None:
    begins = text.startswith("- ")
    text = text[2:].strip() if begins else text
    pair = _KEY.fullmatch(text)
    if pair is None and begins:
        items.append(_scalar(text, file, number))
        return
    if begins:
        items.append({})
    if pair is None or not items or not isinstance(items[-1], dict):
        remedy = "Write '- name', or '- name: …' with 'description: …' below it"
        raise _error("not an argument", file, number, remedy, "arguments")
    said = _scalar((pair[2] or "").strip(), file, number)
    items[-1][pair[1]] = _SWITCHES.get(said, said) if pair[1] == "required" else said


def _scalar(text: str, file: str, number: int) -> str:
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            raise _error("a quote is not closed", file, number, "Close it") from None
    if text.startswith("'") and text.endswith("'") and len(text) > 1:
        return text[1:-1].replace("''", "'")
    return _COMMENT.sub("", text).strip()


def _error(problem: str, file: str, line: int, remedy: str, key: str | None = None) -> ConfigError:
    return ConfigError(problem, remedy=remedy, file=f"{file}:{line}", key=key)
