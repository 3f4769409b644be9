"""mcp-use: a session of its `MCPClient`."""

import importlib
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.contestants.common import ARGUMENTS, Send

os.environ["MCP_USE_ANONYMIZED_TELEMETRY"] = "false"
logging.disable(logging.INFO)


def client(urls: list[str]) -> Any:
    library = importlib.import_module("mcp_use")
    return library.MCPClient({"mcpServers": {f"s{n}": {"url": url} for n, url in enumerate(urls)}})


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    made = client([url])
    session = await made.create_session("s0")
    try:
        yield lambda: session.call_tool("echo", ARGUMENTS)
    finally:
        await made.close_all_sessions()


@asynccontextmanager
async def many(urls: list[str], era: str) -> AsyncIterator[None]:
    made = client(urls)
    await made.create_all_sessions()
    try:
        yield
    finally:
        await made.close_all_sessions()
