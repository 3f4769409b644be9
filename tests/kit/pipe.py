"""A bare stdio client for the kit's own tests: lines in, lines out, and how the process ended."""

import asyncio
import contextlib
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.kit.wire import BOUND, ENVELOPE, request
from toolkeep.testing import ScriptedProgram


class Pipe:
    """One process of a scripted server."""

    def __init__(self, child: Process) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        self.child, self.stdin, self.stdout = child, child.stdin, child.stdout
        self.stderr = child.stderr

    def send(self, message: Any) -> None:
        self.stdin.write(json.dumps(message).encode() + b"\n")

    async def line(self) -> bytes:
        """The next line, whole or not; empty at the end."""
        async with asyncio.timeout(BOUND):
            return await self.stdout.readline()

    async def receive(self) -> Any:
        return json.loads(await self.line())

    async def ask(self, method: str, params: Any = None, about: Any = 7) -> Any:
        self.send(request(method, params, about))
        return await self.receive()

    async def modern(self, method: str, params: Any = None, about: Any = 7) -> Any:
        return await self.ask(method, {**(params or {}), "_meta": ENVELOPE}, about)

    async def call(self, tool: str, **arguments: Any) -> Any:
        return await self.ask("tools/call", {"name": tool, "arguments": arguments})

    async def initialize(self) -> Any:
        client = {"name": "pipe", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        answer = await self.ask("initialize", params)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    async def ended(self) -> int:
        """The code, once it has exited by itself."""
        async with asyncio.timeout(BOUND):
            await self.stdout.read()
            return await self.child.wait()

    async def close(self) -> None:
        if self.child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.child.kill()
        self.stdin.close()
        async with asyncio.timeout(BOUND):
            await self.stdout.read()
            await self.stderr.read()
            await self.child.wait()


@asynccontextmanager
async def pipe_to(server: ScriptedProgram) -> AsyncIterator[Pipe]:
    spec = server.spec
    child = await asyncio.create_subprocess_exec(
        *(spec["command"], *spec["args"]),
        env=spec["env"],
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        limit=1 << 26,
    )
    pipe = Pipe(child)
    try:
        yield pipe
    finally:
        await pipe.close()
