"""The SDK's own `mcp.Client`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import mcp

from benchmarks.contestants.common import ARGUMENTS, Send

MODES = {"legacy": "legacy", "modern": "2026-07-28"}


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    async with mcp.Client(url, mode=MODES[era]) as client:
        await client.list_tools()
        yield lambda: client.call_tool("echo", ARGUMENTS)
