"""Small programs to start as servers, and an eye on what becomes of their processes."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from toolkeep._transport.base import Attempt, ReceivedMessage
from toolkeep._transport.stdio import StdioChannel
from toolkeep.config import ServerSpec

BOUND = 10.0
"""No test waits longer for anything."""

ECHO = """
import sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(line)
    sys.stdout.flush()
"""

STUCK = """
import os, signal, sys
os.write(1, b'{"jsonrpc": "2.0", "pids": [%d, %d]}\\n' % (os.getpid(), os.getppid()))
while True:
    signal.pause()
"""

FAMILY = """
import json, os, signal, sys
arguments = sys.argv[1:]
reports, reporting = os.pipe()

def child(session, forks):
    if os.fork():
        return
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if session:
        os.setsid()
    for _ in range(forks):
        if os.fork():
            os._exit(0)
    os.write(reporting, b"%d " % os.getpid())
    while True:
        signal.pause()

child(False, 0)
child(True, 0)
child(True, 1)
child(False, 2)
pids = b""
while pids.count(b" ") < 4:
    pids += os.read(reports, 100)
if "stubborn" in arguments:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
message = {"jsonrpc": "2.0", "pids": [os.getpid(), os.getppid(), *map(int, pids.split())]}
os.write(1, json.dumps(message).encode() + b"\\n")
if "exit" in arguments:
    sys.exit(3)
sys.stdin.read()
while "stubborn" in arguments:
    signal.pause()
"""
"""Starts children that no SIGTERM ends: one plain, one with its own session, two orphaned."""


TOOLS = """
import json, os, sys

def answer(method, params):
    if method == "initialize":
        info = {"name": "small", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        schema = {"type": "object"}
        return {"tools": [{"name": n, "inputSchema": schema} for n in ("pid", "die", "flood")]}
    if method == "tools/call":
        if params["name"] == "die":
            print("oh no", file=sys.stderr, flush=True)
            os._exit(7)
        text = str(os.getpid()) if params["name"] == "pid" else "x" * 1_000_000
        return {"content": [{"type": "text", "text": text}]}

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = answer(message["method"], message.get("params"))
    known = {"result": result} if result else {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **known}), flush=True)
"""


def message(**fields: Any) -> dict[str, Any]:
    """What a channel takes for a message, and not for a line of a log."""
    return {"jsonrpc": "2.0", **fields}


def line(**fields: Any) -> str:
    return json.dumps(message(**fields))


def spec_of(script: str, *arguments: str, **settings: Any) -> ServerSpec:
    args = ("-I", "-S", "-c", script, *arguments)
    return ServerSpec(name="small", command=sys.executable, args=args, **settings)


@asynccontextmanager
async def opened(script: str, *arguments: str, **settings: Any) -> AsyncIterator[StdioChannel]:
    channel = StdioChannel(spec_of(script, *arguments, **settings))
    try:
        async with asyncio.timeout(BOUND):
            await channel.open()
        yield channel
    finally:
        await channel.close()


async def messages(channel: StdioChannel, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    async with asyncio.timeout(BOUND):
        while len(found) < count:
            received = await channel.receive()
            assert received is not None, f"it ended after {found}"
            found += received
    return found


async def ending(channel: StdioChannel) -> list[ReceivedMessage]:
    """All messages until the end."""
    found: list[ReceivedMessage] = []
    async with asyncio.timeout(BOUND):
        while (received := await channel.receive()) is not None:
            found += received
    return found


async def say(channel: StdioChannel, body: bytes) -> Attempt:
    attempt = Attempt()
    async with asyncio.timeout(BOUND):
        await channel.send(body, attempt, {})
    return attempt


def born(pid: int) -> str | None:
    """When a process began, which tells it from a later one with its number. None: it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 1 :].split()
    return None if fields[0] in "ZX" else fields[19]


class Undertaker:
    """Knows processes by number and birth, and leaves none behind."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def know(self, pids: Iterable[int]) -> None:
        for pid in pids:
            if (birth := born(pid)) is not None:
                self._known[pid] = birth

    @property
    def alive(self) -> list[int]:
        return [pid for pid, birth in self._known.items() if born(pid) == birth]

    async def all_gone(self, *, but: Iterable[int] = (), within: float = BOUND) -> None:
        deadline = time.monotonic() + within
        while left := set(self.alive) - set(but):
            assert time.monotonic() < deadline, f"still alive: {left}"
            await asyncio.sleep(0.01)

    def bury(self) -> None:
        for pid in self.alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def family_of(channel: StdioChannel, undertaker: Undertaker) -> int:
    """The server's pid, once all its children are there and known."""
    [report] = await messages(channel, 1)
    assert isinstance(report, dict)
    undertaker.know(report["pids"])
    assert len(undertaker.alive) == 6
    return report["pids"][0]
