"""openai-agents on toolkeep: `RuntimeServer`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.contestants.common import ARGUMENTS, Send
from toolkeep import Runtime
from toolkeep.adapters.openai_agents import RuntimeServer


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    async with Runtime.open([{"name": "stub", "url": url, "mode": era}]) as runtime:
        server = RuntimeServer(runtime)
        (tool,) = await server.list_tools()
        yield lambda: server.call_tool(tool.name, ARGUMENTS)
