"""What a process says, cut into lines; and floods of lines, cut into slices. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from mcp_types import RequestId

from toolkeep._wire.duct import Oversized
from toolkeep._wire.hush import Redaction

_EDGE = 200
"""Bytes of each end of an oversized line in which its id is looked for."""
_ID = rb'"id"\s*:\s*(-?\d{1,18}|"(?:[^"\\]|\\.)*")\s*'
_START = rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?'
_OUTCOME = rb'"(?:result|error)"\s*:'
_WITH_ID = re.compile(_START + _ID + rb",\s*" + _OUTCOME)
_WITHOUT_ID = re.compile(_START + _OUTCOME)
_ID_LAST = re.compile(rb",\s*" + _ID + rb"\}\s*$")
_LONGEST_TAIL = 4096
_SLICE = 256
"""Bytes, and so lines, at most, of a chunk of many lines that are looked at in one go."""


def slices(chunk: bytes) -> Iterator[bytes]:
    """A chunk, in pieces of few lines each: one after the other they leave time for other tasks."""
    if chunk.count(b"\n") + chunk.count(b"\r") <= _SLICE:
        yield chunk
        return
    for start in range(0, len(chunk), _SLICE):
        yield chunk[start : start + _SLICE]


class Lines:
    """Cuts a stream into lines, none longer than the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.kept = bytearray()
        self._searched = 0
        self.head: bytes | None = None
        """Of a line that is too long, and thrown away as it comes."""

    def feed(self, chunk: bytes) -> list[bytes | Oversized]:
        found: list[bytes | Oversized] = []
        self.kept += chunk
        start = 0
        while (end := self.kept.find(b"\n", max(start, self._searched))) >= 0:
            found.append(self._line(start, end))
            start = self._searched = end + 1
        del self.kept[:start]
        self._searched = len(self.kept)
        if self.head is not None or self._searched > self._limit:
            self._throw_away()
        return [line for line in found if line]

    def _line(self, start: int, end: int) -> bytes | Oversized:
        if self.head is None and end - start <= self._limit:
            return bytes(self.kept[start:end]).strip()
        head = self.head if self.head is not None else bytes(self.kept[start : start + _EDGE])
        tail = bytes(self.kept[max(start, end - _EDGE) : end])
        self.head = None
        return Oversized(answered_id(head, tail), self._limit)

    def _throw_away(self) -> None:
        if self.head is None:
            self.head = bytes(self.kept[:_EDGE])
        del self.kept[:-_EDGE]
        self._searched = len(self.kept)


def answered_id(head: bytes, tail: bytes = b"") -> RequestId | None:
    """The id, where it is an answer's own beyond doubt: at its very beginning or end."""
    found = _WITH_ID.match(head) or (_WITHOUT_ID.match(head) and _ID_LAST.search(tail))
    try:
        return json.loads(found[1]) if found else None
    except ValueError:
        return None


class Tail:
    """The last words of a process: whole lines, secrets taken out."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._without = Redaction(secrets)
        forms = self._without.forms
        longest = max((len(s.encode("utf-8", "surrogatepass")) for s in forms), default=0)
        self._most = 2 * _LONGEST_TAIL + longest
        """Bytes to keep, so that a secret that is still coming is kept whole."""
        self._kept = bytearray()
        self._line = bytearray()

    def keep(self, chunk: bytes) -> None:
        self._kept = self._cut(self._kept + chunk)

    def lines(self, chunk: bytes) -> list[str]:
        """The lines that are whole now, as they may be shown, without blank ones."""
        self._line += chunk
        whole, _, rest = self._line.rpartition(b"\n")
        self._line = self._cut(rest)
        return [line.rstrip() for line in self.shown(whole).split("\n") if line and line != "\r"]

    def _cut(self, text: bytearray) -> bytearray:
        """What is kept of it. Without secrets, since a half of one would go unrecognised."""
        if len(text) <= self._most:
            return text
        shown = self._without.of(text.decode("utf-8", "surrogateescape"))
        return bytearray(shown.encode("utf-8", "surrogateescape")[-self._most :])

    def shown(self, line: bytes | bytearray) -> str:
        return self._without.of(line.decode("utf-8", "replace").rstrip())

    @property
    def text(self) -> str:
        text = self.shown(self._kept)
        if len(text) <= _LONGEST_TAIL:
            return text.strip()
        text = text[-_LONGEST_TAIL:]
        return (text.partition("\n")[2] or text).strip()
