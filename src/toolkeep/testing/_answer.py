"""Writing an answer the way a behaviour says: whole, cut, slow, endless, or not at all.

Everything here returns whether the connection may be used for another request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolkeep.testing._admission import Refusal
from toolkeep.testing._events import EventLog, encode
from toolkeep.testing._http import LAST_CHUNK, Connection, chunk, head_bytes
from toolkeep.testing.script import Behaviour, JsonObject

_PIECE = b"x" * 65536
SSE_HEADERS = {"content-type": "text/event-stream", "cache-control": "no-cache, no-transform"}


@dataclass(slots=True)
class Plain:
    """An answer that is known whole."""

    status: int
    body: bytes
    headers: dict[str, str]

    def __post_init__(self) -> None:
        self.headers = {name.lower(): value for name, value in self.headers.items()}


def from_refusal(refused: Refusal) -> Plain:
    kind = {"content-type": refused.content_type} if refused.content_type else {}
    return Plain(refused.status, refused.body, {**kind, **refused.headers})


def override_of(how: Behaviour, message: JsonObject | None) -> bytes | None:
    """The answer that a behaviour puts in place of the true one."""
    about = (message or {}).get("id")
    if how.error is not None:
        shown = {"request": about, "null": None, "other": "some-other-id"}[how.error_id]
        return encode({"jsonrpc": "2.0", "id": shown, "error": dict(how.error)})
    if how.result is not None:
        return encode({"jsonrpc": "2.0", "id": about, "result": dict(how.result)})
    return None


async def send_plain(connection: Connection, plain: Plain, how: Behaviour) -> bool:
    """Send a JSON or text answer, with its framing and its cuts."""
    framing = how.framing or "length"
    headers = {**plain.headers, **_framed(framing, len(plain.body))}
    head = head_bytes(plain.status, headers)
    cut = cut_at(how, len(plain.body))
    if cut is not None:
        part = plain.body[:cut]
        await connection.send(head + (chunk(part) if framing == "chunked" and part else part))
        await connection.hang_up(reset=how.reset)
        return False
    if framing == "chunked":
        await connection.send(head + (chunk(plain.body) if plain.body else b"") + LAST_CHUNK)
        return True
    await connection.send(head + plain.body)
    if how.repeat_after is not None and not await connection.pause(how.repeat_after):
        await connection.send(head + plain.body)
    return framing == "length" and not how.reset


def _framed(framing: str, length: int) -> Mapping[str, str]:
    if framing == "length":
        return {"content-length": str(length)}
    return {"transfer-encoding": "chunked"} if framing == "chunked" else {"connection": "close"}


def cut_at(how: Behaviour, length: int) -> int | None:
    return length // 2 if how.drop == "mid_answer" else how.cut_after


async def send_large(connection: Connection, request_id: object, how: Behaviour) -> bool:
    """A text result of `body_bytes`, written piece by piece as the client takes it."""
    parts = large_parts(request_id, how.body_bytes or 0)
    length = sum(map(len, parts))
    headers = {"content-type": "application/json", **(how.headers or {})}
    await connection.send(
        head_bytes(how.status or 200, {**headers, **_framed(how.framing or "length", length)})
    )
    left = length if (cut := cut_at(how, length)) is None else min(cut, length)
    for part in parts:
        piece = part[:left]
        left -= len(piece)
        if piece:
            await connection.send(chunk(piece) if how.framing == "chunked" else piece)
    if cut is not None:
        await connection.hang_up(reset=how.reset)
        return False
    if how.framing == "chunked":
        await connection.send(LAST_CHUNK)
    return how.framing != "close"


def large_parts(request_id: object, size: int) -> list[bytes]:
    """A text result of about that size, in pieces that share their memory."""
    start = b'{"jsonrpc":"2.0","id":%b,"result":{"resultType":"complete",' % encode(request_id)
    start += b'"content":[{"type":"text","text":"'
    end = b'"}],"isError":false}}'
    whole, rest = divmod(max(0, size - len(start) - len(end)), len(_PIECE))
    return [start, *[_PIECE] * whole, _PIECE[:rest], end]


class EventStream:
    """The SSE answer of one exchange: follows a log and writes it in the manner asked for."""

    def __init__(self, connection: Connection, log: EventLog, how: Behaviour) -> None:
        self._connection, self._log, self._how = connection, log, how
        self._newline = b"\r\n" if how.crlf else b"\n"

    async def open(
        self, headers: Mapping[str, str], position: int = 0, *, last: bool = True
    ) -> bool:
        """Write the head and then every event from `position` on, until the log ends or is cut.

        `last` says that the log's last event is the answer (which `sse_prefix` and the cuts are
        about).
        """
        connection, log, how = self._connection, self._log, self._how
        extra = {**SSE_HEADERS, **headers, **(how.headers or {}), "transfer-encoding": "chunked"}
        pending = head_bytes(how.status or 200, extra)
        if how.prime and position == 0:
            pending += chunk(self._event(-1, b""))
        sent = 0
        while sent != how.cut_stream_after_events:
            if position >= len(log.events) and not log.done:
                await connection.send(pending)
                pending = b""
            if not await log.beyond(position, connection.gone):
                break
            final = last and log.done and position == len(log.events) - 1
            pending += self._framed(position, final=final)
            position, sent = position + 1, sent + 1
            if final and cut_at(how, 0) is not None:
                return await self._break(pending)
            if len(pending) > 65536:
                await connection.send(pending)
                pending = b""
        return await self._end(pending)

    def _framed(self, position: int, *, final: bool) -> bytes:
        data = self._event(position, self._log.events[position])
        if final:
            data = (self._how.sse_prefix or "").encode() + data
            cut = cut_at(self._how, len(data))
            data = data if cut is None else data[:cut]
        return chunk(data) if data else b""

    def _event(self, position: int, payload: bytes) -> bytes:
        lines = [b"event: message"] if payload else []
        if self._how.event_ids or self._how.prime:
            lines.append(f"id: {self._log.event_id(position)}".encode())
        if self._how.retry_ms is not None:
            lines.append(b"retry: %d" % self._how.retry_ms)
        return self._newline.join((*lines, b"data: " + payload, b"", b""))

    async def _break(self, pending: bytes) -> bool:
        await self._connection.send(pending)
        await self._connection.hang_up(reset=self._how.reset)
        return False

    async def _end(self, pending: bytes) -> bool:
        connection, how = self._connection, self._how
        if how.reset and how.cut_stream_after_events is not None:
            return await self._break(pending)
        if how.sse_linger and self._log.done:
            await connection.send(pending)
            pending = b""
            await connection.pause(how.sse_linger)
        if connection.gone.done():
            return False
        await connection.send(pending + LAST_CHUNK)
        return True


async def send_endless(connection: Connection, how: Behaviour, headers: Mapping[str, str]) -> bool:
    """Comments and log notifications until the client leaves."""
    await connection.send(
        head_bytes(how.status or 200, {**SSE_HEADERS, **headers, "transfer-encoding": "chunked"})
    )
    params = {"level": "debug", "data": "still here"}
    note = encode({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
    beats = (b": still here\n\n", b"event: message\ndata: " + note + b"\n\n")
    beat = 0
    while not await connection.pause(how.endless_gap):
        await connection.send(chunk(beats[beat % 2]))
        beat += 1
    return False
