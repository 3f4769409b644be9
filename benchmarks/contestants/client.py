"""`mainstay.Client`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.contestants.common import ARGUMENTS, Send
from mainstay import Client


@asynccontextmanager
async def calls(url: str, era: Any) -> AsyncIterator[Send]:
    async with Client(url, mode=era) as client:
        await client.list_tools()
        yield lambda: client.call_tool("echo", ARGUMENTS)
