"""`FaultProxy`: a TCP proxy whose faults a test switches on and off while traffic flows.

Forwards bytes without parsing them. A fault applies to new and to existing connections; `heal` ends
it. Every socket and task ends with the `async with` block.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from toolkeep.testing._http import reset_transport

Direction = Literal["up", "down"]
_READ_SIZE = 65536


@dataclass(frozen=True, slots=True)
class _Break:
    """Close a connection after this many bytes in one direction, counted from now."""

    after_bytes: int
    direction: Direction
    reset: bool


class _Pair:
    """One client connection and the connection to the server. Lives in a task of the proxy."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.passed: dict[Direction, int] = {"up": 0, "down": 0}
        self.tail = b""

    def writers(self) -> Iterator[asyncio.StreamWriter]:
        yield self.client
        if self.server is not None:
            yield self.server

    def close(self, *, reset: bool) -> None:
        for writer in self.writers():
            if reset:
                reset_transport(writer.transport)
            else:
                writer.close()


class FaultProxy:
    """A proxy in front of any server, in the current event loop: `async with FaultProxy.to(host,
    port) as proxy`.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self.port = 0
        self.accepted = self.bytes_up = self.bytes_down = 0
        self._listener: asyncio.Server | None = None
        self._placeholder: socket.socket | None = None
        self._pairs: dict[_Pair, asyncio.Task[None]] = {}
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._break: _Break | None = None
        self._match: bytes | None = None
        self._speed: float | None = None

    @classmethod
    def to(cls, host: str, port: int) -> Self:
        return cls(host, port)

    def __repr__(self) -> str:
        return f"<FaultProxy to {self._host}:{self._port}, {self.accepted} accepted>"

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.refuse()
        self._release_port()
        tasks = list(self._pairs.values())
        for pair in list(self._pairs):
            pair.close(reset=True)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)
        await asyncio.sleep(0)

    def url(self, path: str = "/mcp", *, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.port}{path}"

    def refuse(self) -> None:
        """Stop listening: new connects are refused, existing connections go on."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
            # Bound but not listening: connects are refused, and no other program gets the port.
            self._placeholder = socket.socket()
            self._placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._placeholder.bind(("127.0.0.1", self.port))

    def _release_port(self) -> None:
        if self._placeholder is not None:
            self._placeholder.close()
            self._placeholder = None

    def reset(self, after_bytes: int = 0, direction: Direction = "down") -> None:
        """RST every connection, old or new, once that many more bytes have passed in that
        direction.
        """
        self._set_break(_Break(after_bytes, direction, reset=True))

    def cut(self, after_bytes: int = 0, direction: Direction = "down") -> None:
        """As `reset`, with a clean close."""
        self._set_break(_Break(after_bytes, direction, reset=False))

    def break_one(self, match: bytes) -> None:
        """RST only the next connection on which these bytes go upstream; they are not delivered."""
        self._match = match

    def stall(self) -> None:
        """Accept connections, and forward nothing in either direction until `heal`."""
        self._flowing.clear()

    def throttle(self, bytes_per_second: float) -> None:
        self._speed = bytes_per_second

    async def heal(self) -> None:
        """End every fault, listen again if refusing, and forward what was held back."""
        self._break = self._match = self._speed = None
        self._flowing.set()
        if self._listener is None:
            self._release_port()
            await self._listen()

    def kill_connections(self, *, reset: bool = True) -> int:
        """Break every open connection now; returns how many."""
        pairs = list(self._pairs)
        for pair in pairs:
            pair.close(reset=reset)
        return len(pairs)

    @property
    def open_connections(self) -> int:
        return len(self._pairs)

    def _set_break(self, fault: _Break) -> None:
        self._break = fault
        for pair in self._pairs:
            pair.passed = {"up": 0, "down": 0}

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(
            self._accept, "127.0.0.1", self.port, backlog=1024
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        pair = _Pair(writer)
        self._pairs[pair] = asyncio.create_task(self._serve(pair, reader))

    async def _serve(self, pair: _Pair, reader: asyncio.StreamReader) -> None:
        try:
            await self._flowing.wait()
            answers, pair.server = await asyncio.open_connection(self._host, self._port)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(pair, reader, pair.server, "up"))
                pumps.create_task(self._pump(pair, answers, pair.client, "down"))
        except* (OSError, EOFError):
            pass
        finally:
            self._pairs.pop(pair, None)
            pair.close(reset=False)

    async def _pump(
        self,
        pair: _Pair,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        direction: Direction,
    ) -> None:
        """Forward until either side ends; a clean end of one direction is passed on as such."""
        while data := await source.read(_READ_SIZE):
            await self._flowing.wait()
            if self._matches(pair, data, direction):
                pair.close(reset=True)
                return
            allowed = self._allowed(pair, len(data), direction)
            await self._write(pair, sink, data[:allowed], direction)
            if allowed < len(data) and self._break is not None:
                pair.close(reset=self._break.reset)
                return
        with contextlib.suppress(OSError):
            if sink.can_write_eof() and not sink.is_closing():
                sink.write_eof()

    def _matches(self, pair: _Pair, data: bytes, direction: Direction) -> bool:
        if self._match is None or direction == "down":
            return False
        seen = pair.tail + data
        pair.tail = seen[-len(self._match) :]
        if self._match not in seen:
            return False
        self._match = None
        return True

    def _allowed(self, pair: _Pair, size: int, direction: Direction) -> int:
        fault = self._break
        if fault is None or fault.direction != direction:
            return size
        return max(0, min(size, fault.after_bytes - pair.passed[direction]))

    async def _write(
        self, pair: _Pair, sink: asyncio.StreamWriter, data: bytes, direction: Direction
    ) -> None:
        for piece in self._pieces(data):
            sink.write(piece)
            await sink.drain()
            pair.passed[direction] += len(piece)
            if direction == "up":
                self.bytes_up += len(piece)
            else:
                self.bytes_down += len(piece)
            if self._speed is not None:
                await asyncio.sleep(len(piece) / self._speed)

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        """All of it, or what fits into a twentieth of a second each when throttled."""
        start = 0
        while start < len(data):
            size = len(data) if self._speed is None else max(1, int(self._speed / 20))
            yield data[start : start + size]
            start += size
