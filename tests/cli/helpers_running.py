"""The installed `toolkeep` command, as a shell runs it: in a pipe, or in a terminal of 80 columns.

Each run has a home of its own, so that nothing of this machine's user is read or written.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyte

TOOLKEEP = str(Path(sys.executable).with_name("toolkeep"))
BOUND = 90.0
"""Seconds for one run. It takes about one; on a busy machine ten times as long."""
COLUMNS, LINES = 80, 40
KEPT = ("PATH", "PYTHONPATH", "COVERAGE_PROCESS_START", "LANG", "SYSTEMROOT")


@dataclass(frozen=True)
class Ran:
    """How a run ended."""

    code: int
    out: str
    err: str = ""
    raw: bytes = field(default=b"", repr=False)

    @property
    def document(self) -> Any:
        """What `--json` gave: one document, and nothing else."""
        return json.loads(self.out)

    @property
    def said(self) -> str:
        return self.out + self.err


@dataclass(frozen=True)
class Home:
    """Where a command runs."""

    path: Path

    def env(self, **more: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        places = {
            "HOME": str(self.path),
            "XDG_CACHE_HOME": str(self.path / "cache"),
            "XDG_STATE_HOME": str(self.path / "state"),
            "XDG_CONFIG_HOME": str(self.path / "config"),
        }
        return {**kept, **places, "TERM": "xterm-256color", **more}

    def configure(self, servers: Mapping[str, Any], name: str = "servers.json") -> str:
        """A file to be named: one that is merely found starts no program."""
        (self.path / name).write_text(json.dumps({"mcpServers": dict(servers)}))
        return name

    async def run(
        self, *words: str, input: str | None = None, env: Mapping[str, str] | None = None
    ) -> Ran:
        """In a pipe."""
        process = await asyncio.create_subprocess_exec(
            *(TOOLKEEP, *words),
            stdin=DEVNULL if input is None else PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=self.path,
            env=self.env(**(env or {})),
        )
        try:
            async with asyncio.timeout(BOUND):
                given = None if input is None else input.encode()
                out, err = await process.communicate(given)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        assert process.returncode is not None
        return Ran(process.returncode, out.decode(), err.decode(), out)

    @contextlib.asynccontextmanager
    async def terminal(
        self, *words: str, program: str = TOOLKEEP, **env: str
    ) -> AsyncIterator["Terminal"]:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _TAKE_TERMINAL, program, *words),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=self.path,
            env=self.env(**env),
            start_new_session=True,
        )
        os.close(slave)
        terminal = Terminal(master, process)
        try:
            async with asyncio.timeout(BOUND):
                yield terminal
        finally:
            terminal.close()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def shown(self, *words: str, **env: str) -> Ran:
        """In a terminal that nobody types in."""
        async with self.terminal(*words, **env) as terminal:
            return await terminal.ended()


_TAKE_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    " signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)
"""So that Ctrl-C in this terminal is a signal to the command, also when the tests themselves run
in a shell's background, where it is ignored."""


def hear_interrupts() -> None:
    """The same for a command in a pipe, before it is run."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """What a person would see, and could type."""

    def __init__(self, master: int, process: asyncio.subprocess.Process) -> None:
        self._master, self._process = master, process
        self._screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self._screen)
        self._raw = b""
        self._news, self._open = asyncio.Event(), True
        asyncio.get_running_loop().add_reader(master, self._read)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    @property
    def has_cursor(self) -> bool:
        return not self._screen.cursor.hidden

    @property
    def raw(self) -> bytes:
        return self._raw

    async def until(self, words: str) -> str:
        """The screen, once it shows these words."""
        while words not in self.text:
            assert self._open, f"it ended without {words!r}:\n{self.text}"
            self._news.clear()
            await self._news.wait()
        return self.text

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.type("\x03")

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    async def ended(self) -> Ran:
        code = await self._process.wait()
        while self._open:
            self._news.clear()
            await self._news.wait()
        return Ran(code, self.text, raw=self._raw)

    def close(self) -> None:
        if self._open:
            self._open = False
            asyncio.get_running_loop().remove_reader(self._master)
            os.close(self._master)
            self._news.set()

    def _read(self) -> None:
        try:
            found = os.read(self._master, 65536)
        except OSError:  # Linux: the last one who had it open is gone
            found = b""
        if not found:
            self.close()
            return
        self._raw += found
        self._stream.feed(found)
        self._news.set()
