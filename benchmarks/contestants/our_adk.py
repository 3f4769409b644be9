"""google-adk on toolkeep: a tool of `toolkeep.adapters.adk`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.contestants.adk_context import tool_context
from benchmarks.contestants.common import ARGUMENTS, Send
from toolkeep import Runtime
from toolkeep.adapters.adk import tools


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    async with Runtime.open([{"name": "stub", "url": url, "mode": era}]) as runtime:
        (tool,) = await tools(runtime, ["stub.echo"])
        context = await tool_context()
        yield lambda: tool.run_async(args=ARGUMENTS, tool_context=context)
