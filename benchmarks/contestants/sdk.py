"""The SDK's own `mcp.Client`."""

import shlex
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import mcp
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client

from benchmarks.contestants.common import ARGUMENTS, Send

MODES = {"legacy": "legacy", "modern": "2026-07-28"}


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    async with mcp.Client(server(url), mode=MODES[era]) as client:
        await client.list_tools()
        yield lambda: client.call_tool("echo", ARGUMENTS)


def server(url: str) -> Any:
    """A server, or a program."""
    if url.startswith("http"):
        return url
    command, *arguments = shlex.split(url)
    return stdio_client(StdioServerParameters(command=command, args=arguments))


@asynccontextmanager
async def many(urls: list[str], era: str) -> AsyncIterator[None]:
    """One after the other: a client has to be closed by the task that opened it."""
    async with AsyncExitStack() as stack:
        for url in urls:
            await stack.enter_async_context(mcp.Client(url, mode=MODES[era]))
        yield
