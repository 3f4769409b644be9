"""langchain-mcp-adapters as it is by default: `MultiServerMCPClient`, a session for every call."""

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.contestants.common import ARGUMENTS, Send


def client(urls: list[str]) -> Any:
    library = importlib.import_module("langchain_mcp_adapters.client")
    return library.MultiServerMCPClient(
        {f"s{n}": {"transport": "streamable_http", "url": url} for n, url in enumerate(urls)}
    )


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    (tool,) = await client([url]).get_tools()
    yield lambda: tool.ainvoke(ARGUMENTS)


@asynccontextmanager
async def many(urls: list[str], era: str) -> AsyncIterator[None]:
    """Listed; nothing of it stays open."""
    await client(urls).get_tools()
    yield
