"""A server that speaks over its standard streams: one JSON-RPC message to a line.

What the program prints to its standard output belongs to the protocol; what is no message is
logged, remembered and left out. Its standard error is always read, and its last words are kept.
Nothing here knows of requests and answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence

from toolkeep._wire import jsonrpc
from toolkeep._wire.attempt import Attempt
from toolkeep._wire.duct import Epitaph, Oversized, Received
from toolkeep._wire.exchange import broken
from toolkeep._wire.process import Process, start
from toolkeep._wire.process_lines import Lines, Tail, slices
from toolkeep._wire.process_pipes import Inflow, Outflow
from toolkeep._wire.process_program import program_of
from toolkeep._wire.process_threads import ThreadInflow, ThreadOutflow
from toolkeep.config import ServerSpec

logger = logging.getLogger("toolkeep.server")

_WINDOWS = os.name == "nt"

_MOST_UNREAD = 1024 * 1024
"""Bytes that wait for `receive` before the server's output is left in its pipe."""
_EXIT_WAIT = 1.0
"""Seconds from the end of the output until the exit code must be there."""
_KILLS = 8
"""How often a tree is killed in the last third of the time to close."""
_MOST_LOGGED = 64
"""Lines of its standard error that are logged in one turn of the event loop."""
_MOST_COMPLAINTS = 3
_LONGEST_COMPLAINT = 200


class StdioDuct:
    """One run of one program."""

    kind = "stdio"
    answers_apart = False
    heard_at = 0.0
    session_id: str | None = None

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        self._process: Process | None = None
        self._stdin: Outflow | ThreadOutflow | None = None
        self._stdout: Inflow | ThreadInflow | None = None
        self._stderr: Inflow | ThreadInflow | None = None
        self._lines = Lines(spec.max_result_bytes)
        self._tail = Tail(spec.secrets)
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._unlogged: deque[str] = deque()
        self._news = asyncio.Event()
        self._last_word = asyncio.Event()
        self._end: asyncio.TimerHandle | None = None
        self._closing = False
        self._said: list[str] = []

    @property
    def said(self) -> str:
        """What the program printed to its output that is no message; "" for nothing."""
        return "\n".join(self._said)

    async def open(self) -> None:
        process = await start(program_of(self._spec))
        inflow, outflow = (ThreadInflow, ThreadOutflow) if _WINDOWS else (Inflow, Outflow)
        self._process = process
        self._stdin = outflow(process.streams.stdin)
        self._stdout = inflow(process.streams.stdout, self._take, self._news.set)
        self._stderr = inflow(process.streams.stderr, self._overhear, self._last_word.set)
        process.when_gone(self._end_soon)

    async def send(self, body: bytes, attempt: Attempt, headers: Mapping[str, str]) -> None:
        if self._stdin is None:
            raise broken("the server's process is gone", attempt)
        await self._stdin.send(body + b"\n", attempt)

    async def receive(self) -> Sequence[Received] | None:
        while True:
            while self._unread:
                chunk = self._unread.popleft()
                self._unread_bytes -= len(chunk)
                if received := self._messages(chunk):
                    return received
                await asyncio.sleep(0)  # chatter without end must not hold up other tasks
            if self._closing or self._stdout is None:
                return None
            if self._stdout.closed:
                if self._stdin is not None:
                    self._stdin.close()  # who waits to send learns that nothing was sent
                return self._messages(b"\n", last=True) or None
            self._stdout.resume()
            self._news.clear()
            await self._news.wait()

    async def epitaph(self) -> Epitaph:
        if self._process is None:
            return Epitaph("the process was stopped")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_WAIT):
                if await self._process.wait(_EXIT_WAIT, for_exit=True):
                    await self._last_word.wait()
        return self._epitaph(self._process)

    async def close(self) -> None:
        """Stdin's end, SIGTERM, SIGKILL, each a third of the time. Cancelled: SIGKILL at once."""
        try:
            if self._process is not None and self._stdin is not None:
                await self._stop(self._process, self._stdin, self._spec.timeouts.close / 3)
        finally:
            self.abandon(forked=False)

    def abandon(self, *, forked: bool) -> None:
        for pipe in (self._stdin, self._stdout, self._stderr):
            if pipe is not None:
                pipe.close(forked=forked)
        process, self._process = self._process, None
        if process is not None:
            process.release(forked=forked)
        if self._end is not None:
            self._end.cancel()
        self._closing = True
        with contextlib.suppress(RuntimeError):  # the loop of who waits is closed
            self._news.set()

    def __del__(self) -> None:
        # A loop that was dropped takes us with it; nobody else is left to end the process.
        process: Process | None = getattr(self, "_process", None)
        if process is not None:
            self.abandon(forked=process.forked)

    async def _stop(self, process: Process, stdin: Outflow | ThreadOutflow, grace: float) -> None:
        stdin.finish()
        self._hear_no_more()
        if await process.wait(grace):
            return
        stdin.close()
        process.end(at_once=False)
        if await process.wait(grace):
            return
        # More than once: until all are gone, one of them may stop the warden again.
        for _ in range(_KILLS):
            process.end(at_once=True)
            if await process.wait(grace / _KILLS):
                return

    def _hear_no_more(self) -> None:
        """Its output is read on, for a program that cannot print cannot end, but nobody cares."""
        self._closing = True
        self._unread.clear()
        self._news.set()
        if self._stdout is not None:
            self._stdout.resume()

    # -- what it says ---------------------------------------------------------------------------

    def _take(self, chunk: bytes) -> None:
        if self._closing:
            return
        self._unread.extend(slices(chunk))
        self._unread_bytes += len(chunk)
        if self._unread_bytes >= _MOST_UNREAD and self._stdout is not None:
            self._stdout.pause()
        self._news.set()

    def _messages(self, chunk: bytes, *, last: bool = False) -> list[Received]:
        received: list[Received] = []
        for line in self._lines.feed(chunk):
            if isinstance(line, Oversized):
                received.append(line)
                continue
            try:
                found = jsonrpc.messages(line)
            except ValueError:
                cut_off = last and line.startswith((b"{", b"["))
                if not cut_off:
                    self._complain(line)
                continue
            received += (message for message in found if jsonrpc.is_message(message))
            if not all(jsonrpc.is_message(message) for message in found):
                self._complain(line)
        return received

    def _complain(self, line: bytes) -> None:
        if len(self._said) >= _MOST_COMPLAINTS:
            return
        text = self._tail.shown(line)
        if len(text) > _LONGEST_COMPLAINT:
            text = f"{text[:_LONGEST_COMPLAINT]}…"
        self._said.append(text)
        logger.warning(
            "%s prints to its standard output, which belongs to the protocol: %s",
            self._spec.name,
            text,
        )

    def _overhear(self, chunk: bytes) -> None:
        self._tail.keep(chunk)
        if logger.isEnabledFor(logging.DEBUG):
            self._unlogged.extend(self._tail.lines(chunk))
            self._log_some()

    def _log_some(self) -> None:
        """Log a few lines; while there are more, the program's next ones wait in their pipe."""
        for _ in range(min(len(self._unlogged), _MOST_LOGGED)):
            logger.debug("%s: %s", self._spec.name, self._unlogged.popleft())
        if self._stderr is None:
            return  # it was just opened
        if self._unlogged:
            self._stderr.pause()
            asyncio.get_running_loop().call_soon(self._log_some)
        else:
            self._stderr.resume()

    def _end_soon(self) -> None:
        """All is gone. What was left in the pipe comes now; its end, too, unless somebody whom
        we could not kill holds it open."""
        if self._stdout is not None:
            self._stdout.resume()
            loop = asyncio.get_running_loop()
            self._end = loop.call_later(_EXIT_WAIT, self._stdout.finish)

    def _epitaph(self, process: Process) -> Epitaph:
        code = process.exit_code
        if code is None:
            detail = (
                "was killed, its warden, too"
                if process.gone
                else "closed its output but still runs"
            )
        elif code < 0:
            detail = f"was killed by {_signal_name(-code)}"
        else:
            detail = f"exited with code {code}"
        if self.said:
            detail += f"; it had printed to its standard output: {self.said}"
        return Epitaph(f"the process {detail}", code, self._tail.text)


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
