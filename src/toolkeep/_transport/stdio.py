"""A program's standard streams as a `MessageChannel`: one JSON-RPC message per line.

Output that is not a message is logged, kept for errors and left out. Standard error is always
read, and its end is kept, without secrets. Closing goes by steps: end of input, SIGTERM,
SIGKILL. This module knows nothing of requests and responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from toolkeep._transport.base import (
    Attempt,
    CloseReason,
    OversizedMessage,
    ReceivedMessage,
    connection_fault,
)
from toolkeep._transport.framing import LineDecoder, split_chunk
from toolkeep._transport.jsonrpc import decode_messages, is_rpc_message
from toolkeep._transport.redaction import Redactor
from toolkeep._transport.subprocess import (
    PipeReader,
    PipeWriter,
    Process,
    ThreadedPipeReader,
    ThreadedPipeWriter,
    resolve_program,
    start_process,
)
from toolkeep.config import ServerSpec

logger = logging.getLogger("toolkeep.server")

_WINDOWS = os.name == "nt"

_MAX_UNREAD_BYTES = 1024 * 1024
"""Bytes that wait for `receive` before reading from the program's pipe pauses."""
_EXIT_TIMEOUT = 1.0
"""Seconds to wait for the exit code after the end of the output."""
_KILL_ATTEMPTS = 8
"""How often the process tree is killed in the last third of `timeouts.close`."""
_MAX_LOGGED_PER_TURN = 64
"""Lines of standard error that are logged in one turn of the event loop."""
_MAX_STRAY_LINES = 3
_MAX_STRAY_LENGTH = 200
_MAX_TAIL = 4096
"""Characters of standard error that are kept for errors."""


class StdioChannel:
    """One run of one program. Opened once, closed once."""

    replies_during_send = False
    last_received_at = 0.0
    session_id: str | None = None

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        self._process: Process | None = None
        self._stdin: PipeWriter | ThreadedPipeWriter | None = None
        self._stdout: PipeReader | ThreadedPipeReader | None = None
        self._stderr: PipeReader | ThreadedPipeReader | None = None
        self._decoder = LineDecoder(spec.max_result_bytes)
        self._tail = OutputTail(spec.secrets)
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._unlogged: deque[str] = deque()
        self._has_output = asyncio.Event()
        self._stderr_ended = asyncio.Event()
        self._end_timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._stray_lines: list[str] = []

    @property
    def stray_output(self) -> str:
        """The first lines of standard output that are not messages."""
        return "\n".join(self._stray_lines)

    async def open(self) -> None:
        process = await start_process(resolve_program(self._spec))
        reader, writer = (
            (ThreadedPipeReader, ThreadedPipeWriter) if _WINDOWS else (PipeReader, PipeWriter)
        )
        self._process = process
        self._stdin = writer(process.streams.stdin)
        self._stdout = reader(process.streams.stdout, self._on_stdout, self._has_output.set)
        self._stderr = reader(process.streams.stderr, self._on_stderr, self._stderr_ended.set)
        process.on_ended(self._finish_soon)

    async def send(self, body: bytes, attempt: Attempt, headers: Mapping[str, str]) -> None:
        if self._stdin is None:
            raise connection_fault("the server's process is gone", attempt)
        await self._stdin.send(body + b"\n", attempt)

    async def receive(self) -> Sequence[ReceivedMessage] | None:
        while True:
            while self._unread:
                chunk = self._unread.popleft()
                self._unread_bytes -= len(chunk)
                if received := self._messages(chunk):
                    return received
                await asyncio.sleep(0)  # endless stray output must not block other tasks
            if self._closing or self._stdout is None:
                return None
            if self._stdout.closed:
                if self._stdin is not None:
                    self._stdin.close()  # a task that waits to send fails with nothing sent
                return self._messages(b"\n", last=True) or None
            self._stdout.resume()
            self._has_output.clear()
            await self._has_output.wait()

    async def close_reason(self) -> CloseReason:
        if self._process is None:
            return CloseReason("the process was stopped")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_TIMEOUT):
                if await self._process.wait(_EXIT_TIMEOUT, for_exit=True):
                    await self._stderr_ended.wait()
        return self._build_close_reason(self._process)

    async def close(self) -> None:
        """Close stdin, then SIGTERM, then SIGKILL, each with a third of `timeouts.close`. When
        cancelled: SIGKILL at once."""
        try:
            if self._process is not None and self._stdin is not None:
                await self._stop(self._process, self._stdin, self._spec.timeouts.close / 3)
        finally:
            self.detach(forked=False)

    def detach(self, *, forked: bool) -> None:
        for pipe in (self._stdin, self._stdout, self._stderr):
            if pipe is not None:
                pipe.close(forked=forked)
        process, self._process = self._process, None
        if process is not None:
            process.release(forked=forked)
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._closing = True
        with contextlib.suppress(RuntimeError):  # a task waits on it whose loop is closed
            self._has_output.set()

    def __del__(self) -> None:
        # An event loop that was dropped without closing is collected with this channel, and the
        # process would go on.
        process: Process | None = getattr(self, "_process", None)
        if process is not None:
            self.detach(forked=process.is_forked_copy)

    async def _stop(
        self, process: Process, stdin: PipeWriter | ThreadedPipeWriter, grace: float
    ) -> None:
        stdin.finish()
        self._discard_output()
        if await process.wait(grace):
            return
        stdin.close()
        process.stop(at_once=False)
        if await process.wait(grace):
            return
        # Repeated, because a process that still runs may stop the supervisor again.
        for _ in range(_KILL_ATTEMPTS):
            process.stop(at_once=True)
            if await process.wait(grace / _KILL_ATTEMPTS):
                return

    def _discard_output(self) -> None:
        """Drop all output from now on. It is still read: a program that blocks on a full pipe
        cannot exit."""
        self._closing = True
        self._unread.clear()
        self._has_output.set()
        if self._stdout is not None:
            self._stdout.resume()

    # -- the program's output -------------------------------------------------------------------

    def _on_stdout(self, chunk: bytes) -> None:
        if self._closing:
            return
        self._unread.extend(split_chunk(chunk))
        self._unread_bytes += len(chunk)
        if self._unread_bytes >= _MAX_UNREAD_BYTES and self._stdout is not None:
            self._stdout.pause()
        self._has_output.set()

    def _messages(self, chunk: bytes, *, last: bool = False) -> list[ReceivedMessage]:
        """The messages that this chunk completes. `last`: a truncated message is not reported."""
        received: list[ReceivedMessage] = []
        for line in self._decoder.feed(chunk):
            if isinstance(line, OversizedMessage):
                received.append(line)
                continue
            try:
                found = decode_messages(line)
            except ValueError:
                cut_off = last and line.startswith((b"{", b"["))
                if not cut_off:
                    self._report_stray_line(line)
                continue
            received += (message for message in found if is_rpc_message(message))
            if not all(is_rpc_message(message) for message in found):
                self._report_stray_line(line)
        return received

    def _report_stray_line(self, line: bytes) -> None:
        if len(self._stray_lines) >= _MAX_STRAY_LINES:
            return
        text = self._tail.redact_line(line)
        if len(text) > _MAX_STRAY_LENGTH:
            text = f"{text[:_MAX_STRAY_LENGTH]}…"
        self._stray_lines.append(text)
        logger.warning(
            "%s prints to its standard output, which is reserved for the protocol: %s",
            self._spec.name,
            text,
        )

    def _on_stderr(self, chunk: bytes) -> None:
        self._tail.append(chunk)
        if logger.isEnabledFor(logging.DEBUG):
            self._unlogged.extend(self._tail.lines(chunk))
            self._log_some()

    def _log_some(self) -> None:
        """Log a few lines. Reading standard error pauses while more are waiting."""
        for _ in range(min(len(self._unlogged), _MAX_LOGGED_PER_TURN)):
            logger.debug("%s: %s", self._spec.name, self._unlogged.popleft())
        if self._stderr is None:
            return  # `open` is still running
        if self._unlogged:
            self._stderr.pause()
            asyncio.get_running_loop().call_soon(self._log_some)
        else:
            self._stderr.resume()

    def _finish_soon(self) -> None:
        """Read what is left in the pipe after the process tree has ended. The timer ends the
        stream if a process that could not be killed holds the pipe open."""
        if self._stdout is not None:
            self._stdout.resume()
            loop = asyncio.get_running_loop()
            self._end_timer = loop.call_later(_EXIT_TIMEOUT, self._stdout.finish)

    def _build_close_reason(self, process: Process) -> CloseReason:
        code = process.exit_code
        if code is None:
            detail = (
                "was killed together with its supervisor"
                if process.has_ended
                else "closed its output but still runs"
            )
        elif code < 0:
            detail = f"was killed by {_signal_name(-code)}"
        else:
            detail = f"exited with code {code}"
        if self.stray_output:
            detail += f"; it printed to its standard output: {self.stray_output}"
        return CloseReason(f"the process {detail}", code, self._tail.text)


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


class OutputTail:
    """The end of a process's standard error: whole lines, without secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._redactor = Redactor(secrets)
        forms = self._redactor.forms
        longest = max((len(s.encode("utf-8", "surrogatepass")) for s in forms), default=0)
        self._max_bytes = 2 * _MAX_TAIL + longest
        """Bytes to keep, enough that a partly received secret is not cut."""
        self._buffer = bytearray()
        self._line = bytearray()

    def append(self, chunk: bytes) -> None:
        self._buffer = self._truncate(self._buffer + chunk)

    def lines(self, chunk: bytes) -> list[str]:
        """The non-blank lines that this chunk completes, without secrets."""
        self._line += chunk
        whole, _, rest = self._line.rpartition(b"\n")
        self._line = self._truncate(rest)
        return [
            line.rstrip() for line in self.redact_line(whole).split("\n") if line and line != "\r"
        ]

    def _truncate(self, text: bytearray) -> bytearray:
        """The last `_max_bytes`. Secrets are removed first, because a cut one would not be
        recognised later."""
        if len(text) <= self._max_bytes:
            return text
        shown = self._redactor.redact(text.decode("utf-8", "surrogateescape"))
        return bytearray(shown.encode("utf-8", "surrogateescape")[-self._max_bytes :])

    def redact_line(self, line: bytes | bytearray) -> str:
        return self._redactor.redact(line.decode("utf-8", "replace").rstrip())

    @property
    def text(self) -> str:
        text = self.redact_line(self._buffer)
        if len(text) <= _MAX_TAIL:
            return text.strip()
        text = text[-_MAX_TAIL:]
        return (text.partition("\n")[2] or text).strip()
