"""Resources that change: who subscribed, who is told, what is read, and how long that holds."""

import asyncio
from typing import Any

import pytest
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import (
    EmptyResult,
    SubscribeRequest,
    SubscribeRequestParams,
    UnsubscribeRequest,
    UnsubscribeRequestParams,
)

from tests.kit.pipe import pipe_to
from tests.kit.wire import BOUND, Wire, request, wire_to
from toolkeep.testing import ScriptedServer

NOTES, OTHER = "kit://notes", "kit://other"


def transport_of(server: ScriptedServer) -> Any:
    if "command" in server.spec:
        return stdio_client(StdioServerParameters(**server.spec))
    return sse_client(server.url) if server.url.endswith("/sse") else server.url


def made(transport: str, era: Any) -> ScriptedServer:
    if transport == "stdio":
        return ScriptedServer.stdio(era=era)
    return ScriptedServer.spawn(era=era, transport="sse" if transport == "sse" else "streamable")


transports = pytest.mark.parametrize("transport", ["http", "sse", "stdio"])


@transports
async def test_a_legacy_subscriber_hears_of_its_resource_alone(transport: str):
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def listen(message: Any) -> None:
        heard.put_nowait(str(message.params.uri))

    async with made(transport, "legacy") as server:
        transported = transport_of(server)
        async with Client(transported, mode="legacy", message_handler=listen) as client:
            params = SubscribeRequestParams(uri=NOTES)
            await client.session.send_request(SubscribeRequest(params=params), EmptyResult)
            assert list((await server.subscriptions()).values()) == [[NOTES]]
            assert await server.resource_updated(OTHER, listeners=0) == 0
            assert await server.resource_updated(NOTES) == 1
            assert await asyncio.wait_for(heard.get(), BOUND) == NOTES
            farewell = UnsubscribeRequest(params=UnsubscribeRequestParams(uri=NOTES))
            await client.session.send_request(farewell, EmptyResult)
            assert await server.subscriptions() == {}
            assert await server.resource_updated(NOTES, listeners=0) == 0
        assert heard.empty()


@transports
async def test_a_modern_listener_hears_of_its_resource_alone(transport: str):
    async with made(transport, "modern") as server, Client(transport_of(server)) as client:
        async with client.listen(resource_subscriptions=[NOTES]) as changes:
            assert list((await server.subscriptions()).values()) == [[NOTES]]
            assert await server.resource_updated(OTHER, listeners=0) == 0
            assert await server.resource_updated(NOTES) == 1
            assert getattr(await anext(aiter(changes)), "uri", None) == NOTES
        async with asyncio.timeout(BOUND):
            while await server.subscriptions():
                await client.list_tools()
        assert await server.resource_updated(NOTES, listeners=0) == 0


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_the_streams_of_modern_listeners_can_be_ended(transport: str):
    async with made(transport, "modern") as server, Client(transport_of(server)) as client:
        async with client.listen(tools_list_changed=True) as changes:
            assert await server.break_streams() == 1
            ended = StopAsyncIteration if transport == "stdio" else RuntimeError
            with pytest.raises(ended):
                await anext(changes)
        assert await server.notify("notifications/tools/list_changed", listeners=0) == 0
        assert (await client.call_tool("add", {"a": 1, "b": 1})).structured_content == {"sum": 2}


async def test_subscriptions_belong_to_their_session(server: ScriptedServer, wire: Wire):
    async with wire_to(server.port) as other, wire_to(server.port) as stream:
        await other.initialize()
        for each, uri in ((wire, NOTES), (other, OTHER)):
            await each.ask("POST", request("resources/subscribe", {"uri": uri}))
        assert await server.subscriptions() == {wire.session: [NOTES], other.session: [OTHER]}
        stream.session = other.session
        await stream.send("GET")
        assert await server.resource_updated(OTHER) == 1
        assert await server.resource_updated(NOTES, listeners=0) == 0
        await server.forget_sessions()
        assert await server.subscriptions() == {}


async def test_get_streams_can_be_broken(server: ScriptedServer, wire: Wire):
    await wire.send("GET")
    assert await server.notify("notifications/tools/list_changed") == 1
    assert await server.break_streams(reset=True) == 1
    with pytest.raises(ConnectionResetError):
        await wire.reader.read()


async def test_a_resource_has_the_text_it_was_given_even_after_a_restart():
    async with ScriptedServer.spawn(era="modern") as server:
        await server.set_resource(NOTES, "new")
        await server.set_resource(OTHER, "more")
        await server.set_cache(60_000, "private")
        await server.restart()
        async with wire_to(server.port) as wire:
            note = (await wire.modern("resources/read", {"uri": NOTES}, mcp_name=NOTES)).json[
                "result"
            ]
            listed = (await wire.modern("resources/list")).json["result"]
    assert note["contents"][0]["text"] == "new"
    assert [item["uri"] for item in listed["resources"]] == [NOTES, OTHER]
    assert (note["ttlMs"], note["cacheScope"]) == (60_000, "private")


async def test_cache_hints_are_obeyed_by_the_sdk_client_and_unknown_to_legacy():
    async with ScriptedServer.stdio() as server:
        await server.set_cache(60_000, "public")
        async with Client(transport_of(server)) as client:
            for _ in range(3):
                await client.list_tools()
            assert len(await server.requests("tools/list")) == 1
        async with pipe_to(server) as pipe:
            await pipe.initialize()
            assert "ttlMs" not in (await pipe.ask("tools/list"))["result"]
