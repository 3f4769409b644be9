"""`toolkeep.Runtime`, for a user who brings a token."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.contestants.common import ARGUMENTS, Send
from toolkeep import CallContext, Runtime

ADA = CallContext(principal="ada", headers={"authorization": "Bearer token"})


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    async with Runtime.open([{"name": "stub", "url": url, "mode": era}]) as runtime:
        yield lambda: runtime.call("stub.echo", ARGUMENTS, context=ADA)
