"""Our ends of a process's pipes, on an event loop.

Bare descriptors and not asyncio's transports, for three reasons. Whether a byte of a message has
left is known exactly. They can be closed when their loop is gone. And a forked process can close
its copies without touching the loop's selector, which it shares with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from toolkeep._wire.attempt import Attempt
from toolkeep._wire.exchange import broken

_CHUNK = 64 * 1024
"""A pipe's capacity on Linux."""


class Inflow:
    """A pipe or socket to read from. Calls `take` with what comes, and `end` once, at its end."""

    def __init__(
        self, fd: int, take: Callable[[bytes], None], end: Callable[[], None] | None = None
    ) -> None:
        self._fd, self._take, self._end = fd, take, end
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._paused = True
        self.resume()

    @property
    def closed(self) -> bool:
        return self._fd < 0

    @property
    def fileno(self) -> int:
        return self._fd

    def pause(self) -> None:
        if not self._paused and not self.closed:
            self._loop.remove_reader(self._fd)
        self._paused = True

    def resume(self) -> None:
        if self._paused and not self.closed:
            self._loop.add_reader(self._fd, self._read)
        self._paused = False

    def finish(self) -> None:
        """Close, and tell the end."""
        if not self.closed:
            self.close()
            if self._end is not None:
                self._end()

    def close(self, *, forked: bool = False) -> None:
        if self.closed:
            return
        fd, self._fd = self._fd, -1
        if not forked and not self._loop.is_closed():
            self._loop.remove_reader(fd)
        os.close(fd)

    def _read(self) -> None:
        try:
            chunk = os.read(self._fd, _CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            chunk = b""
        if chunk:
            self._take(chunk)
        else:
            self.finish()


class Outflow:
    """A pipe to write to. Lines leave whole and in order, whatever becomes of their senders."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._turn = asyncio.Lock()
        self._rest = memoryview(b"")
        """What is left of a line whose beginning has left."""
        self._waiter: asyncio.Future[None] | None = None
        self._finishing = False

    @property
    def closed(self) -> bool:
        return self._fd < 0

    async def send(self, line: bytes, attempt: Attempt) -> None:
        """Returns when the line has begun to leave. Cancelled before that, nothing of it has."""
        async with self._turn:
            while self._rest and not self.closed:
                await self._writable()
            while not (self.closed or self._finishing):
                written = self._write(line)
                if written:
                    attempt.sent = True
                    self._rest = memoryview(line)[written:]
                    if self._rest:
                        self._loop.add_writer(self._fd, self._flush)
                    return
                if not self.closed:
                    await self._writable()
        raise broken("the server's standard input is closed", attempt)

    def finish(self) -> None:
        """Close as soon as the line that is leaving has left."""
        self._finishing = True
        if not self._rest:
            self.close()

    def close(self, *, forked: bool = False) -> None:
        """At once. Whoever waits to send learns that nothing was sent."""
        if self.closed:
            return
        fd, self._fd = self._fd, -1
        self._rest = memoryview(b"")
        if not forked and not self._loop.is_closed():
            self._loop.remove_writer(fd)
            self._wake()
        os.close(fd)

    def _write(self, line: bytes | memoryview) -> int:
        try:
            return os.write(self._fd, line)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self.close()
            return 0

    async def _writable(self) -> None:
        self._waiter = self._loop.create_future()
        self._loop.add_writer(self._fd, self._flush)
        await self._waiter

    def _flush(self) -> None:
        if self._rest:
            # Read before the write: a failing one closes, which drops the rest.
            rest = self._rest
            written = self._write(rest)
            self._rest = memoryview(b"") if self.closed else rest[written:]
        if self._rest or self.closed:
            return
        self._loop.remove_writer(self._fd)
        self._wake()
        if self._finishing:
            self.close()

    def _wake(self) -> None:
        with contextlib.suppress(asyncio.InvalidStateError):
            if self._waiter is not None:
                self._waiter.set_result(None)
        self._waiter = None
