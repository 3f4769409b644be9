"""A server of 2024-11-05 that speaks in bytes, and channels to it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.engine.helpers_wire import BOUND, Asked, http, read_request, result_for
from toolkeep._transport.http_client import HttpClient
from toolkeep._transport.jsonrpc import encode_request
from toolkeep._transport.sse import SseChannel
from toolkeep.config import ServerSpec

SESSION = "5e55ion-of-the-test"
ENDPOINT = f"event: endpoint\r\ndata: /messages?session_id={SESSION}\r\n\r\n".encode()
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
ACCEPTED = http(b"Accepted", status="202 Accepted", kind="text/plain")
PING = encode_request(7, "ping", None)
PONG = {"jsonrpc": "2.0", "id": 7, "result": {}}


def message(body: bytes | dict[str, Any]) -> bytes:
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"event: message\ndata: " + body + b"\n\n"


class SseServer:
    """Opens a stream for each GET, takes each POST, and answers on the newest stream.

    `get` replaces the whole answer to a GET; `first` what its stream begins with; `post` may
    answer a POST otherwise, or leave it (None) to the server.
    """

    def __init__(
        self,
        *,
        get: bytes | None = None,
        first: bytes = ENDPOINT,
        post: Callable[[Asked], bytes | None] = lambda asked: None,
    ) -> None:
        self._get, self._first, self._post = get, first, post
        self.asked: list[Asked] = []
        self.left: list[Asked] = []
        """The last request on each connection that was hung up on."""
        self._streams: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "SseServer":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/sse"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=BOUND)
        await self._server.wait_closed()

    def say(self, data: bytes) -> None:
        """One chunk of the stream."""
        self._streams[-1].write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self, *, broken: bool) -> None:
        stream = self._streams.pop()
        if not broken:
            stream.write(END)
        stream.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._attend(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = None
        try:
            while True:
                asked = await read_request(reader)
                self.asked.append(asked)
                self._answer(asked, writer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            self.left += [asked] if asked is not None else []
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.verb == "GET":
            writer.write(self._get or HEAD)
            if self._get is None:
                self._streams.append(writer)
                self.say(self._first)
            return
        own = self._post(asked)
        writer.write(ACCEPTED if own is None else own)
        if own is None and asked.id is not None:
            self.say(message(result_for(asked)))


@dataclass
class Given:
    """Credentials from a function of the HTTP method, and whether the call brings its own."""

    function: Callable[[str, bool], Awaitable[Mapping[str, str]]]
    takes_responses = False
    is_active = True

    async def headers(self, method: str, own: bool) -> Mapping[str, str]:
        return await self.function(method, own)

    def answered(self, method: str, headers: Mapping[str, str]) -> None:
        raise AssertionError("responses are not wanted")


@asynccontextmanager
async def channel_to(
    url: str,
    *,
    limit: int = 10_000,
    credentials: Callable[[str, bool], Awaitable[Mapping[str, str]]] | None = None,
    **spec: Any,
) -> AsyncIterator[SseChannel]:
    link = HttpClient(ServerSpec(name="sse", url=url, **spec))
    headers = {"authorization": "Bearer of-good-news", "x-tenant": "blue"}
    given = None if credentials is None else Given(credentials)
    channel = SseChannel(link, headers=headers, credentials=given, limit=limit)
    try:
        async with asyncio.timeout(BOUND):
            yield channel
    finally:
        await channel.close()
        await link.aclose()
