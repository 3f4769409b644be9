"""The channel to a server in this process, by itself."""

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp.server.mcpserver import MCPServer

from toolkeep import ConfigError
from toolkeep._rules.classify import FaultKind
from toolkeep._transport.base import Attempt, WireFault
from toolkeep._transport.in_process import InProcessChannel
from toolkeep._transport.jsonrpc import encode_notification, encode_request
from toolkeep.config import ServerSpec

BOUND = 10.0
"""Nothing here takes as long; a wait that does is a hang."""
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


@asynccontextmanager
async def opened(server: Any, **timeouts: float) -> AsyncIterator[InProcessChannel]:
    channel = InProcessChannel(ServerSpec(name="local", server=server, timeouts=timeouts))  # pyright: ignore[reportArgumentType]
    try:
        async with asyncio.timeout(BOUND):
            await channel.open()
            yield channel
    finally:
        await channel.close()


async def ask(channel: InProcessChannel, method: str, params: dict[str, Any]) -> Attempt:
    attempt = Attempt()
    await channel.send(encode_request(1, method, params), attempt, {})
    return attempt


async def test_a_message_is_sent_when_the_server_has_it_and_answered_as_on_a_wire():
    async with opened(add) as channel:
        assert (await ask(channel, "initialize", INITIALIZE)).sent
        (answer,) = await channel.receive() or []
        assert isinstance(answer, dict)
        assert answer["id"] == 1
        assert answer["result"]["serverInfo"]["name"] == "local"


async def test_a_closed_server_takes_nothing_and_says_that_nothing_was_sent():
    async with opened(add) as channel:
        await channel.close()
        assert await channel.receive() is None
        attempt = Attempt()
        with pytest.raises(WireFault) as caught:
            await channel.send(encode_notification("any", None), attempt, {})
    assert caught.value.evidence.kind is FaultKind.CONNECT
    assert not attempt.sent


async def test_a_server_that_fails_ends_the_channel_and_its_epitaph_names_the_error():
    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[None]:
        raise ZeroDivisionError("its message may hold a secret")
        yield

    async with opened(MCPServer("crash", lifespan=lifespan)) as channel:
        assert await channel.receive() is None
        detail = (await channel.close_reason()).detail
    assert "ZeroDivisionError" in detail
    assert "secret" not in detail


async def test_close_wakes_whoever_receives():
    async with opened(add) as channel:
        receiving = asyncio.ensure_future(channel.receive())
        await anyio.lowlevel.checkpoint()
        await channel.close()
        assert await receiving is None


async def test_a_lifespan_that_does_not_end_is_cancelled_in_time():
    leaving, cancelled = anyio.Event(), anyio.Event()

    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[None]:
        yield
        leaving.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    async with opened(MCPServer("stuck", lifespan=lifespan), close=0.2) as channel:
        await ask(channel, "initialize", INITIALIZE)
        await channel.receive()
        async with asyncio.timeout(2.0):
            await channel.close()
    assert leaving.is_set()
    assert cancelled.is_set()


@pytest.mark.parametrize("server", [object(), (add, 3), lambda: 1, (add, int), (add, add)])
async def test_what_is_no_server_is_a_mistake_in_the_configuration(server: Any):
    channel = InProcessChannel(ServerSpec(name="local", server=server))
    with pytest.raises(ConfigError) as caught:
        await channel.open()
    await channel.close()
    assert (caught.value.server, caught.value.key) == ("local", "server")
    assert caught.value.remedy


async def test_the_users_server_is_left_as_it_is():
    server = MCPServer("mine", tools=[])
    before = list(server.middleware)
    async with opened(server) as channel:
        await ask(channel, "initialize", INITIALIZE)
        await channel.receive()
        assert server.middleware == before


async def test_functions_leave_the_logging_of_the_process_alone(monkeypatch: pytest.MonkeyPatch):
    handlers: list[logging.Handler] = []
    monkeypatch.setattr(logging.getLogger(), "handlers", handlers)
    async with opened(add):
        assert handlers == []


async def test_a_tool_that_cannot_be_stopped_holds_close_up_no_longer_than_allowed():
    running, over = threading.Event(), threading.Event()
    server = MCPServer("stubborn")

    @server.tool()
    def block() -> None:
        running.set()
        over.wait(BOUND)

    try:
        async with opened(server, close=0.2) as channel:
            await ask(channel, "initialize", INITIALIZE)
            await channel.receive()
            await ask(channel, "tools/call", {"name": "block", "arguments": {}})
            await asyncio.to_thread(running.wait, BOUND)
            async with asyncio.timeout(2.0):
                await channel.close()
            assert await channel.receive() is None
    finally:
        over.set()


def test_a_channel_whose_loop_is_gone_is_let_go_without_a_warning():
    async def leave_open() -> InProcessChannel:
        channel = InProcessChannel(ServerSpec(name="local", server=add))
        await channel.open()
        await ask(channel, "initialize", INITIALIZE)
        await channel.receive()
        return channel

    channel = asyncio.run(leave_open())
    channel.detach(forked=False)
    del channel
    gc.collect()
