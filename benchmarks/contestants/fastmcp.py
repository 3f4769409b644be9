"""FastMCP's `Client`."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from fastmcp import Client

from benchmarks.contestants.common import ARGUMENTS, Send

MODES: dict[str, Any] = {"legacy": "legacy", "modern": "2026-07-28"}


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    async with Client(url, mode=MODES[era]) as client:
        await client.list_tools()
        yield lambda: client.call_tool("echo", ARGUMENTS)


@asynccontextmanager
async def many(urls: list[str], era: str) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for url in urls:
            await stack.enter_async_context(Client(url, mode=MODES[era]))
        yield
