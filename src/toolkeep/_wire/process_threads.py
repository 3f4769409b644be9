"""Our ends of a process's pipes where no event loop can wait for a pipe: on Windows.

The same as in `process_pipes`, with a thread for each pipe that blocks in its stead. A thread ends
when its pipe does, so the process has to be ended before (or right after) its pipes are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable

from toolkeep._wire.attempt import Attempt
from toolkeep._wire.exchange import broken

_CHUNK = 64 * 1024


class ThreadInflow:
    """A pipe to read from."""

    def __init__(
        self, fd: int, take: Callable[[bytes], None], end: Callable[[], None] | None = None
    ) -> None:
        self._fd, self._take, self._end = fd, take, end
        self._loop = asyncio.get_running_loop()
        self._may_read = threading.Event()
        self._may_read.set()
        self.closed = False
        threading.Thread(target=self._read, name="toolkeep-reader", daemon=True).start()

    def pause(self) -> None:
        self._may_read.clear()

    def resume(self) -> None:
        self._may_read.set()

    def finish(self) -> None:
        """Close, and tell the end."""
        if not self.closed:
            self.close()
            if self._end is not None:
                self._end()

    def close(self, *, forked: bool = False) -> None:
        self.closed = True
        self._may_read.set()

    def _read(self) -> None:
        # The loop may be closed by the time that something comes.
        with contextlib.suppress(OSError, RuntimeError):
            while self._may_read.wait() and not self.closed:
                chunk = os.read(self._fd, _CHUNK)
                if not chunk:
                    break
                self._loop.call_soon_threadsafe(self._hand_over, chunk)
        os.close(self._fd)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.finish)

    def _hand_over(self, chunk: bytes) -> None:
        if not self.closed:
            self._take(chunk)


class ThreadOutflow:
    """A pipe to write to. Whether the first byte has left cannot be known: it may have."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._line = b""
        self._has_line, self._done = threading.Event(), False
        self.closed = False
        threading.Thread(target=self._write, name="toolkeep-writer", daemon=True).start()

    async def send(self, line: bytes, attempt: Attempt) -> None:
        async with self._turn:
            await self._idle.wait()
            if self.closed or self._done:
                raise broken("the server's standard input is closed", attempt)
            attempt.sent = True
            self._idle.clear()
            self._line = line
            self._has_line.set()

    def finish(self) -> None:
        """Close as soon as the line that is leaving has left."""
        self._done = True
        self._has_line.set()

    def close(self, *, forked: bool = False) -> None:
        self.closed = True
        self.finish()
        with contextlib.suppress(RuntimeError):
            self._idle.set()

    def _write(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            while self._has_line.wait() and not self.closed:
                line, self._line = memoryview(self._line), b""
                self._has_line.clear()
                while line and not self.closed:
                    line = line[os.write(self._fd, line) :]
                self._loop.call_soon_threadsafe(self._idle.set)
                if self._done and not self._line:
                    break
        os.close(self._fd)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.close)
