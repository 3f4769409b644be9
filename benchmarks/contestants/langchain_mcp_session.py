"""langchain-mcp-adapters with a session that its user keeps open himself."""

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.contestants.common import ARGUMENTS, Send
from benchmarks.contestants.langchain_mcp_adapters import client


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    tools = importlib.import_module("langchain_mcp_adapters.tools")
    async with client([url]).session("s0") as session:
        (tool,) = await tools.load_mcp_tools(session)
        yield lambda: tool.ainvoke(ARGUMENTS)
