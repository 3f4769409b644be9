"""Just enough of HTTP/1.1 on an asyncio transport, with the sockets in hand.

Owns framing, keep-alive and the ways to hang up. Never looks into a body. Every wait for the client
ends when the client leaves (`Connection.gone`) or when the server aborts the transport.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs

MAX_HEAD = 1 << 20
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_LINGER_ZERO = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Head:
    method: str
    target: str
    headers: dict[str, str]

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def session(self) -> str | None:
        """From the header of streamable HTTP, or the address of HTTP+SSE."""
        query = parse_qs(self.target.partition("?")[2])
        return self.headers.get("mcp-session-id") or query.get("sessionId", [None])[0]


class WatchedReader(asyncio.StreamReader):
    """A reader that tells when the peer has left, even while nobody reads."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit=limit)
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def feed_eof(self) -> None:
        super().feed_eof()
        self._leave()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self._leave()

    def _leave(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)


class Connection:
    """One TCP connection. Used by the one task that serves it; anyone may `abort` it."""

    __slots__ = ("gone", "number", "reader", "writer")

    def __init__(self, reader: WatchedReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader, self.writer, self.number = reader, writer, number
        self.gone = reader.gone

    async def read_head(self, keep_alive: float | None) -> Head | None:
        """The next request's head, or None when the client is done or was idle for too long."""
        timer = None
        if keep_alive is not None:
            timer = asyncio.get_running_loop().call_later(keep_alive, self.writer.close)
        try:
            raw = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            return None
        finally:
            if timer is not None:
                timer.cancel()
        return parse_head(raw)

    async def read_body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("expect", "").lower() == "100-continue":
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return b"".join([chunk async for chunk in self._chunks()])
        length = int(headers.get("content-length") or 0)
        return await self.reader.readexactly(length) if length else b""

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        while await self.reader.readuntil(b"\r\n") != b"\r\n":
            pass

    async def send(self, data: bytes) -> None:
        """Write, and wait only if the peer is slow. Raises ConnectionError when it has left."""
        self.writer.write(data)
        if self.writer.transport.get_write_buffer_size() > 65536 or self.gone.done():
            await self.writer.drain()

    async def pause(self, seconds: float | None) -> bool:
        """Wait (None: for ever); True if the client left meanwhile."""
        await asyncio.wait((self.gone,), timeout=seconds)
        return self.gone.done()

    async def hang_up(self, *, reset: bool) -> None:
        if reset:
            self.reset()
            return
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def break_off(self, reset: bool) -> None:
        """Close in the middle of an answer. What was written before goes out, unless reset."""
        if reset:
            self.reset()
        else:
            self.writer.close()

    def reset(self) -> None:
        reset_transport(self.writer.transport)

    def abort(self) -> None:
        self.writer.transport.abort()


def reset_transport(transport: asyncio.WriteTransport) -> None:
    """Close with RST: linger zero makes the kernel drop what was not sent and say so."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    transport.abort()


def parse_head(raw: bytes) -> Head | None:
    lines = raw.decode("latin-1").split("\r\n")
    start = lines[0].split(" ")
    if len(start) != 3:
        return None
    headers: dict[str, str] = {}
    for line in lines[1:-2]:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Head(start[0], start[1], headers)


def head_bytes(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
