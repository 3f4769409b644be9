"""Server-sent events, decoded from chunks of bytes. No I/O.

Handles what servers really send: LF, CR and CRLF, chunks cut anywhere, comments, multi-line data,
ids, `retry`, a byte-order mark. An event larger than the limit is refused before it is built, and
the stream can be read on after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
_BOM = b"\xef\xbb\xbf"
_EDGE = 400
"""Bytes of an event that was too large which are kept, to tell whose it was."""


class EventTooLarge(Exception):
    """An event outgrew the limit. `events` are those that came with it and did not."""

    def __init__(self, limit: int, events: list[ServerEvent], head: bytes) -> None:
        self.events, self.head = events, head
        super().__init__(f"an event of more than {limit} bytes")


@dataclass(slots=True)
class ServerEvent:
    """Nobody changes it; frozen, it takes four times as long to make."""

    data: str
    id: str | None = None
    event: str = "message"
    retry: float | None = None
    """Seconds to wait before reconnecting, if the server said so."""


class EventDecoder:
    """Feeds on chunks, returns whole events. One for each stream."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._at_start = True
        self._skipping = False
        """Whether the rest of an event that was too large is still to come."""

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        if (lines := self._only_event(chunk)) is not None:
            self._at_start = False
            event = _parse(lines)
            return [] if event is None else [event]
        searched = max(0, len(self._rest) - 3)
        self._rest += chunk
        if self._at_start:
            if len(self._rest) < len(_BOM) and _BOM.startswith(self._rest):
                return []  # perhaps the beginning of a byte-order mark
            self._rest, self._at_start, searched = self._rest.removeprefix(_BOM), False, 0
        # A last CR may be half of a CRLF: it waits for the next chunk.
        return self._take(searched, len(self._rest) - self._rest.endswith(b"\r"))

    def _only_event(self, chunk: bytes) -> list[bytes] | None:
        """The lines of a chunk that is what most are: one event, and nothing before or after."""
        if self._rest or self._skipping or chunk[-1:] != b"\n" or len(chunk) > self._limit:
            return None
        lines = chunk.splitlines()  # of bytes: at LF, CR and CRLF, and nowhere else
        alone = lines[-1] == b"" and lines.index(b"") == len(lines) - 1
        return lines if alone and not (self._at_start and chunk.startswith(_BOM)) else None

    def finish(self) -> list[ServerEvent]:
        """What remains at the end of the stream; an event without its blank line is dropped."""
        return self._take(0, len(self._rest))

    def _take(self, searched: int, end: int) -> list[ServerEvent]:
        events: list[ServerEvent] = []
        start, refused, head = 0, False, b""
        for stop, next_one in _blank_lines(self._rest, searched, end):
            block, start = self._rest[start:stop], next_one
            skipped, self._skipping = self._skipping, False
            if skipped:
                continue
            if len(block) > self._limit:
                refused, head = True, bytes(block[:_EDGE])
            elif (event := _parse(block.splitlines())) is not None:
                events.append(event)
        del self._rest[:start]
        if self._skipping or len(self._rest) > self._limit:
            if not self._skipping:
                refused, head = True, bytes(self._rest[:_EDGE])
            self._skipping = True
            del self._rest[:-3]
        if refused:
            raise EventTooLarge(self._limit, events, head)
        return events


def _blank_lines(text: bytearray, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Where each begins and ends."""
    for place in _line_ends(text, at, end):
        if place >= at and (found := _BLANK_LINE.match(text, place, end)):
            yield found.span()
            at = found.end()


def _line_ends(text: bytearray, at: int, end: int) -> Iterator[int]:
    # Not with an expression: that takes a thousand times as long for a line of a megabyte.
    feed, carriage = text.find(b"\n", at, end), text.find(b"\r", at, end)
    while feed >= 0 or carriage >= 0:
        if carriage < 0 or 0 <= feed < carriage:
            yield feed
            feed = text.find(b"\n", feed + 1, end)
        else:
            yield carriage
            carriage = text.find(b"\r", carriage + 1, end)


def _parse(lines: Iterable[bytes | bytearray]) -> ServerEvent | None:
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
    return ServerEvent(
        data="\n".join(data),
        id=fields["id"] if "\0" not in fields.get("id", "\0") else None,
        event=fields.get("event") or "message",
        retry=int(retry) / 1000 if is_time else None,
    )
