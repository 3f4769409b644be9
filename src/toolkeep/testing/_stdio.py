"""The transport stdio: a scripted server whose processes are started by clients.

The processes (`_stdio_process`) only relay lines. The state lives here, in the event loop of the
test, and survives them. Each process proves with a secret that it was started from this server's
`spec`. Closing the backend closes their control connections, and waits until all have ended.
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

from toolkeep.testing import _stdio_process
from toolkeep.testing._duplex import Channel
from toolkeep.testing._protocol import decode, request_name
from toolkeep.testing._state import ServerState, run_command
from toolkeep.testing.script import (
    CORRECT,
    Behaviour,
    JsonObject,
    Launch,
    ProcessSettings,
    Recorded,
    Settings,
)

KILL: signal.Signals = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Windows has no SIGKILL."""
_CLOSE_TIMEOUT = 5.0
_POLL_INTERVAL = 0.005
_PARSE_ERROR = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}'


class LineWriter:
    """Writes to the stdout of one process, through its control connection."""

    head, tail = b"", b"\n"

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def append(self, payload: bytes) -> None:
        self.write(payload + b"\n")

    def write(self, data: bytes) -> None:
        self._send(write=data.decode("utf-8", "surrogateescape"))

    def cut(self, data: bytes, how: Behaviour) -> None:
        self._send(write=data.decode("utf-8", "surrogateescape"), exit=how.exit_code)

    def _send(self, **order: Any) -> None:
        self._writer.write(json.dumps(order).encode() + b"\n")


class StdioBackend:
    """One scripted program. Owns the control socket that its processes connect to."""

    def __init__(self, settings: Settings, process_settings: ProcessSettings) -> None:
        self.port = 0
        self._state, self._process_settings = ServerState(settings), process_settings
        self._secret = secrets.token_hex(16)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._launches: list[Launch] = []
        self._controls: dict[str, dict[int, asyncio.StreamWriter]] = {
            "server": {},
            "child": {},
        }
        self._ready: dict[int, None] = {}

    @property
    def pid(self) -> int:
        raise TypeError("a stdio server has one process for each start; use processes()")

    @property
    def spec(self) -> JsonObject:
        env = {_stdio_process.ADDRESS: f"{self.port}:{self._secret}"}
        return {
            "command": sys.executable,
            "args": ["-I", "-S", _stdio_process.__file__],
            "env": env,
        }

    async def open(self) -> None:
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", 0, limit=1 << 30, backlog=256
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:
            writer.close()
            return
        task = asyncio.create_task(self._identify(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _identify(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            hello: JsonObject = json.loads(await reader.readline() or b"{}")
            given = str(hello.get("secret")).encode()
            if hmac.compare_digest(given, self._secret.encode()):
                await self._attach(hello, reader, writer)
        except (ConnectionError, ValueError):
            pass
        finally:
            writer.close()

    async def _attach(
        self, hello: JsonObject, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        serves, pid = hello["role"] == "server", hello["pid"]
        controls = self._controls["server" if serves else "child"]
        controls[pid] = writer
        try:
            if serves:
                self._launches.append(Launch(pid, hello["cwd"], hello["environment"]))
                await self._serve(pid, reader, writer)
            else:
                await reader.read()
        finally:
            controls.pop(pid, None)

    async def _serve(
        self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        channel = Channel(self._state, str(pid), LineWriter(writer), gone)
        self._state.accepted += 1
        number = self._state.accepted
        writer.write(json.dumps(self._process_settings.to_json()).encode() + b"\n")
        try:
            while raw := await reader.readline():
                note: JsonObject = json.loads(raw)
                if "line" in note:
                    self._receive(channel, note["line"], number)
                elif "ready" in note:
                    self._ready[pid] = None
                elif "end" in note:
                    channel.client_left()
        finally:
            self._ready.pop(pid, None)
            gone.set_result(None)
            await channel.close()

    def _receive(self, channel: Channel, line: str, number: int) -> None:
        message, _ = decode(line.encode("utf-8", "surrogateescape"))
        if message is None:
            channel.writer.append(_PARSE_ERROR)
            return
        method, tool = request_name(message)
        request = "id" in message and method is not None
        refused = request and channel.check(message) is not None
        name = (method, tool)
        how = self._state.pick_behaviour("POST", message, name, refused=refused) or CORRECT
        headers: dict[str, str] = {}
        self._state.record(
            lambda sequence, at: Recorded(
                *(sequence, "POST", method, tool, headers, message, number, channel.name, at)
            )
        )
        if method in self._process_settings.exit_on:
            channel.writer.cut(b"", Behaviour(exit_code=1))
        elif method in self._process_settings.ignore:
            return
        elif request:
            channel.answer(channel.begin(message, how, headers), message, how)
        elif how.drop is not None:
            channel.writer.cut(b"", how)
        else:
            channel.receive(message)

    async def command(self, name: str, **details: Any) -> Any:
        match name:
            case "count_processes":
                return len(self.running("server"))
            case "count_children":
                return len(self.running("child"))
            case "count_starts":
                return len(self._launches)
            case _:
                return run_command(self._state, name, details)

    @property
    def launches(self) -> list[Launch]:
        return list(self._launches)

    def running(self, role: str) -> list[int]:
        """The processes of a role that run and have finished their start."""
        known = self._ready if role == "server" else self._controls[role]
        return [pid for pid in known if is_alive(pid)]

    def kill(self, pid: int | None, number: signal.Signals) -> None:
        known = self.running("server") + self.running("child")
        if pid is not None and pid not in known:
            raise ProcessLookupError(f"{pid} is not a running process of this server")
        for each in self.running("server") if pid is None else [pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, number)

    async def restart(self) -> None:
        await self._end(kill=True)
        self._state.reset()

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self._end(kill=False)
        await self._state.close()
        if server is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(server.wait_closed(), _CLOSE_TIMEOUT)

    async def _end(self, *, kill: bool) -> None:
        """Close the control connection of every process, and wait until it has ended."""
        pids = [pid for controls in self._controls.values() for pid in controls]
        for controls in self._controls.values():
            for writer in controls.values():
                writer.transport.abort()
        if kill:
            _kill_all(pids)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_TIMEOUT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                while any(map(is_alive, pids)):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_INTERVAL)
        _kill_all([pid for pid in pids if is_alive(pid)])


def _kill_all(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, KILL)


def is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie, which its parent has not reaped yet, does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        # The other threads may still hold the pipes when the first one has ended.
        return state not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        if Path("/proc/self/stat").exists():
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
