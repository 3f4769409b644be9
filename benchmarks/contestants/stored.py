"""`toolkeep.Runtime` with a store that processes share, for nobody in particular."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.contestants.common import ARGUMENTS, Send
from toolkeep import Runtime


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    servers = [{"name": "stub", "url": url, "mode": era}]
    state = os.environ.get("BENCH_STATE", "memory:")
    async with Runtime.open(servers, state=state) as runtime:
        yield lambda: runtime.call("stub.echo", ARGUMENTS)
