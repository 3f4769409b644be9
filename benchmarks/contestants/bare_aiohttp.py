"""The floor for whatever is built on aiohttp: a POST whose answer is read and not looked at."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from benchmarks.contestants.common import Send, opened


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    headers, body = opened(url, era)
    async with aiohttp.ClientSession() as http:

        async def send() -> bytes:
            async with http.post(url, data=body, headers=headers) as response:
                return await response.read()

        yield send
