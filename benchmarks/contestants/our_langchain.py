"""LangChain on toolkeep: a `BaseTool` of `toolkeep.adapters.langchain`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.contestants.common import ARGUMENTS, Send
from toolkeep import Runtime
from toolkeep.adapters.langchain import tools


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    async with Runtime.open([{"name": "stub", "url": url, "mode": era}]) as runtime:
        (tool,) = await tools(runtime, ["stub.echo"])
        yield lambda: tool.ainvoke(ARGUMENTS)
