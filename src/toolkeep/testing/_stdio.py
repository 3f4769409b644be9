"""A scripted server that clients start as a program: the home of its state, and of its processes.

The processes (`_pipe`) are mere pipes; all that a test reads lives here, in its own event loop, and
survives them. Each proves by a secret that it was started from this server's `spec`. When the
home closes, their connections do, and it waits until all of them have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import Any

from toolkeep.testing import _pipe
from toolkeep.testing._duplex import Channel
from toolkeep.testing._engine import Engine
from toolkeep.testing._exchange import converse, decoded, named
from toolkeep.testing._options import ProcessSettings, Settings
from toolkeep.testing._replies import PLAIN
from toolkeep.testing._telling import tell
from toolkeep.testing.script import Behaviour, JsonObject, Launch, Recorded

PATIENCE = 5.0
KILL: signal.Signals = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Windows has only the one."""
_GLANCE = 0.005
_GARBLED = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}'


class PipeMouth:
    """What one process prints, told to it order by order."""

    head, tail = b"", b"\n"

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def append(self, payload: bytes) -> None:
        self.write(payload + b"\n")

    def write(self, data: bytes) -> None:
        self._order(write=data.decode("utf-8", "surrogateescape"))

    def cut(self, data: bytes, how: Behaviour) -> None:
        self._order(write=data.decode("utf-8", "surrogateescape"), exit=how.exit_code)

    def _order(self, **order: Any) -> None:
        self._writer.write(json.dumps(order).encode() + b"\n")


class StdioHome:
    """One scripted program. Owns the control socket that its processes connect to."""

    def __init__(self, settings: Settings, manners: ProcessSettings) -> None:
        self.port = 0
        self._engine, self._manners = Engine(settings, converse), manners
        self._secret = secrets.token_hex(16)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._launches: list[Launch] = []
        self._living: dict[str, dict[int, asyncio.StreamWriter]] = {"server": {}, "child": {}}
        self._ready: dict[int, None] = {}

    @property
    def pid(self) -> int:
        raise TypeError("a program has as many processes as were started; use processes()")

    @property
    def spec(self) -> JsonObject:
        env = {_pipe.ADDRESS: f"{self.port}:{self._secret}"}
        return {"command": sys.executable, "args": ["-I", "-S", _pipe.__file__], "env": env}

    async def open(self) -> None:
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", 0, limit=1 << 30, backlog=256
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:
            writer.close()
            return
        task = asyncio.create_task(self._attend(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            hello: JsonObject = json.loads(await reader.readline() or b"{}")
            given = str(hello.get("secret")).encode()
            if hmac.compare_digest(given, self._secret.encode()):
                await self._greeted(hello, reader, writer)
        except (ConnectionError, ValueError):
            pass
        finally:
            writer.close()

    async def _greeted(
        self, hello: JsonObject, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        serves, pid = hello["role"] == "server", hello["pid"]
        living = self._living["server" if serves else "child"]
        living[pid] = writer
        try:
            if serves:
                self._launches.append(Launch(pid, hello["cwd"], hello["environment"]))
                await self._serve(pid, reader, writer)
            else:
                await reader.read()
        finally:
            living.pop(pid, None)

    async def _serve(
        self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        channel = Channel(self._engine, str(pid), PipeMouth(writer), gone)
        self._engine.accepted += 1
        number = self._engine.accepted
        writer.write(json.dumps(self._manners.to_json()).encode() + b"\n")
        try:
            while raw := await reader.readline():
                note: JsonObject = json.loads(raw)
                if "line" in note:
                    self._heard(channel, note["line"], number)
                elif "ready" in note:
                    self._ready[pid] = None
                elif "end" in note:
                    channel.give_up()
        finally:
            self._ready.pop(pid, None)
            gone.set_result(None)
            await channel.leave()

    def _heard(self, channel: Channel, line: str, number: int) -> None:
        message, _ = decoded(line.encode("utf-8", "surrogateescape"))
        if message is None:
            channel.mouth.append(_GARBLED)
            return
        method, tool = named(message)
        request = "id" in message and method is not None
        refused = request and channel.refusal(message) is not None
        how = self._engine.pick("POST", message, (method, tool), refused=refused) or PLAIN
        headers: dict[str, str] = {}
        self._engine.record(
            lambda sequence, at: Recorded(
                *(sequence, "POST", method, tool, headers, message, number, channel.name, at)
            )
        )
        if method in self._manners.exit_on:
            channel.mouth.cut(b"", Behaviour(exit_code=1))
        elif method in self._manners.ignore:
            return
        elif request:
            channel.answer(channel.begin(message, how, headers), message, how)
        elif how.drop is not None:
            channel.mouth.cut(b"", how)
        else:
            channel.hear(message)

    async def ask(self, question: str, **details: Any) -> Any:
        match question:
            case "processes":
                return len(self.living("server"))
            case "children":
                return len(self.living("child"))
            case "starts":
                return len(self._launches)
            case _:
                return tell(self._engine, question, details)

    @property
    def launches(self) -> list[Launch]:
        return list(self._launches)

    def living(self, role: str) -> list[int]:
        """Those that run and have done what they were told to do first."""
        known = self._ready if role == "server" else self._living[role]
        return [pid for pid in known if is_alive(pid)]

    def kill(self, pid: int | None, number: signal.Signals) -> None:
        known = self.living("server") + self.living("child")
        if pid is not None and pid not in known:
            raise ProcessLookupError(f"{pid} is no living process of this server")
        for each in self.living("server") if pid is None else [pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, number)

    async def restart(self) -> None:
        await self._end(kill=True)
        self._engine.forget()
        self._engine.rules.clear()

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self._end(kill=False)
        await self._engine.hang_up()
        if server is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(server.wait_closed(), PATIENCE)

    async def _end(self, *, kill: bool) -> None:
        """Hang up on every process, and see to it that it ends."""
        pids = [pid for living in self._living.values() for pid in living]
        for living in self._living.values():
            for writer in living.values():
                writer.transport.abort()
        if kill:
            _strike(pids)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=PATIENCE)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while any(map(is_alive, pids)):  # noqa: ASYNC110
                    await asyncio.sleep(_GLANCE)
        _strike([pid for pid in pids if is_alive(pid)])


def _strike(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, KILL)


def is_alive(pid: int) -> bool:
    """Whether it runs: a zombie, which its parent has yet to fetch, does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        # Its other threads may still hold its pipes when the first one is gone.
        return state not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        if Path("/proc/self/stat").exists():
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
