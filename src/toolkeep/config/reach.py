"""How a server is reached, from the words that say it: `type`, `transport`, `local`, a Python file.

Pure, but for knowing which Python runs. Works on a server's values in place.
"""

from __future__ import annotations

import sys
from typing import Any

from toolkeep.config.words import LOCAL, REMOTE, WAYS
from toolkeep.errors import ConfigError


def reach(given: dict[str, Any]) -> None:
    """Puts one of ours under `transport`, or nothing where the rest tells it."""
    said = {key: given.pop(key) for key in ("type", "transport") if key in given}
    ways = {key: _way(key, word) for key, word in said.items() if word is not None}
    if LOCAL in ways.values():
        _run_here(given, next(key for key, way in ways.items() if way == LOCAL))
    concrete = {way for way in ways.values() if way not in (LOCAL, REMOTE)}
    if len(concrete) > 1:
        remedy = "Keep one of 'type' and 'transport'"
        raise ConfigError("'type' and 'transport' differ", key="type", remedy=remedy)
    if concrete:
        given["transport"] = concrete.pop()


def _way(key: str, word: object) -> str:
    if isinstance(word, str) and word in WAYS:
        return WAYS[word]
    raise ConfigError("no such transport", key=key, remedy=f"Use one of: {', '.join(WAYS)}")


def _run_here(given: dict[str, Any], key: str) -> None:
    if given.get("server") is not None:
        given["transport"] = "local"
        return
    url, command = given.get("url"), given.get("command")
    if isinstance(url, str) and "://" in url:
        remedy = f"Set {key!r} to http for an address, or give a command or a Python file"
        raise ConfigError("a local server has no address", key="url", remedy=remedy)
    file = url if isinstance(url, str) and url and not command else command
    if isinstance(file, str) and file.endswith(".py"):
        given.pop("url", None)
        args: Any = given.get("args") or []
        given["command"] = sys.executable
        given["args"] = [file, *args] if isinstance(args, list) else args
    elif file is url and url:
        remedy = "Name a file that ends in .py, or give a command"
        raise ConfigError("not a Python file", key="url", remedy=remedy)
