"""`toolkeep.Client` with a key."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.contestants.common import ARGUMENTS, Send
from toolkeep import Client
from toolkeep.auth import Authorizer, StaticKey


@asynccontextmanager
async def calls(url: str, era: Any, auth: Authorizer | None = None) -> AsyncIterator[Send]:
    async with Client(url, mode=era, auth=auth or StaticKey("x" * 40)) as client:
        await client.list_tools()
        yield lambda: client.call_tool("echo", ARGUMENTS)
