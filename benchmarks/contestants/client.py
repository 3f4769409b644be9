"""`mainstay.Client`."""

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from benchmarks.contestants.common import ARGUMENTS, Send
from mainstay import Client, ServerSpec


@asynccontextmanager
async def calls(url: str, era: Any) -> AsyncIterator[Send]:
    async with Client(spec(url), mode=era) as client:
        await client.list_tools()
        yield lambda: client.call_tool("echo", ARGUMENTS)


def spec(url: str) -> str | ServerSpec:
    """A server, or a program."""
    if url.startswith("http"):
        return url
    command, *arguments = shlex.split(url)
    return ServerSpec(name="stub", command=command, args=tuple(arguments))


@asynccontextmanager
async def many(urls: list[str], era: Any) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        clients = [Client(url, mode=era) for url in urls]
        for client in clients:
            stack.push_async_callback(client.aclose)
        await asyncio.gather(*(client.connect() for client in clients))
        yield
