"""A server's process: find the program, start it, read and write its pipes, stop its whole tree.

The process runs under a supervisor (`supervisor.py`), so nothing of it survives us. Without one
(in a frozen program) it gets its own session and its process group is killed; on Windows only
the server itself is. Pipes are bare descriptors, so that it is known whether a byte has left,
they can be closed after their loop is gone, and a forked process can close its copies. On
Windows a thread reads and writes each pipe. This module knows nothing of JSON-RPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkeep._transport import supervisor
from toolkeep._transport.base import Attempt, connection_fault
from toolkeep.config import ServerSpec
from toolkeep.errors import ConfigError

logger = logging.getLogger("toolkeep.server")

_WINDOWS = os.name == "nt"
_CHUNK = 64 * 1024
"""Bytes to read at once: a pipe's capacity on Linux."""
_SUPERVISOR_PROGRAM = Path(__file__).with_name("supervisor.py")
_POLL_INTERVAL = 0.005
_REAP_TIMEOUT = 1.0
"""Seconds for which a caller without an event loop waits for a killed process."""
_TRANSIENT_ERRNOS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors of starting a process that may pass. All others are errors of the configuration."""

_WINDOWS_VARIABLES = (
    *("APPDATA", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT"),
    *("PROCESSOR_ARCHITECTURE", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "USERNAME", "USERPROFILE"),
)
_POSIX_VARIABLES = (
    *("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"),
    *("LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ"),
)
_INHERITED_VARIABLES = _WINDOWS_VARIABLES if _WINDOWS else _POSIX_VARIABLES
"""The SDK's lists (2.3.0), and the variables for locale and time zone."""

_unreaped: list[subprocess.Popen[bytes]] = []
"""Killed children that had not ended within `_REAP_TIMEOUT`."""
_warned_servers: set[str] = set()
"""Servers for which the missing supervisor was logged."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that was found, with its arguments and environment."""

    server: str
    command: str
    """As configured, for errors."""
    path: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None


def resolve_program(spec: ServerSpec) -> Program:
    """Find the configured program. Raises `ConfigError`."""
    cwd = None if spec.cwd is None else os.path.abspath(spec.cwd)
    if cwd is not None and not os.path.isdir(cwd):
        problem = f"there is no directory {spec.cwd!r}"
        remedy = "Correct the path, or create the directory"
        raise ConfigError(problem, server=spec.name, key="cwd", remedy=remedy)
    _check_texts(spec)
    env = child_environment(spec.env)
    path = _find_executable(
        spec.command, env.get("PATH", os.defpath), cwd or _current_directory(spec)
    )
    if path is None:
        raise _missing_program_error(spec)
    return Program(spec.name, spec.command, path, (spec.command, *spec.args), env, cwd)


def _current_directory(spec: ServerSpec) -> str:
    try:
        return os.getcwd()
    except OSError:
        problem = "the working directory of this process no longer exists"
        remedy = "Set cwd to an existing directory"
        raise ConfigError(problem, server=spec.name, key="cwd", remedy=remedy) from None


def child_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The inherited variables that every program needs, and the given ones."""
    inherited = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    # Like the SDK (2.3.0), leave out shell functions, which begin with "()".
    plain = {name: value for name, value in inherited.items() if not value.startswith("()")}
    return {**plain, **given}


def _find_executable(command: str, path: str, cwd: str) -> str | None:
    """The path as the child resolves it: relative to its own directory, on its own PATH."""
    if os.path.dirname(command):
        return shutil.which(os.path.join(cwd, command))
    directories = [os.path.join(cwd, directory) for directory in path.split(os.pathsep)]
    return shutil.which(command, path=os.pathsep.join(directories))


def _missing_program_error(spec: ServerSpec) -> ConfigError:
    if len(spec.command.split()) > 1:
        problem = "there is no program of that name, which contains blanks"
        remedy = "Put the arguments into 'args', one by one"
        return ConfigError(problem, server=spec.name, key="command", remedy=remedy)
    path = os.path.join(spec.cwd or "", spec.command)
    if os.path.dirname(spec.command) and os.path.exists(path):
        problem, remedy = f"{spec.command!r} cannot be executed", "Make it executable"
    elif os.path.dirname(spec.command):
        problem, remedy = f"there is no program {spec.command!r}", "Correct the path"
    else:
        problem = f"no program {spec.command!r} on its PATH"
        remedy = "Install it, give its full path, or set PATH in 'env'"
    return ConfigError(problem, server=spec.name, key="command", remedy=remedy)


def _check_texts(spec: ServerSpec) -> None:
    if not all(_is_encodable(text) for text in (spec.command, *spec.args)):
        problem = "the command or an argument contains a NUL character or a lone surrogate"
        raise ConfigError(problem, server=spec.name, key="args", remedy="Remove it")
    for name, value in spec.env.items():
        if not name or "=" in name or not _is_encodable(name + value):
            problem = "this is not a valid environment variable"
            remedy = "Give a name without '=', and no NUL character or lone surrogate"
            raise ConfigError(problem, server=spec.name, key=f"env.{name}", remedy=remedy)


def _is_encodable(text: str) -> bool:
    """Whether a system call accepts the text."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


class PipeReader:
    """Reads a pipe or a socket. Calls `on_data` with each chunk, and `on_end` once, at the end."""

    def __init__(
        self, fd: int, on_data: Callable[[bytes], None], on_end: Callable[[], None] | None = None
    ) -> None:
        self._fd, self._on_data, self._on_end = fd, on_data, on_end
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
        """Close, and call `on_end`."""
        if not self.closed:
            self.close()
            if self._on_end is not None:
                self._on_end()

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
            self._on_data(chunk)
        else:
            self.finish()


class PipeWriter:
    """Writes lines to a pipe, whole and in order, even if their senders are cancelled."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._write_lock = asyncio.Lock()
        self._rest = memoryview(b"")
        """The unwritten rest of a line whose beginning was written."""
        self._waiter: asyncio.Future[None] | None = None
        self._finishing = False

    @property
    def closed(self) -> bool:
        return self._fd < 0

    async def send(self, line: bytes, attempt: Attempt) -> None:
        """Return once the first byte is written. If cancelled before that, nothing was written."""
        async with self._write_lock:
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
        raise connection_fault("the server's standard input is closed", attempt)

    def finish(self) -> None:
        """Close as soon as the current line is written."""
        self._finishing = True
        if not self._rest:
            self.close()

    def close(self, *, forked: bool = False) -> None:
        """Close at once. Tasks that wait to send fail with nothing sent."""
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
            # Read before the write: a write that fails closes the pipe, which drops the rest.
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


class ThreadedPipeReader:
    """A `PipeReader` for Windows, with a thread that reads."""

    def __init__(
        self, fd: int, on_data: Callable[[bytes], None], on_end: Callable[[], None] | None = None
    ) -> None:
        self._fd, self._on_data, self._on_end = fd, on_data, on_end
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
        """Close, and call `on_end`."""
        if not self.closed:
            self.close()
            if self._on_end is not None:
                self._on_end()

    def close(self, *, forked: bool = False) -> None:
        self.closed = True
        self._may_read.set()

    def _read(self) -> None:
        # RuntimeError: the event loop may be closed by the time that data arrives.
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
            self._on_data(chunk)


class ThreadedPipeWriter:
    """A `PipeWriter` for Windows, with a thread that writes.

    `Attempt.sent` is set when the thread gets the line, because the first write cannot be observed.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._write_lock = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._line = b""
        self._has_line, self._done = threading.Event(), False
        self.closed = False
        threading.Thread(target=self._write, name="toolkeep-writer", daemon=True).start()

    async def send(self, line: bytes, attempt: Attempt) -> None:
        async with self._write_lock:
            await self._idle.wait()
            if self.closed or self._done:
                raise connection_fault("the server's standard input is closed", attempt)
            attempt.sent = True
            self._idle.clear()
            self._line = line
            self._has_line.set()

    def finish(self) -> None:
        """Close as soon as the current line is written."""
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


@dataclass(frozen=True, slots=True)
class StandardStreams:
    """The descriptors of this side's ends of a child's standard streams."""

    stdin: int
    stdout: int
    stderr: int


class Process:
    """One started program with its streams. Belongs to one `StdioChannel`, which stops it once.

    `channel` is the socket to the supervisor. Without it there is none, and `child` is the server.
    """

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        streams: StandardStreams,
        channel: socket.socket | None,
    ) -> None:
        self.streams = streams
        self._on_ended: Callable[[], None] | None = None
        self._child, self._owner = child, os.getpid()
        self._exit_code: int | None = None
        self._start_errno: int | None = None
        self._server_pid = 0 if channel else child.pid
        self._partial_report = b""
        self._changed = asyncio.Event()
        self._reports: PipeReader | None = None
        if channel is not None:
            self._reports = PipeReader(channel.detach(), self._on_report, self._on_supervisor_gone)

    @property
    def exit_code(self) -> int | None:
        """The server's exit code. Negative: a signal's number. None: it runs, or it is unknown."""
        return self._exit_code if self._reports is not None else self._poll()

    @property
    def has_ended(self) -> bool:
        """Whether the server has ended and, with a supervisor, all processes that it started."""
        return not self._is_supervised and self._poll() is not None

    @property
    def is_forked_copy(self) -> bool:
        """Whether this object is a copy in a process that was forked from the owner."""
        return os.getpid() != self._owner

    @property
    def _is_supervised(self) -> bool:
        return self._reports is not None and not self._reports.closed

    async def started(self) -> bool:
        """Wait until the server runs. False: the supervisor ended before it started the server.
        Raises `OSError` when the program cannot be started."""
        while self._reports is not None and not (self._server_pid or self._start_errno):
            if self._reports.closed:
                return False
            await self._changed.wait()
            self._changed.clear()
        if self._start_errno:
            raise OSError(self._start_errno, os.strerror(self._start_errno))
        return True

    async def wait(self, seconds: float, *, for_exit: bool = False) -> bool:
        """Wait until the process has ended or, with `for_exit`, its exit code is known. False:
        neither within `seconds`."""
        deadline = time.monotonic() + seconds
        while not (self.has_ended or (for_exit and self.exit_code is not None)):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._is_supervised:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._changed.wait()
                self._changed.clear()
            else:
                await asyncio.sleep(min(_POLL_INTERVAL, left))
        return True

    def on_ended(self, callback: Callable[[], None]) -> None:
        """Set a callback for the end of the process tree. Only a supervisor reports that."""
        self._on_ended = callback
        if self._reports is not None and self._reports.closed:
            callback()

    def stop(self, *, at_once: bool) -> None:
        """Signal the server and all processes that it started: SIGKILL `at_once`, or SIGTERM."""
        if self._is_supervised and self._reports is not None:
            if at_once:
                self._kill_tree()
            with contextlib.suppress(OSError):
                os.write(self._reports.fileno, b"K" if at_once else b"T")
                os.kill(self._child.pid, signal.SIGCONT)  # a server may have stopped it
        elif self._reports is None and self._poll() is None:
            if _WINDOWS:
                self._child.kill()
            else:
                _signal_group(self._server_pid, signal.SIGKILL if at_once else signal.SIGTERM)

    def release(self, *, forked: bool = False) -> None:
        """Kill what is left, without the event loop. `forked`: kill nothing, because the
        processes belong to the parent."""
        if not forked:
            self.stop(at_once=True)
        if self._reports is not None:
            self._reports.close(forked=forked)
        if forked:
            self._child.returncode = 0  # else Popen's finalizer warns about the parent's child
        else:
            _reap(self._child)

    def _kill_tree(self) -> None:
        """SIGKILL all descendants of the supervisor. One that escapes by forking is left to the
        supervisor, which runs again once no process is left that could stop it."""
        for pid in supervisor.descendants(self._child.pid) or ():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _poll(self) -> int | None:
        known = self._child.returncode
        code = self._child.poll()
        if self._reports is None and known is None and code is not None and not _WINDOWS:
            _signal_group(self._server_pid, signal.SIGKILL)  # processes that the server left
        return code

    def _on_supervisor_gone(self) -> None:
        if self._server_pid and self._exit_code is None:
            _signal_group(self._server_pid, signal.SIGKILL)  # the supervisor was killed
        self._changed.set()
        if self._on_ended is not None:
            self._on_ended()

    def _on_report(self, chunk: bytes) -> None:
        *lines, self._partial_report = (self._partial_report + chunk).split(b"\n")
        for line in lines:
            event, _, number = line.partition(b" ")
            match event:
                case b"started":
                    self._server_pid = int(number)
                case b"failed":
                    self._start_errno = int(number)
                case _:
                    self._exit_code = int(number)
        self._changed.set()


async def start_process(program: Program) -> Process:
    """Start a program. Raises `ConfigError`, or `WireFault` for an error that may pass."""
    _reap_stragglers()
    try:
        return await _start_supervised(program) or _start_unsupervised(program)
    except OSError as error:
        problem = f"{program.command!r} cannot be started: {os.strerror(error.errno or 0)}"
        if error.errno in _TRANSIENT_ERRNOS:
            raise connection_fault(problem, Attempt()) from None
        remedy = "Check that it is executable and built for this machine"
        raise ConfigError(problem, server=program.server, key="command", remedy=remedy) from None


async def _start_supervised(program: Program) -> Process | None:
    """Start a program under a supervisor. None: the supervisor cannot run."""
    if not _can_supervise():
        return None
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        prefix = [sys.executable, "-I", "-S", str(_SUPERVISOR_PROGRAM), str(fd), str(os.getpid())]
        try:
            child, streams = _spawn(program, [*prefix, program.path, *program.argv], fd)
        except OSError:
            return None
        process = Process(child, streams, ours)
    try:
        if await process.started():
            return process
    except BaseException:
        discard_process(process)
        raise
    discard_process(process)
    return None


def _start_unsupervised(program: Program) -> Process:
    if program.server not in _warned_servers:
        _warned_servers.add(program.server)
        logger.warning(
            "%s: runs without a supervisor, which could not be started. If this program is killed,"
            " processes that the server started may survive",
            program.server,
        )
    # Windows decides by the file's name how to run a script.
    argv = [program.path, *program.argv[1:]] if _WINDOWS else list(program.argv)
    child, streams = _spawn(program, argv, None)
    return Process(child, streams, None)


def discard_process(process: Process) -> None:
    """Close the streams of a process that will not be used, and kill it."""
    for fd in (process.streams.stdin, process.streams.stdout, process.streams.stderr):
        os.close(fd)
    process.release()


def _spawn(
    program: Program, command: list[str], passed_fd: int | None
) -> tuple[subprocess.Popen[bytes], StandardStreams]:
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        stdin, to_stdin = _pipe(theirs, ours)
        stdout, from_stdout = _pipe(ours, theirs)[::-1]
        stderr, from_stderr = _pipe(ours, theirs)[::-1]
        child = subprocess.Popen(
            command,
            executable=program.path if passed_fd is None and not _WINDOWS else None,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=program.cwd,
            env=program.env,
            start_new_session=True,
            pass_fds=() if passed_fd is None else (passed_fd,),
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        ours.pop_all()
        return child, StandardStreams(to_stdin, from_stdout, from_stderr)


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends


def _can_supervise() -> bool:
    """Whether `sys.executable` is a Python interpreter. In a frozen or embedding program it is
    that program, which must not be started again."""
    name = Path(sys.executable or "").name.lower()
    frozen: bool = getattr(sys, "frozen", False)
    return (
        not (frozen or _WINDOWS)
        and name.startswith(("python", "pypy"))
        and _SUPERVISOR_PROGRAM.is_file()
    )


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.killpg(leader, number)


def _reap(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()  # must not block, so a thread waits
        threading.Thread(target=_wait_for_pid, args=(child.pid,), daemon=True).start()
        child.returncode = 0  # else Popen's finalizer warns if it runs before the end
        return
    try:
        child.wait(_REAP_TIMEOUT)
    except subprocess.TimeoutExpired:
        _unreaped.append(child)


def _wait_for_pid(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.waitpid(pid, 0)


def _reap_stragglers() -> None:
    _unreaped[:] = [child for child in _unreaped if child.poll() is None]
