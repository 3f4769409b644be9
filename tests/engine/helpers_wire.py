"""What the tests of the wire share: clients of one server, and a server that answers in bytes."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from toolkeep import Client
from toolkeep.auth import Authorizer
from toolkeep.testing import Behaviour, Recorded, Rule, ScriptedServer

Era = Literal["legacy", "modern"]
Encoding = Literal["json", "sse"]

both_eras = pytest.mark.parametrize("era", ["legacy", "modern"])
both_encodings = pytest.mark.parametrize("encoding", ["json", "sse"])

BOUND = 10.0
"""Nothing here takes as long; a wait that does is a hang."""


@asynccontextmanager
async def client_of(
    server: "ScriptedServer | RawServer", *, auth: Authorizer | None = None, **spec: Any
) -> AsyncIterator[Client]:
    """A client that is closed with the block. It opens itself at its first use."""
    client = Client({"url": server.url, "name": "kit", **spec}, auth=auth)
    try:
        async with asyncio.timeout(BOUND):
            yield client
    finally:
        await client.aclose()


def when(
    method: str | None = None,
    *,
    tool: str | None = None,
    verb: str = "POST",
    times: int | None = None,
    skip: int = 0,
    **do: Any,
) -> Rule:
    """A rule in one line: which requests, and what happens to them."""
    how = Behaviour(**do)
    return Rule(do=how, method=method, tool=tool, http=verb, times=times, skip=skip)


async def methods(server: ScriptedServer) -> list[str]:
    """What was asked so far: JSON-RPC methods, or the HTTP verb where there is none."""
    return [told(record) for record in await server.requests()]


def told(record: Recorded) -> str:
    return record.rpc_method or record.http_method


@dataclass
class Asked:
    """One request as a `RawServer` saw it."""

    verb: str
    target: str
    headers: dict[str, str]
    message: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> Any:
        return self.message.get("id")


Answer = Callable[[Asked], bytes | Awaitable[bytes]]


class RawServer:
    """An HTTP server whose answer to `tools/call` is any bytes; the handshake is a plain one.

    With `only` the function answers every request. An answer of no bytes closes the connection.
    """

    def __init__(
        self, answer: Answer, *, only: bool = False, tls: ssl.SSLContext | None = None
    ) -> None:
        self._answer, self._only, self._tls = answer, only, tls
        self.asked: list[Asked] = []
        self.accepted = 0
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/mcp"

    @property
    def open_connections(self) -> int:
        return len(self._tasks)

    async def __aenter__(self) -> "RawServer":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5.0)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.create_task(self._attend(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                asked = await read_request(reader)
                self.asked.append(asked)
                found = self._answered(asked)
                data = found if isinstance(found, bytes) else await found
                writer.write(data)
                await writer.drain()
                if not data or b"connection: close" in data[:1000].lower():
                    return
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answered(self, asked: Asked) -> bytes | Awaitable[bytes]:
        method = asked.message.get("method")
        if self._only or method == "tools/call":
            return self._answer(asked)
        return handshake(asked)


def handshake(asked: Asked) -> bytes:
    """What a plain legacy server without sessions answers."""
    if asked.message.get("method") == "initialize":
        info = {"name": "raw", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info}
        return http(result_for(asked, result))
    if asked.id is None:
        return http(b"", status="202 Accepted")
    error = {"code": -32601, "message": "Method not found"}
    return http(json.dumps({"jsonrpc": "2.0", "id": asked.id, "error": error}).encode())


async def read_request(reader: asyncio.StreamReader) -> Asked:
    start, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {}
    for line in lines[:-2]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    verb, target, _ = start.split(" ")
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(verb, target, headers, json.loads(body) if body else {})


TEXT = {"content": [{"type": "text", "text": "hello"}], "isError": False}


def result_for(asked: Asked, result: dict[str, Any] = TEXT, *, id: Any = None) -> bytes:
    shown = asked.id if id is None else id
    return json.dumps({"jsonrpc": "2.0", "id": shown, "result": result}).encode()


def http(
    body: bytes,
    *more: str,
    status: str = "200 OK",
    kind: str = "application/json",
) -> bytes:
    """One HTTP answer, with further header lines."""
    about = [f"content-type: {kind}"] if body and kind else []
    lines = [f"HTTP/1.1 {status}", *about, *more, f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body
