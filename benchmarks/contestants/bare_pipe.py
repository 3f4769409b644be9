"""The floor for programs on stdio: a line to the program, a line from it, one call at a time."""

import asyncio
import shlex
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.contestants.common import Send, written


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    process = await asyncio.create_subprocess_exec(*shlex.split(url), stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    reader, writer, line = process.stdout, process.stdin, written(era)[1] + b"\n"

    async def send() -> bytes:
        writer.write(line)
        return await reader.readline()

    try:
        yield send
    finally:
        writer.close()
        await process.wait()
