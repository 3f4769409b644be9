"""A process of a scripted stdio server: relays lines between its pipes and the test.

Run as a file (`python -I -S _stdio_process.py`), so that it starts in a few milliseconds and does
not see the test's Python path. Lines of stdin go to the test over a loopback socket, and what the
test sends goes to stdout. The process ends when that socket closes, whatever else it ignores, so
that none outlives its test.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
from typing import Any

ADDRESS = "TOOLKEEP_KIT_CONTROL"
"""The environment variable that holds port and secret."""


class Control:
    """The connection to the test, as JSON lines."""

    def __init__(self, role: str) -> None:
        port, secret = os.environ[ADDRESS].split(":")
        self._socket = socket.create_connection(("127.0.0.1", int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._socket.makefile("rb")
        about = {"pid": os.getpid(), "cwd": os.getcwd(), "environment": dict(os.environ)}
        self.send({"secret": secret, "role": role, **about})

    def send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Any:
        """The next order; None when the connection has ended."""
        with contextlib.suppress(OSError):
            if line := self._lines.readline():
                return json.loads(line)
        return None


def write(descriptor: int, text: str) -> None:
    """Write all of it. A client that no longer reads does not end the process; stdin does."""
    left = text.encode("utf-8", "surrogateescape")
    with contextlib.suppress(OSError):
        while left:
            left = left[os.write(descriptor, left) :]


def relay(control: Control, ignore_end: bool) -> None:
    while line := sys.stdin.buffer.readline():
        control.send({"line": line.decode("utf-8", "surrogateescape")})
    control.send({"end": True})
    if not ignore_end:
        os._exit(0)


def execute(orders: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Runs in a thread of its own: the thread that watches the socket must not block on stdout."""
    while True:
        order = orders.get()
        write(1, order.get("write", ""))
        if "exit" in order:
            os._exit(order["exit"])


def start_children(count: int, ignore_signals: bool) -> None:
    """Start in turn: a plain child, one with a session of its own, one that is an orphan too."""
    import subprocess  # a third of the start-up time, and rarely needed

    for number in range(count):
        role = "child-ignoring-signals" if ignore_signals else "child"
        command = [sys.executable, "-I", "-S", __file__, role]
        if number % 3 < 2:
            subprocess.Popen(command, start_new_session=number % 3 == 1)
        elif between := os.fork():
            os.waitpid(between, 0)
        else:
            subprocess.Popen(command, start_new_session=True)
            os._exit(0)


def serve(control: Control) -> None:
    start: dict[str, Any] = control.receive() or {"exit_at_start": 1}
    if start.get("ignore_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    write(1, start.get("stdout_noise") or "")
    write(2, start.get("stderr") or "")
    if (code := start.get("exit_at_start")) is not None:
        os._exit(code)
    start_children(start.get("children", 0), start.get("children_ignore_signals", False))
    control.send({"ready": True})
    if not start.get("ignore_stdin"):
        arguments = (control, bool(start.get("ignore_stdin_end")))
        threading.Thread(target=relay, args=arguments, daemon=True).start()
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=execute, args=(orders,), daemon=True).start()
    while order := control.receive():
        orders.put(order)


def main(role: str) -> None:
    if role == "child-ignoring-signals":
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    control = Control(role)
    if role == "server":
        serve(control)
    else:
        control.receive()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "server")
