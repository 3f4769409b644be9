"""Cut byte streams into messages: server-sent events and lines. No I/O.

Both decoders accept chunks cut anywhere and bound the size of one event or line. What exceeds
the limit is dropped, with enough of its edges kept to find the request it answers; decoding
goes on after it. This module must never wait and never parse the JSON inside a message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mcp_types import RequestId

from toolkeep._transport.base import OversizedMessage

_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
_BOM = b"\xef\xbb\xbf"
_EVENT_HEAD_BYTES = 400
"""Bytes kept of an oversized event, to find the request it answers."""
_LINE_EDGE_BYTES = 200
"""Bytes kept of each end of an oversized line, to find the request it answers."""
_SLICE_BYTES = 256
"""Bytes, and so the most lines, of one piece of a chunk with many lines."""

_ID_FIELD = rb'"id"\s*:\s*(-?\d{1,18}|"(?:[^"\\]|\\.)*")\s*'
_OBJECT_START = rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?'
_RESULT_OR_ERROR = rb'"(?:result|error)"\s*:'
_ID_FIRST = re.compile(_OBJECT_START + _ID_FIELD + rb",\s*" + _RESULT_OR_ERROR)
_RESULT_FIRST = re.compile(_OBJECT_START + _RESULT_OR_ERROR)
_ID_LAST = re.compile(rb",\s*" + _ID_FIELD + rb"\}\s*$")


class SseEventTooLarge(Exception):
    """An event exceeds the limit. `events` are the others of the same chunk."""

    def __init__(self, limit: int, events: list[SseEvent], head: bytes) -> None:
        self.events, self.head = events, head
        super().__init__(f"an event of more than {limit} bytes")


@dataclass(slots=True)
class SseEvent:
    """One server-sent event. Treated as immutable; a frozen one takes four times as long to
    create."""

    data: str
    id: str | None = None
    event: str = "message"
    retry: float | None = None
    """Seconds to wait before reconnecting, if the server sent any."""


class SseDecoder:
    """Turns chunks into whole events. One for each stream."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._at_start = True
        self._skipping = False
        """Whether the rest of an oversized event is still to come."""

    def feed(self, chunk: bytes) -> list[SseEvent]:
        if (lines := self._single_event_lines(chunk)) is not None:
            self._at_start = False
            event = _parse_event(lines)
            return [] if event is None else [event]
        searched = max(0, len(self._buffer) - 3)
        self._buffer += chunk
        if self._at_start:
            if len(self._buffer) < len(_BOM) and _BOM.startswith(self._buffer):
                return []  # may be the beginning of a byte-order mark
            self._buffer, self._at_start, searched = self._buffer.removeprefix(_BOM), False, 0
        # A CR at the end may be half of a CRLF: keep it for the next chunk.
        return self._decode(searched, len(self._buffer) - self._buffer.endswith(b"\r"))

    def _single_event_lines(self, chunk: bytes) -> list[bytes] | None:
        """The lines of a chunk that is exactly one event, as most chunks are; else None."""
        if self._buffer or self._skipping or chunk[-1:] != b"\n" or len(chunk) > self._limit:
            return None
        lines = chunk.splitlines()  # bytes are split at LF, CR and CRLF only
        alone = lines[-1] == b"" and lines.index(b"") == len(lines) - 1
        return lines if alone and not (self._at_start and chunk.startswith(_BOM)) else None

    def finish(self) -> list[SseEvent]:
        """The last events, at the end of the stream. An event without a blank line is dropped."""
        return self._decode(0, len(self._buffer))

    def _decode(self, searched: int, end: int) -> list[SseEvent]:
        events: list[SseEvent] = []
        start, refused, head = 0, False, b""
        for stop, next_one in _blank_lines(self._buffer, searched, end):
            block, start = self._buffer[start:stop], next_one
            skipped, self._skipping = self._skipping, False
            if skipped:
                continue
            if len(block) > self._limit:
                refused, head = True, bytes(block[:_EVENT_HEAD_BYTES])
            elif (event := _parse_event(block.splitlines())) is not None:
                events.append(event)
        del self._buffer[:start]
        if self._skipping or len(self._buffer) > self._limit:
            if not self._skipping:
                refused, head = True, bytes(self._buffer[:_EVENT_HEAD_BYTES])
            self._skipping = True
            del self._buffer[:-3]
        if refused:
            raise SseEventTooLarge(self._limit, events, head)
        return events


def _blank_lines(text: bytearray, at: int, end: int) -> Iterator[tuple[int, int]]:
    """The start and the end of each blank line."""
    for line_end in _line_ends(text, at, end):
        if line_end >= at and (found := _BLANK_LINE.match(text, line_end, end)):
            yield found.span()
            at = found.end()


def _line_ends(text: bytearray, at: int, end: int) -> Iterator[int]:
    # Not a regular expression: on a line of a megabyte it takes a thousand times as long.
    lf, cr = text.find(b"\n", at, end), text.find(b"\r", at, end)
    while lf >= 0 or cr >= 0:
        if cr < 0 or 0 <= lf < cr:
            yield lf
            lf = text.find(b"\n", lf + 1, end)
        else:
            yield cr
            cr = text.find(b"\r", cr + 1, end)


def _parse_event(lines: Iterable[bytes | bytearray]) -> SseEvent | None:
    data: list[str] = []
    fields: dict[str, str] = {}
    for line in lines:
        if not line or line.startswith(b":"):
            continue
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        else:
            fields[name] = value
    if not data and not fields:
        return None
    retry = fields.get("retry", "")
    is_time = retry.isascii() and retry.isdigit() and len(retry) < 16
    return SseEvent(
        data="\n".join(data),
        id=fields["id"] if "\0" not in fields.get("id", "\0") else None,
        event=fields.get("event") or "message",
        retry=int(retry) / 1000 if is_time else None,
    )


def split_chunk(chunk: bytes) -> Iterator[bytes]:
    """The chunk in pieces of few lines, so that the reader can yield to other tasks between."""
    if chunk.count(b"\n") + chunk.count(b"\r") <= _SLICE_BYTES:
        yield chunk
        return
    for start in range(0, len(chunk), _SLICE_BYTES):
        yield chunk[start : start + _SLICE_BYTES]


class LineDecoder:
    """Turns chunks into stripped, non-empty lines. One for each stream."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.buffer = bytearray()
        self._searched = 0
        self.head: bytes | None = None
        """The beginning of an oversized line whose rest is being dropped."""

    def feed(self, chunk: bytes) -> list[bytes | OversizedMessage]:
        found: list[bytes | OversizedMessage] = []
        self.buffer += chunk
        start = 0
        while (end := self.buffer.find(b"\n", max(start, self._searched))) >= 0:
            found.append(self._line(start, end))
            start = self._searched = end + 1
        del self.buffer[:start]
        self._searched = len(self.buffer)
        if self.head is not None or self._searched > self._limit:
            self._drop_excess()
        return [line for line in found if line]

    def _line(self, start: int, end: int) -> bytes | OversizedMessage:
        if self.head is None and end - start <= self._limit:
            return bytes(self.buffer[start:end]).strip()
        head = (
            self.head
            if self.head is not None
            else bytes(self.buffer[start : start + _LINE_EDGE_BYTES])
        )
        tail = bytes(self.buffer[max(start, end - _LINE_EDGE_BYTES) : end])
        self.head = None
        return OversizedMessage(response_id(head, tail), self._limit)

    def _drop_excess(self) -> None:
        if self.head is None:
            self.head = bytes(self.buffer[:_LINE_EDGE_BYTES])
        del self.buffer[:-_LINE_EDGE_BYTES]
        self._searched = len(self.buffer)


def response_id(head: bytes, tail: bytes = b"") -> RequestId | None:
    """The id of a response, from its first and last bytes. None unless it is certain that the id
    is the response's own, and not one inside its result."""
    found = _ID_FIRST.match(head) or (_RESULT_FIRST.match(head) and _ID_LAST.search(tail))
    try:
        return json.loads(found[1]) if found else None
    except ValueError:
        return None
