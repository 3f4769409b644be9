"""The floor for whatever is built on httpx2, as the SDK is: a POST, its answer not looked at."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2

from benchmarks.contestants.common import Send, opened


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    headers, body = opened(url, era)
    async with httpx2.AsyncClient(limits=httpx2.Limits(max_connections=None)) as http:

        async def send() -> bytes:
            return (await http.post(url, content=body, headers=headers)).content

        yield send
