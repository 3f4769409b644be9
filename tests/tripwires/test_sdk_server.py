"""Facts about servers of mcp 2.3 that `_transport/in_process.py` stands on, each with its why."""

import asyncio
import copy
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared._context_streams import create_context_streams
from mcp.shared.message import SessionMessage

BOUND = 5.0
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}

where: ContextVar[str] = ContextVar("where", default="nowhere")


class Run:
    """One run of a server, with its ends of the streams."""

    def __init__(self, server: Server[Any]) -> None:
        self.outgoing, reads = create_context_streams[Any](math.inf)
        writes, self.incoming = create_context_streams[Any](1)
        running = server.run(reads, writes, server.create_initialization_options())
        self.task = asyncio.ensure_future(running)
        self._ids = iter(range(1, 100))

    async def send(self, method: str, **params: Any) -> int:
        sent = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        message = types.jsonrpc_message_adapter.validate_python(sent, by_name=False)
        await self.outgoing.send(SessionMessage(message))
        return sent["id"]

    async def answer(self) -> dict[str, Any]:
        found = (await self.incoming.receive()).message
        return found.model_dump(by_alias=True, mode="json", exclude_unset=True)

    async def end(self) -> None:
        self.outgoing.close()
        await asyncio.wait([self.task])
        self.incoming.close()


@asynccontextmanager
async def running(server: Server[Any]) -> AsyncIterator[Run]:
    run = Run(server)
    try:
        async with asyncio.timeout(BOUND):
            await run.send("initialize", **INITIALIZE)
            await run.answer()
            yield run
    finally:
        run.task.cancel()
        await run.end()


def under(*tools: Callable[..., Any]) -> Server[Any]:
    server = MCPServer("kit")
    for tool in tools:
        server.add_tool(tool)
    return server._lowlevel_server


def test_a_server_of_functions_has_a_low_level_one_underneath() -> None:
    """`_lowlevel_server` and `config/spec.py:is_local_server` reach for this private attribute."""
    assert isinstance(MCPServer("kit")._lowlevel_server, Server)


async def test_a_server_of_fastmcp_has_one_underneath_and_a_lifespan_around_it() -> None:
    """`_resolve_server`, `_outer_lifespan` and `is_local_server` reach for these (FastMCP 4.1)."""
    from fastmcp import FastMCP  # `make test-lowest` is without it

    server = FastMCP("kit")
    assert isinstance(server._mcp_server, Server)
    for _ in range(2):
        async with server._lifespan_manager(), running(server._mcp_server):
            pass


async def test_streams_carry_the_senders_context() -> None:
    """A tool runs in a copy of its caller's context, and `_is_shutdown_error` looks into the
    context of the task that wrote an answer."""
    send, receive = create_context_streams[str](math.inf)
    where.set("there")
    await send.send("one")
    where.set("here")
    assert receive.last_context is None
    assert await receive.receive() == "one"
    assert isinstance(receive.last_context, Context)
    assert receive.last_context[where] == "there"
    send.close()
    with pytest.raises(anyio.EndOfStream):
        await receive.receive()
    receive.close()


@pytest.mark.parametrize("closed", ["send", "receive"])
async def test_a_closed_stream_refuses(closed: str) -> None:
    """`InProcessChannel.send` takes these two for "not sent"."""
    send, receive = create_context_streams[str](math.inf)
    (send if closed == "send" else receive).close()
    with pytest.raises((anyio.ClosedResourceError, anyio.BrokenResourceError)):
        await send.send("one")
    send.close()
    receive.close()


async def test_an_unbounded_stream_takes_at_once_what_is_sent() -> None:
    """`InProcessChannel.send` hands over or does not; a cancellation leaves no doubt which."""
    send, receive = create_context_streams[int](math.inf)
    async with asyncio.timeout(BOUND):
        for number in range(1000):
            await send.send(number)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await send.send(1000)
        send.close()
        assert [number async for number in receive] == list(range(1000))
    receive.close()


async def test_middleware_is_a_list_that_is_read_at_each_message() -> None:
    """`InProcessChannel.open` gives its copy a list of its own, with `_isolate_handler` first."""
    seen: list[tuple[str, str]] = []

    def noting(name: str) -> Any:
        async def note(ctx: Any, call_next: Any) -> Any:
            seen.append((name, ctx.method))
            return await call_next(ctx)

        return note

    server = under()
    assert isinstance(server.middleware, list)
    async with running(server) as run:
        server.middleware = [noting("outer"), noting("inner"), *server.middleware]
        await run.send("ping")
        await run.answer()
    assert seen == [("outer", "ping"), ("inner", "ping")]


async def test_a_copy_of_a_server_shares_its_handlers() -> None:
    """`InProcessChannel.open` runs a copy: what the user adds to the server later is served."""
    server = under()
    twin = copy.copy(server)
    twin.middleware = []

    async def noted(ctx: Any, params: Any) -> types.EmptyResult:
        return types.EmptyResult()

    server.add_request_handler("kit/noted", types.RequestParams, noted)
    assert server.middleware
    assert twin.get_request_handler("kit/noted") is server.get_request_handler("kit/noted")
    assert twin.lifespan is server.lifespan


async def test_what_a_server_cuts_off_when_it_ends_is_answered_as_refused() -> None:
    """Why `_is_shutdown_error` and `_rules/classify.py:_cancelled_at_shutdown` are there: the tool
    may have run. The answer is written in the context in which the middleware was, which tells it
    apart."""
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await anyio.sleep_forever()

    async def mark(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next(ctx)
        except asyncio.CancelledError:
            where.set("cut off")
            raise

    server = under(wait)
    server.middleware = [mark]
    async with running(server) as run:
        asked = await run.send("tools/call", name="wait", arguments={})
        await begun.wait()
        run.outgoing.close()
        found = await run.answer()
        assert found["id"] == asked
        assert found["error"] == {"code": -32000, "message": "Connection closed"}
        assert run.incoming.last_context is not None
        assert run.incoming.last_context[where] == "cut off"


async def test_a_tool_that_raises_a_cancellation_ends_the_server() -> None:
    """Why `_isolate_handler` gives each message its own task group. When this fails, it can go."""

    async def await_the_cancelled() -> None:
        other = asyncio.ensure_future(anyio.sleep_forever())
        other.cancel()
        await other

    async with running(under(await_the_cancelled)) as run:
        await run.send("tools/call", name="await_the_cancelled", arguments={})
        await asyncio.wait([run.task])
        assert run.task.done()


async def test_a_sync_tool_is_waited_for_when_its_call_is_cancelled() -> None:
    """Why `_as_async` puts functions into threads by itself. When this fails, it can go."""
    begun, let_go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block() -> None:
        loop.call_soon_threadsafe(begun.set)
        let_go.wait(BOUND)

    async with running(under(block)) as run:
        await run.send("tools/call", name="block", arguments={})
        await begun.wait()
        run.task.cancel()
        try:
            assert not (await asyncio.wait([run.task], timeout=0.2))[0]
        finally:
            let_go.set()
        await asyncio.wait([run.task])


def test_making_a_server_sets_up_the_logging_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Why `_create_server` keeps the SDK from setting up logging. When this fails, that can go."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    level = root.level
    try:
        MCPServer("kit")
        assert root.handlers
    finally:
        root.setLevel(level)
