"""`toolkeep.Runtime`, for nobody in particular."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.contestants.common import ARGUMENTS, Send
from toolkeep import Runtime


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    async with Runtime.open([{"name": "stub", "url": url, "mode": era}]) as runtime:
        yield lambda: runtime.call("stub.echo", ARGUMENTS)


@asynccontextmanager
async def many(urls: list[str], era: str) -> AsyncIterator[None]:
    """Opened, listed, in one catalogue, and watched over."""
    servers = [{"name": f"s{n}", "url": url, "mode": era} for n, url in enumerate(urls)]
    async with Runtime.open(servers, strict=True) as runtime:
        assert len(runtime.catalogue.tools) >= len(urls)
        yield
