"""`FaultProxy`: a TCP proxy whose faults a test switches on and off while traffic flows.

Forwards bytes and never understands them. A fault applies to new and to existing connections;
`heal` ends it. Every socket and task ends with the `async with` block.
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
_PIECE = 65536


@dataclass(frozen=True, slots=True)
class _Break:
    """Close a connection after so many bytes in one direction, counted from now."""

    after_bytes: int
    direction: Direction
    reset: bool


class _Link:
    """One client connection and its counterpart. Lives in the proxy's task for it."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.passed: dict[Direction, int] = {"up": 0, "down": 0}
        self.tail = b""

    def writers(self) -> Iterator[asyncio.StreamWriter]:
        yield self.client
        if self.server is not None:
            yield self.server

    def sever(self, *, reset: bool) -> None:
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
        self._links: dict[_Link, asyncio.Task[None]] = {}
        self._clear = asyncio.Event()
        self._clear.set()
        self._break: _Break | None = None
        self._match: bytes | None = None
        self._speed: float | None = None

    @classmethod
    def to(cls, host: str, port: int) -> Self:
        return cls(host, port)

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
        tasks = list(self._links.values())
        for link in list(self._links):
            link.sever(reset=True)
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
            # Bound but not listening: connects are refused, and nobody else gets the port.
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
        """RST just the next connection on which these bytes go upstream; they are not delivered."""
        self._match = match

    def deaf(self) -> None:
        """Accept, and forward nothing in either direction."""
        self._clear.clear()

    def throttle(self, bytes_per_second: float) -> None:
        self._speed = bytes_per_second

    async def heal(self) -> None:
        """End every fault; listen again if refusing. What a deaf proxy held back is forwarded."""
        self._break = self._match = self._speed = None
        self._clear.set()
        if self._listener is None:
            self._release_port()
            await self._listen()

    def kill_connections(self, *, reset: bool = True) -> int:
        """Break every open connection now; returns how many."""
        links = list(self._links)
        for link in links:
            link.sever(reset=reset)
        return len(links)

    @property
    def open_connections(self) -> int:
        return len(self._links)

    def _set_break(self, fault: _Break) -> None:
        self._break = fault
        for link in self._links:
            link.passed = {"up": 0, "down": 0}

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(
            self._accept, "127.0.0.1", self.port, backlog=1024
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = _Link(writer)
        self._links[link] = asyncio.create_task(self._attend(link, reader))

    async def _attend(self, link: _Link, reader: asyncio.StreamReader) -> None:
        try:
            await self._clear.wait()
            answers, link.server = await asyncio.open_connection(self._host, self._port)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(link, reader, link.server, "up"))
                pumps.create_task(self._pump(link, answers, link.client, "down"))
        except* (OSError, EOFError):
            pass
        finally:
            self._links.pop(link, None)
            link.sever(reset=False)

    async def _pump(
        self,
        link: _Link,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        direction: Direction,
    ) -> None:
        """Forward until either side ends; a clean end of one direction is passed on as such."""
        while data := await source.read(_PIECE):
            await self._clear.wait()
            if self._hit(link, data, direction):
                link.sever(reset=True)
                return
            allowed = self._allowed(link, len(data), direction)
            await self._write(link, sink, data[:allowed], direction)
            if allowed < len(data) and self._break is not None:
                link.sever(reset=self._break.reset)
                return
        with contextlib.suppress(OSError):
            if sink.can_write_eof() and not sink.is_closing():
                sink.write_eof()

    def _hit(self, link: _Link, data: bytes, direction: Direction) -> bool:
        if self._match is None or direction == "down":
            return False
        seen = link.tail + data
        link.tail = seen[-len(self._match) :]
        if self._match not in seen:
            return False
        self._match = None
        return True

    def _allowed(self, link: _Link, size: int, direction: Direction) -> int:
        fault = self._break
        if fault is None or fault.direction != direction:
            return size
        return max(0, min(size, fault.after_bytes - link.passed[direction]))

    async def _write(
        self, link: _Link, sink: asyncio.StreamWriter, data: bytes, direction: Direction
    ) -> None:
        for piece in self._pieces(data):
            sink.write(piece)
            await sink.drain()
            link.passed[direction] += len(piece)
            if direction == "up":
                self.bytes_up += len(piece)
            else:
                self.bytes_down += len(piece)
            if self._speed is not None:
                await asyncio.sleep(len(piece) / self._speed)

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        """Whole, or in twentieths of a second when throttled."""
        start = 0
        while start < len(data):
            size = len(data) if self._speed is None else max(1, int(self._speed / 20))
            yield data[start : start + size]
            start += size
