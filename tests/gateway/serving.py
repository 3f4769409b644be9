"""`toolkeep serve` as processes of their own, and a balancer in front of them."""

import asyncio
import contextlib
import itertools
import json
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

BOUND = 30.0


class Served:
    """One process of the command, with its URL and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process, *words: str) -> None:
        self.process, self.words = process, words
        self.url = ""
        self.said: list[str] = []
        self._more = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @property
    def port(self) -> int:
        return int(self.url.split(":")[2].partition("/")[0])

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.said.append(line.decode().rstrip())
            self._more.set()
        self._more.set()

    async def until(self, words: str) -> str:
        """The line that has these words."""
        async with asyncio.timeout(BOUND):
            while True:
                if found := next((line for line in self.said if words in line), ""):
                    return found
                assert not self._reading.done(), f"it ended without {words!r}: {self.said}"
                self._more.clear()
                await self._more.wait()

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """The exit code."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(how)
        async with asyncio.timeout(BOUND):
            code = await self.process.wait()
            await self._reading
        return code


async def start(folder: Path, *words: str, env: Mapping[str, str] | None = None) -> Served:
    """The command, once it serves at a port of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolkeep", "serve", "--port", "0", *words),
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env=env,
    )
    served = Served(process, *words)
    try:
        served.url = (await served.until("serving ")).split()[1]
        await served.until("callers: ")
    except BaseException:
        await served.stop(signal.SIGKILL)
        raise
    return served


@asynccontextmanager
async def serving(folder: Path, *words: str) -> AsyncIterator[Served]:
    served = await start(folder, *words)
    try:
        yield served
    finally:
        await served.stop(signal.SIGKILL)


def configure(folder: Path, servers: Mapping[str, Any], gateway: str = "", **more: Any) -> Path:
    """A toolkeep.toml with these servers, and lines of its table [gateway]."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in more.items()]
    for name, spec in servers.items():
        tables = {key: value for key, value in spec.items() if isinstance(value, dict)}
        lines += [f"[servers.{name}]"]
        lines += [f"{key} = {json.dumps(spec[key])}" for key in spec if key not in tables]
        for table, values in tables.items():
            lines += [f"[servers.{name}.{table}]"]
            lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    path = folder / "toolkeep.toml"
    path.write_text("\n".join([*lines, "[gateway]", gateway, ""]))
    return path


class Balancer:
    """Sends each connection to the next replica, and on to another only if that refuses it."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self.port = 0
        self._next = itertools.count()
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Balancer":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *raised: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._pipes:
            task.cancel()
        if self._pipes:
            await asyncio.wait(self._pipes)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        try:
            for _ in range(2 * len(self.ports)):
                port = self.ports[next(self._next) % len(self.ports)]
                with contextlib.suppress(ConnectionRefusedError):
                    there, back = await asyncio.open_connection("127.0.0.1", port)
                    await asyncio.gather(_copy(reader, back), _copy(there, writer))
                    return
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
            self._pipes.discard(task)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await source.read(1 << 16):
            target.write(chunk)
            await target.drain()
    target.close()
