"""Other people's servers as programs: started, found, and ended with the block that uses them."""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
BOUND = 30.0
"""Starting Python with the SDK takes a second or two, on a busy machine several."""

MODULES = HERE / "node_modules" / "@modelcontextprotocol"
EVERYTHING = MODULES / "server-everything" / "dist" / "index.js"
LOOPBACK = (HERE / "loopback.mjs").as_uri()


def _why_no_node() -> str:
    """Why servers in JavaScript cannot be run here; empty if they can."""
    node = shutil.which("node")
    if node is None:
        return "Node.js is not installed"
    told = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=BOUND)
    major = re.match(r"v(\d+)", told.stdout)
    if major is None or int(major[1]) < 20:
        return f"Node.js 20 or newer is needed, and this one is {told.stdout.strip() or 'none'}"
    return "" if EVERYTHING.is_file() else "the servers are not installed: run `make test` once"


NO_NODE = _why_no_node()
needs_node = pytest.mark.skipif(bool(NO_NODE), reason=NO_NODE or "Node.js is here")


def node(*arguments: str | Path) -> list[str]:
    return ["node", "--import", LOOPBACK, *map(str, arguments)]


SESSIONS_SERVERS = {
    "python": [sys.executable, str(HERE / "sessions_server.py")],
    "typescript": node(HERE / "sessions_server.mjs"),
}
both_sdks = pytest.mark.parametrize("sdk", ["python", pytest.param("typescript", marks=needs_node)])


@asynccontextmanager
async def running(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    stdin: int = DEVNULL,
    stdout: int = DEVNULL,
    stderr: int | None = None,
) -> AsyncIterator[Process]:
    """A program, killed at the end whatever happened."""
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **env}, stdin=stdin, stdout=stdout, stderr=stderr
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@asynccontextmanager
async def listening(command: Sequence[str], port: int = 0) -> AsyncIterator[int]:
    """A server over HTTP; the port on which it listens."""
    async with running(command, {"PORT": str(port)}, stderr=PIPE) as process:
        assert process.stderr is not None
        async with asyncio.timeout(BOUND):
            while (
                found := re.search(rb"port=(\d+)", line := await process.stderr.readline())
            ) is None:
                assert line, "the server ended before it was ready"
        reading = asyncio.create_task(_read_away(process.stderr))
        try:
            yield int(found[1])
        finally:
            reading.cancel()
            await asyncio.wait((reading,))


async def _read_away(stream: asyncio.StreamReader) -> None:
    """A server that logs much must not wait for a reader."""
    while await stream.read(65536):
        pass


def free_port() -> int:
    """For a server that is to come back where it was."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def seen_at(port: int) -> dict[str, Any]:
    """What a sessions server has seen so far."""

    def ask() -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/seen", timeout=BOUND) as answer:
            return json.load(answer)

    return await asyncio.to_thread(ask)
