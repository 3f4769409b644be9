"""A process of a scripted stdio server: a pair of pipes on one side, the test on the other.

Run as a file (`python -I -S _pipe.py`), so that it starts in a few milliseconds and sees nothing of
the test's Python path. It decides nothing: lines of stdin go to the test over a loopback socket,
and what the test says goes to stdout. It ends when that socket does, whatever it was told to
ignore, so that none outlives its test.
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
"""The variable that holds port and secret."""


class Control:
    """The connection to the test, as JSON lines."""

    def __init__(self, role: str) -> None:
        port, secret = os.environ[ADDRESS].split(":")
        self._socket = socket.create_connection(("127.0.0.1", int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._socket.makefile("rb")
        about = {"pid": os.getpid(), "cwd": os.getcwd(), "environment": dict(os.environ)}
        self.say({"secret": secret, "role": role, **about})

    def say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> Any:
        """The next order; None when there will be none."""
        with contextlib.suppress(OSError):
            if line := self._lines.readline():
                return json.loads(line)
        return None


def write(descriptor: int, text: str) -> None:
    """A client that no longer reads is no reason to end: that is stdin's business."""
    left = text.encode("utf-8", "surrogateescape")
    with contextlib.suppress(OSError):
        while left:
            left = left[os.write(descriptor, left) :]


def relay(control: Control, ignore_end: bool) -> None:
    while line := sys.stdin.buffer.readline():
        control.say({"line": line.decode("utf-8", "surrogateescape")})
    control.say({"end": True})
    if not ignore_end:
        os._exit(0)


def obey(orders: queue.SimpleQueue[dict[str, Any]]) -> None:
    """In a thread of its own: the one that watches the socket must not wait for a slow reader."""
    while True:
        order = orders.get()
        write(1, order.get("write", ""))
        if "exit" in order:
            os._exit(order["exit"])


def start_children(count: int, stubborn: bool) -> None:
    """In turns: a plain one, one in a session of its own, and one that is an orphan as well."""
    import subprocess  # costs a third of the start, and few need it

    for number in range(count):
        role = "stubborn" if stubborn else "child"
        command = [sys.executable, "-I", "-S", __file__, role]
        if number % 3 < 2:
            subprocess.Popen(command, start_new_session=number % 3 == 1)
        elif between := os.fork():
            os.waitpid(between, 0)
        else:
            subprocess.Popen(command, start_new_session=True)
            os._exit(0)


def serve(control: Control) -> None:
    start: dict[str, Any] = control.hear() or {"exit_at_start": 1}
    if start.get("ignore_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    write(1, start.get("stdout_noise") or "")
    write(2, start.get("stderr") or "")
    if (code := start.get("exit_at_start")) is not None:
        os._exit(code)
    start_children(start.get("children", 0), start.get("stubborn", False))
    control.say({"ready": True})
    if not start.get("deaf"):
        told = (control, bool(start.get("ignore_stdin_end")))
        threading.Thread(target=relay, args=told, daemon=True).start()
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=obey, args=(orders,), daemon=True).start()
    while order := control.hear():
        orders.put(order)


def main(role: str) -> None:
    if role == "stubborn":
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    control = Control(role)
    if role == "server":
        serve(control)
    else:
        control.hear()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "server")
