"""A listener never knows that there was a gap: what changed in it is told, once, and only that."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.engine.helpers_rounds import (
    LEGACY,
    MODERN,
    TOOLS_CHANGED,
    Ear,
    Way,
    client_of,
    eventually,
    meeting,
)
from tests.engine.helpers_wire import when
from toolkeep import Client
from toolkeep.events import Connected, ServerNotification
from toolkeep.testing import FaultProxy, ScriptedServer


@asynccontextmanager
async def listened_to(way: Way) -> AsyncIterator[tuple[Any, Client, Ear]]:
    """A client whose observer listens. A legacy stream that ends is asked for again soon."""
    async with meeting(way) as (server, client):
        ear = Ear(client)
        if way is JSON:
            await server.script(when(verb="GET", retry_ms=50))
            await client.connect()
            await server.notify("notifications/message", {"level": "info", "data": "hello"})
            await ear.until(1, ServerNotification)
        yield server, client, ear


READ, SAME, UNREAD = "kit://read", "kit://same", "kit://unread"
NEW_TOOL = {"name": "new", "inputSchema": {"type": "object"}}

Loss = Callable[[Any, Any], Awaitable[Any]]


async def break_streams(server: Any, client: Any) -> None:
    assert await server.break_streams()


async def reset_streams(server: Any, client: Any) -> None:
    assert await server.break_streams(reset=True)


async def restart(server: Any, client: Any) -> None:
    await server.restart()


async def kill(server: Any, client: Any) -> None:
    server.kill()


async def lose_session(server: Any, client: Any) -> None:
    await server.forget_sessions()
    await client.call_tool("echo", {"text": "hi"})


JSON, STDIO, SSE = LEGACY[0], LEGACY[2], LEGACY[3]
MODERN_JSON, MODERN_STDIO = MODERN[0], MODERN[2]
LOSSES: list[tuple[Way, Loss]] = [
    (JSON, break_streams),
    (JSON, reset_streams),
    (JSON, restart),
    (JSON, lose_session),
    (SSE, break_streams),
    (SSE, restart),
    (STDIO, kill),
    (STDIO, restart),
    (MODERN_JSON, break_streams),
    (MODERN_JSON, reset_streams),
    (MODERN_JSON, restart),
    (MODERN_STDIO, break_streams),
    (MODERN_STDIO, kill),
]
every_loss = pytest.mark.parametrize(
    ("way", "lose"), LOSSES, ids=[f"{way}-{loss.__name__}" for way, loss in LOSSES]
)


@every_loss
async def test_what_changed_in_a_gap_is_told_once(way: Way, lose: Loss) -> None:
    async with listened_to(way) as (server, client, ear):
        for uri in (READ, SAME, UNREAD):
            await server.set_resource(uri, "one")
            await client.subscribe(uri)
        for uri in (READ, SAME):
            await client.read_resource(uri)
        await client.list_tools()
        await client.list_prompts()
        await server.set_tools([NEW_TOOL])
        await server.set_resource(READ, "two")
        told = len(ear.changes)
        await lose(server, client)
        await ear.until(told + 3)
        await server.resource_updated(SAME)
        await ear.until(told + 4)
        *gap, last = ear.changes[told:]
        assert sorted(gap, key=str) == sorted(
            [("tools", None), ("resource", READ), ("resource", UNREAD)], key=str
        )
        assert last == ("resource", SAME)
        assert [tool.name for tool in await client.list_tools()].count("new") == 1


@every_loss
async def test_a_gap_in_which_nothing_changed_is_not_told(way: Way, lose: Loss) -> None:
    async with listened_to(way) as (server, client, ear):
        await server.set_resource(SAME, "one")
        await client.subscribe(SAME)
        await client.read_resource(SAME)
        await client.list_tools()
        await client.list_resources()
        told = len(ear.changes)
        await lose(server, client)
        for method in ("resources/read", "tools/list", "resources/list"):
            await server.requests(method, at_least=2)
        for _ in range(3):  # round trips in which the last of those answers is compared
            await client.call_tool("echo", {"text": "hi"})
        await server.notify("notifications/prompts/list_changed")
        await ear.until(told + 1)
        assert ear.changes[told:] == [("prompts", None)]


@every_loss
async def test_who_only_listens_hears_again_without_a_call(way: Way, lose: Loss) -> None:
    async with listened_to(way) as (server, client, ear):
        await client.connect()
        await server.notify(TOOLS_CHANGED)
        await ear.until(1)
        await lose(server, client)

        async def is_heard() -> bool:  # what is said too early is lost, as it would be in reality
            await server.notify(TOOLS_CHANGED, listeners=0)
            return len(ear.changes) > 1

        await eventually(is_heard)
        assert set(ear.changes) == {("tools", None)}


@pytest.mark.parametrize("way", [JSON, MODERN_JSON, MODERN_STDIO], ids=str)
async def test_a_gap_leaves_the_session_and_the_calls_alone(way: Way) -> None:
    async with listened_to(way) as (server, client, ear):
        await client.connect()
        await server.notify(TOOLS_CHANGED)
        await ear.until(1)
        running = asyncio.create_task(client.call_tool("slow", {"seconds": 60}))
        await server.requests(tool="slow", at_least=1)
        await server.break_streams()
        await server.skip_delays()
        assert (await running).attempts == 1
        await server.notify(TOOLS_CHANGED)
        await ear.until(2)
        assert sum(isinstance(event, Connected) for event in ear.events) == 1


@pytest.mark.parametrize("way", [JSON, MODERN_JSON], ids=str)
async def test_what_was_never_listed_is_not_fetched_after_a_gap(way: Way) -> None:
    async with listened_to(way) as (server, client, ear):
        await client.connect()
        await server.notify(TOOLS_CHANGED)
        await ear.until(1)
        await server.break_streams()
        await server.notify(TOOLS_CHANGED)
        await ear.until(2)
        asked = {seen.rpc_method for seen in await server.requests()}
        assert not asked & {"tools/list", "prompts/list", "resources/list", "resources/read"}


@pytest.mark.parametrize("way", [JSON, STDIO, MODERN_JSON], ids=str)
async def test_what_cannot_be_fetched_after_a_gap_may_have_changed(way: Way) -> None:
    async with listened_to(way) as (server, client, ear):
        await server.set_resource(READ, "one")
        await client.subscribe(READ)
        await client.read_resource(READ)
        await client.list_tools()
        error = {"code": -32603, "message": "not now"}
        await server.script(when("tools/list", error=error), when("resources/read", error=error))
        told = len(ear.changes)
        if way is STDIO:
            server.kill()
        else:
            await server.break_streams()
        await ear.until(told + 2)
        assert set(ear.changes[told:]) == {("tools", None), ("resource", READ)}


@pytest.mark.parametrize("way", [JSON, STDIO, MODERN_JSON], ids=str)
async def test_what_was_unsubscribed_stays_so_after_a_gap(way: Way) -> None:
    async with listened_to(way) as (server, client, ear):
        await client.subscribe(READ)
        await client.subscribe(SAME)
        await client.unsubscribe(READ)
        await server.resource_updated(SAME)
        await ear.until(1)
        if way is STDIO:
            server.kill()
        else:
            await server.restart()
        await server.resource_updated(SAME)
        assert list((await server.subscriptions()).values()) == [[SAME]]
        assert ("resource", READ) not in ear.changes


@pytest.mark.parametrize("way", [JSON, MODERN_JSON], ids=str)
async def test_a_server_that_is_away_for_a_while_is_found_again(way: Way) -> None:
    async with (
        ScriptedServer.local(era=way.era) as server,
        FaultProxy.to("127.0.0.1", server.port) as proxy,
        client_of(Front(proxy.port), way) as client,
    ):
        ear = Ear(client)
        await client.connect()
        await server.notify(TOOLS_CHANGED)
        await ear.until(1)
        proxy.refuse()
        proxy.kill_connections()
        await eventually(lambda: nobody_is_connected(server))
        await proxy.heal()
        await server.notify(TOOLS_CHANGED)
        await ear.until(2)


async def test_a_client_that_is_closed_while_its_server_is_away_does_not_look_for_it() -> None:
    """What looked on would be left behind: every test here would fail of that."""
    async with meeting(SSE) as (server, client):
        Ear(client)
        await client.connect()
        await server.script(when(verb="GET", status=503))
        await server.break_streams()

        async def has_looked_twice() -> bool:
            seen = [each.http_method for each in await server.requests()]
            return seen.count("GET") >= 3

        await eventually(has_looked_twice)
        await client.aclose()
        assert not client.is_initialized


class Front:
    """Where a client finds a server that stands behind something."""

    def __init__(self, port: int) -> None:
        self.spec = {"url": f"http://127.0.0.1:{port}/mcp"}


async def nobody_is_connected(server: Any) -> bool:
    return not await server.open_connections()
