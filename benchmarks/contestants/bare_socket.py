"""The floor for whatever is written in Python: bytes on a socket, one for each call in flight.

Reads exactly as far as the end of an answer that it knows to be alike each time.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from benchmarks.contestants.common import Send, opened

CHUNKED_END = b"0\r\n\r\n"


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    where, (headers, body) = urlsplit(url), opened(url, era)
    headers |= {"host": where.netloc, "content-length": str(len(body))}
    lines = [f"POST {where.path} HTTP/1.1", *(f"{name}: {headers[name]}" for name in headers)]
    request = "\r\n".join([*lines, "", ""]).encode() + body
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def send() -> bytes:
        if not idle:
            idle.append(await asyncio.open_connection(where.hostname, where.port, limit=2**22))
        reader, writer = taken = idle.pop()
        writer.write(request)
        answer = await _read(reader)
        idle.append(taken)
        return answer

    try:
        yield send
    finally:
        for _, writer in idle:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    _, found, rest = head.lower().partition(b"content-length: ")
    if found:
        return await reader.readexactly(int(rest.partition(b"\r\n")[0]))
    return await reader.readuntil(CHUNKED_END)
