"""A server's process and all that it starts: how it begins, and that it ends.

With a warden (see `warden`) as its parent nothing of it survives us, whatever happens to us. Where
there can be none (a frozen program has no interpreter to run it with), the server runs in a
session of its own, and its process group is killed. On Windows nothing but the server itself is.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from toolkeep._wire import warden
from toolkeep._wire.attempt import Attempt
from toolkeep._wire.exchange import broken
from toolkeep._wire.process_pipes import Inflow
from toolkeep._wire.process_program import Program
from toolkeep.errors import ConfigError

logger = logging.getLogger("toolkeep.server")

_WINDOWS = os.name == "nt"
_WARDEN = Path(__file__).with_name("warden.py")
_POLL = 0.005
_LAST_WAIT = 1.0
"""Seconds for which a caller without a loop waits for a kill to work."""
_PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""What may be different next time; all else is the configuration's fault."""
_unreaped: list[subprocess.Popen[bytes]] = []
"""Children that had not ended when their time was up."""
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Streams:
    """Our ends of a process's standard streams."""

    stdin: int
    stdout: int
    stderr: int


class Process:
    """One started program with its streams. Belongs to a duct; stopped once.

    Without a channel there is no warden: `child` is the server itself.
    """

    def __init__(
        self, child: subprocess.Popen[bytes], streams: Streams, channel: socket.socket | None
    ) -> None:
        self.streams = streams
        self._on_gone: Callable[[], None] | None = None
        self._child, self._owner = child, os.getpid()
        self._code: int | None = None
        self._failed: int | None = None
        self._server = 0 if channel else child.pid
        self._heard = b""
        self._news = asyncio.Event()
        self._reports: Inflow | None = None
        if channel is not None:
            self._reports = Inflow(channel.detach(), self._report, self._fall_silent)

    @property
    def exit_code(self) -> int | None:
        """Negative: a signal's number. None: it runs, or nobody knows."""
        return self._code if self._reports is not None else self._poll()

    @property
    def gone(self) -> bool:
        """Whether the server has ended, and with a warden all that it started, too."""
        return not self._watched and self._poll() is not None

    @property
    def forked(self) -> bool:
        """Whether this is a copy, in a process that was forked from the owner."""
        return os.getpid() != self._owner

    @property
    def _watched(self) -> bool:
        return self._reports is not None and not self._reports.closed

    async def started(self) -> bool:
        """False: the warden did not come to it. Raises when the program cannot be started."""
        while self._reports is not None and not (self._server or self._failed):
            if self._reports.closed:
                return False
            await self._news.wait()
            self._news.clear()
        if self._failed:
            raise OSError(self._failed, os.strerror(self._failed))
        return True

    async def wait(self, seconds: float, *, for_exit: bool = False) -> bool:
        """Wait until it is gone, or (`for_exit`) its exit code is known."""
        deadline = time.monotonic() + seconds
        while not (self.gone or (for_exit and self.exit_code is not None)):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._watched:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._news.wait()
                self._news.clear()
            else:
                await asyncio.sleep(min(_POLL, left))
        return True

    def when_gone(self, callback: Callable[[], None]) -> None:
        """Call when all is gone, if there is a warden to tell."""
        self._on_gone = callback
        if self._reports is not None and self._reports.closed:
            callback()

    def end(self, *, at_once: bool) -> None:
        """The server and all that it started: SIGKILL `at_once`, or SIGTERM."""
        if self._watched and self._reports is not None:
            if at_once:
                self._kill_tree()
            with contextlib.suppress(OSError):
                os.write(self._reports.fileno, b"K" if at_once else b"T")
                os.kill(self._child.pid, signal.SIGCONT)  # a server may have stopped its warden
        elif self._reports is None and self._poll() is None:
            if _WINDOWS:
                self._child.kill()
            else:
                _signal_group(self._server, signal.SIGKILL if at_once else signal.SIGTERM)

    def release(self, *, forked: bool = False) -> None:
        """Kill what is left, without a loop. `forked`: nothing here is ours to kill."""
        if not forked:
            self.end(at_once=True)
        if self._reports is not None:
            self._reports.close(forked=forked)
        if forked:
            self._child.returncode = 0  # else its finalizer complains of a process not its own
        else:
            _reap(self._child)

    def _kill_tree(self) -> None:
        """SIGKILL all that is below the warden. What escapes by a fork is left to the warden: once
        nothing is left that could stop it, it goes on."""
        for pid in warden.descendants(self._child.pid) or ():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _poll(self) -> int | None:
        known = self._child.returncode
        code = self._child.poll()
        if self._reports is None and known is None and code is not None and not _WINDOWS:
            _signal_group(self._server, signal.SIGKILL)  # what it left behind
        return code

    def _fall_silent(self) -> None:
        if self._server and self._code is None:
            _signal_group(self._server, signal.SIGKILL)  # somebody killed the warden
        self._news.set()
        if self._on_gone is not None:
            self._on_gone()

    def _report(self, chunk: bytes) -> None:
        *lines, self._heard = (self._heard + chunk).split(b"\n")
        for line in lines:
            what, _, number = line.partition(b" ")
            match what:
                case b"started":
                    self._server = int(number)
                case b"failed":
                    self._failed = int(number)
                case _:
                    self._code = int(number)
        self._news.set()


async def start(program: Program) -> Process:
    """Raises `ConfigError`, or `WireFault` for what may pass."""
    _reap_stragglers()
    try:
        return await _guarded(program) or _plain(program)
    except OSError as error:
        problem = f"{program.command!r} cannot be started: {os.strerror(error.errno or 0)}"
        if error.errno in _PASSING:
            raise broken(problem, Attempt()) from None
        remedy = "See that it is a program for this machine and may be executed"
        raise ConfigError(problem, server=program.server, key="command", remedy=remedy) from None


async def _guarded(program: Program) -> Process | None:
    """With a warden; None: there can be none."""
    if not _can_have_warden():
        return None
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        guard = [sys.executable, "-I", "-S", str(_WARDEN), str(fd), str(os.getpid())]
        try:
            child, streams = _spawn(program, [*guard, program.path, *program.argv], fd)
        except OSError:
            return None
        process = Process(child, streams, ours)
    try:
        if await process.started():
            return process
    except BaseException:
        discard(process)
        raise
    discard(process)
    return None


def _plain(program: Program) -> Process:
    if program.server not in _warned:
        _warned.add(program.server)
        logger.warning(
            "%s: no warden could be started: should this program be killed, what the server has"
            " started may go on",
            program.server,
        )
    # Windows finds out by the name how to run a script.
    argv = [program.path, *program.argv[1:]] if _WINDOWS else list(program.argv)
    child, streams = _spawn(program, argv, None)
    return Process(child, streams, None)


def discard(process: Process) -> None:
    """End a process that nobody will use."""
    for fd in (process.streams.stdin, process.streams.stdout, process.streams.stderr):
        os.close(fd)
    process.release()


def _spawn(
    program: Program, command: list[str], passed: int | None
) -> tuple[subprocess.Popen[bytes], Streams]:
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        stdin, to_stdin = _pipe(theirs, ours)
        stdout, from_stdout = _pipe(ours, theirs)[::-1]
        stderr, from_stderr = _pipe(ours, theirs)[::-1]
        child = subprocess.Popen(
            command,
            executable=program.path if passed is None and not _WINDOWS else None,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=program.cwd,
            env=program.env,
            start_new_session=True,
            pass_fds=() if passed is None else (passed,),
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        ours.pop_all()
        return child, Streams(to_stdin, from_stdout, from_stderr)


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends


def _can_have_warden() -> bool:
    """Whether `sys.executable` is an interpreter: in a frozen or embedding program it is that
    program, which must not be started again."""
    name = Path(sys.executable or "").name.lower()
    frozen: bool = getattr(sys, "frozen", False)
    return not (frozen or _WINDOWS) and name.startswith(("python", "pypy")) and _WARDEN.is_file()


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.killpg(leader, number)


def _reap(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()  # must not stand still
        threading.Thread(target=_wait_for, args=(child.pid,), daemon=True).start()
        child.returncode = 0  # else its finalizer complains, should it come before the end
        return
    try:
        child.wait(_LAST_WAIT)
    except subprocess.TimeoutExpired:
        _unreaped.append(child)


def _wait_for(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.waitpid(pid, 0)


def _reap_stragglers() -> None:
    _unreaped[:] = [child for child in _unreaped if child.poll() is None]
