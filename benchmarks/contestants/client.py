"""`toolkeep.Client`."""

import shlex
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from benchmarks.contestants.common import ARGUMENTS, Send
from toolkeep import Client
from toolkeep.config import ServerSpec


@asynccontextmanager
async def calls(url: str, era: Any) -> AsyncIterator[Send]:
    async with Client(spec(url), mode=era) as client:
        await client.list_tools()
        yield lambda: client.call_tool("echo", ARGUMENTS)


def spec(url: str) -> str | ServerSpec:
    """A server, or a program."""
    if url.startswith("http"):
        return url
    command, *arguments = shlex.split(url)
    return ServerSpec(name="stub", command=command, args=tuple(arguments))


@asynccontextmanager
async def many(urls: list[str], era: Any) -> AsyncIterator[None]:
    """One after the other, as the SDK's have to be: what each further one takes."""
    async with AsyncExitStack() as stack:
        for url in urls:
            await stack.enter_async_context(Client(url, mode=era))
        yield
