"""pydantic-ai on toolkeep: `RuntimeToolset`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.contestants.common import Send
from benchmarks.contestants.pydantic_ai import calling
from toolkeep import Runtime
from toolkeep.adapters.pydantic_ai import RuntimeToolset


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    async with Runtime.open([{"name": "stub", "url": url, "mode": era}]) as runtime:
        yield await calling(RuntimeToolset(runtime, ["stub.echo"]))
