"""What a server did, in a file that outlives it; and what calls wish to have done to them.

The journal is written before a tool's body starts, one JSON line at a time and each with one write
to a file opened for appending: whoever kills the process finds in the file all that it has run.
"""

from __future__ import annotations

import json
import os
from typing import Any

from toolkeep.testing.script import Behaviour, JsonObject, params_of

_REMEMBERED = 10_000
"""Wishes that are granted already. A replay comes long before so many others do."""


class Journal:
    """Lines `["ran", key, tool, session, headers]` and `["wish", key]`. Of the headers there are
    `authorization` and those that begin with `x-`.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None

    def ran(self, key: str, tool: str, session: str | None, headers: dict[str, str]) -> None:
        chosen = {
            name: value
            for name, value in headers.items()
            if name == "authorization" or name.startswith("x-")
        }
        self.write("ran", key, tool, session, chosen)

    def write(self, *line: Any) -> None:
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Until something is to be written again."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


class Wishes:
    """A call's argument `wish` holds fields of a `Behaviour`. It is granted to the first request
    with the call's `key`, so that a replay fares better.
    """

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._granted: dict[str, None] = {}

    def grant(self, message: JsonObject | None, *, refused: bool) -> Behaviour | None:
        arguments: JsonObject = params_of(message).get("arguments") or {}
        wish, key = arguments.get("wish"), str(arguments.get("key"))
        if not wish or key in self._granted:
            return None
        how = Behaviour(**wish)
        if refused and how.runs:
            return None
        self._remember(key)
        return how

    def _remember(self, key: str) -> None:
        self._granted[key] = None
        if len(self._granted) > _REMEMBERED:
            del self._granted[next(iter(self._granted))]
        if self._journal is not None:
            self._journal.write("wish", key)
