"""openai-agents: its `MCPServerStreamableHttp`, which agents are given."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from agents.mcp import MCPServerStreamableHttp

from benchmarks.contestants.common import ARGUMENTS, Send


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    async with MCPServerStreamableHttp({"url": url}, cache_tools_list=True) as server:
        await server.list_tools()
        yield lambda: server.call_tool("echo", ARGUMENTS)


@asynccontextmanager
async def many(urls: list[str], era: str) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for url in urls:
            await stack.enter_async_context(MCPServerStreamableHttp({"url": url}))
        yield
