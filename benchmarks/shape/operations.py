"""The operations that are traced, and the names of public APIs that they use.

Each operation gets a trace and the package to be measured, warms up, and enters the trace for its
last round. Servers run in another process or thread, where the trace does not reach.
"""

import asyncio
import importlib
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, Self

from benchmarks.shape.trace import Trace
from toolkeep.testing import ScriptedServer

WARM_UP = 5
DEADLINE = 60.0
"""Seconds for one operation with its warm-up."""
ERA = "legacy"
"""The era that has sessions to lose."""
TOOL, ARGUMENTS = "echo", {"text": "x"}
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
INFO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}}
BODY = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INFO}).encode()
"""A request that the scripted server answers without a session."""


async def client_call(trace: Trace, package: Any) -> None:
    """Client.call_tool"""
    async with ScriptedServer.spawn() as server, package.Client(server.url, mode=ERA) as client:
        await client.list_tools()
        await warm(trace, lambda: client.call_tool(TOOL, ARGUMENTS))


async def client_lost_session(trace: Trace, package: Any) -> None:
    """Client.call_tool in a forgotten session"""
    async with ScriptedServer.spawn() as server, package.Client(server.url, mode=ERA) as client:
        await client.list_tools()
        await server.forget_sessions()
        await client.call_tool(TOOL, ARGUMENTS)
        await server.forget_sessions()
        with trace:
            await client.call_tool(TOOL, ARGUMENTS)


async def client_opening(trace: Trace, package: Any) -> None:
    """async with Client(url)"""
    async with ScriptedServer.spawn() as server:
        url = server.url
        # The first opening of a process imports and builds what later ones find.
        async with package.Client(url, mode=ERA):
            pass
        async with AsyncExitStack() as stack:
            with trace:
                await stack.enter_async_context(package.Client(url, mode=ERA))


async def runtime_call(trace: Trace, package: Any) -> None:
    """Runtime.call"""
    async with ScriptedServer.spawn() as server:
        servers = [{"name": "server", "url": server.url, "mode": ERA}]
        async with package.Runtime.open(servers) as runtime:
            await warm(trace, lambda: runtime.call(f"server.{TOOL}", ARGUMENTS))


async def httpcore_request(trace: Trace, package: Any) -> None:
    """AsyncConnectionPool.request"""
    async with ScriptedServer.spawn() as server, package.AsyncConnectionPool() as pool:
        request = {"headers": list(HEADERS.items()), "content": BODY}
        await warm(trace, lambda: pool.request("POST", server.url, **request))


async def httpx_request(trace: Trace, package: Any) -> None:
    """AsyncClient.post"""
    async with ScriptedServer.spawn() as server, package.AsyncClient(trust_env=False) as client:
        await warm(trace, lambda: client.post(server.url, headers=HEADERS, content=BODY))


async def pool_connection(trace: Trace, package: Any) -> None:
    """AsyncConnectionPool.connection"""
    async with package.AsyncConnectionPool(
        connection_class=IdleConnection, min_size=1, open=False
    ) as pool:

        async def borrow() -> None:
            async with pool.connection():
                pass

        await warm(trace, borrow)


class IdleConnection:
    """What psycopg_pool needs of a connection, without a database."""

    def __init__(self) -> None:
        idle = importlib.import_module("psycopg.pq").TransactionStatus.IDLE
        self.pgconn = SimpleNamespace(transaction_status=idle)

    @classmethod
    async def connect(cls, *_: object, **__: object) -> Self:
        return cls()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...
    async def close(self) -> None: ...


async def websockets_echo(trace: Trace, package: Any) -> None:
    """ClientConnection.send and recv"""
    from websockets.sync.server import ServerConnection, serve

    def echo(connection: ServerConnection) -> None:
        for message in connection:
            connection.send(message)

    with serve(echo, "127.0.0.1", 0) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
            async with package.connect(url, proxy=None) as client:

                async def send_and_receive() -> None:
                    await client.send("x")
                    await client.recv()

                await warm(trace, send_and_receive)
        finally:
            server.shutdown()
            thread.join(DEADLINE)


OPERATIONS: dict[str, dict[str, Callable[[Trace, Any], Awaitable[None]]]] = {
    "toolkeep": {
        "call": client_call,
        "runtime call": runtime_call,
        "lost session": client_lost_session,
        "opening": client_opening,
    },
    "httpcore": {"call": httpcore_request},
    "httpx": {"call": httpx_request},
    "psycopg_pool": {"call": pool_connection},
    "websockets": {"call": websockets_echo},
    "mcp": {"call": client_call, "opening": client_opening},
}
"""By package and by kind, which is a group of rows in the table. An operation's docstring is its
title there."""


async def warm(trace: Trace, run: Callable[[], Awaitable[object]]) -> None:
    for _ in range(WARM_UP):
        await run()
    with trace:
        await run()


def traces(package: str, root: Path) -> dict[str, dict[str, Any]]:
    """The measures of each operation of a package, by kind."""
    module = importlib.import_module(package)
    found: dict[str, dict[str, Any]] = {}
    for kind, operation in OPERATIONS[package].items():
        trace = Trace(root)
        asyncio.run(within_deadline(operation(trace, module)))
        found[kind] = {"operation": operation.__doc__, **trace.measures()}
    return found


async def within_deadline(operation: Awaitable[None]) -> None:
    async with asyncio.timeout(DEADLINE):
        await operation
