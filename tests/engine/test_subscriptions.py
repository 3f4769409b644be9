"""What changes at a server is told the same way in both eras, to those who want to hear it."""

import asyncio
import json
from typing import Any

import pytest

from tests.engine.helpers_rounds import (
    BOUND,
    ONE_EACH,
    TOOLS_CHANGED,
    Ear,
    Way,
    both_eras,
    client_of,
    ended,
    eventually,
    every_way,
    meeting,
    server_of,
)
from tests.engine.helpers_wire import Asked, RawServer, http, when
from toolkeep import CallRejected, Client
from toolkeep.errors import Delivery

NOTES, OTHER = "kit://notes", "kit://other"
LISTS = ("tools", "prompts", "resources")


async def streams(server: Any) -> int:
    """How often the server was asked for a stream of what it says unasked."""
    seen = await server.requests()
    return sum(one.http_method == "GET" or one.rpc_method == "subscriptions/listen" for one in seen)


@every_way
async def test_changes_are_told_alike_on_every_transport(way: Way) -> None:
    async with meeting(way) as (server, client):
        ear = Ear(client)
        await client.connect()
        for what in LISTS:
            await server.notify(f"notifications/{what}/list_changed")
        await ear.until(3)
        assert ear.changes == [(what, None) for what in LISTS]


@every_way
async def test_subscribing_twice_and_unsubscribing_from_nothing_change_nothing(way: Way) -> None:
    async with meeting(way) as (server, client):
        await client.unsubscribe(OTHER)
        await client.subscribe(NOTES)
        await client.subscribe(NOTES)
        assert list((await server.subscriptions()).values()) == [[NOTES]]


@every_way
async def test_a_subscriber_hears_of_its_resource_alone(way: Way) -> None:
    async with meeting(way) as (server, client):
        ear = Ear(client)
        await client.subscribe(NOTES)
        assert list((await server.subscriptions()).values()) == [[NOTES]]
        assert await server.resource_updated(OTHER, listeners=0) == 0
        await server.resource_updated(NOTES)
        await ear.until(1)
        await client.unsubscribe(NOTES)
        await eventually(lambda: nobody_subscribes(server))
        await server.notify(TOOLS_CHANGED)
        await ear.until(2)
        assert ear.changes == [("resource", NOTES), ("tools", None)]


async def nobody_subscribes(server: Any) -> bool:
    return not await server.subscriptions()


@every_way
async def test_subscribing_is_no_change(way: Way) -> None:
    async with meeting(way) as (server, client):
        ear = Ear(client)
        await client.connect()
        await server.notify(TOOLS_CHANGED)
        await ear.until(1)
        await client.subscribe(NOTES)
        await client.subscribe(OTHER)
        await client.unsubscribe(OTHER)
        await eventually(lambda: is_settled(server))  # streams overlap while they are replaced
        await server.resource_updated(NOTES)
        await ear.until(2)
        assert ear.changes == [("tools", None), ("resource", NOTES)]


async def is_settled(server: Any) -> bool:
    return list((await server.subscriptions()).values()) == [[NOTES]]


@every_way
async def test_a_subscription_needs_no_observer_and_ends_without_one(way: Way) -> None:
    async with meeting(way) as (server, client):
        await client.subscribe(NOTES)
        assert await server.resource_updated(NOTES) == 1
        await client.unsubscribe(NOTES)
        await eventually(lambda: nobody_subscribes(server))


@both_eras
async def test_many_can_be_subscribed_at_once(way: Way) -> None:
    uris = [f"kit://{number}" for number in range(4)]
    async with meeting(way) as (server, client):
        await asyncio.gather(*(client.subscribe(uri) for uri in uris))
        ear = Ear(client)
        for uri in uris:
            await server.resource_updated(uri)
        await ear.until(4)
        assert {uri for _, uri in ear.changes} == set(uris)


@pytest.mark.parametrize("way", [*ONE_EACH, Way("stdio", "modern")], ids=str)
async def test_who_only_watches_calls_opens_no_stream(way: Way) -> None:
    async with meeting(way) as (server, client):
        Ear(client, listen=False)
        await client.list_tools()
        await client.call_tool("echo", {"text": "hi"})
        await client.aclose()
        assert await streams(server) == 0


@pytest.mark.parametrize("way", [*ONE_EACH, Way("stdio", "modern")], ids=str)
async def test_many_listeners_share_one_stream(way: Way) -> None:
    async with meeting(way) as (server, client):
        ears = [Ear(client) for _ in range(3)]
        await client.connect()
        await server.notify(TOOLS_CHANGED)
        for ear in ears:
            await ear.until(1)
        await client.call_tool("echo", {"text": "hi"})
        assert await streams(server) == 1


@pytest.mark.parametrize("way", [*ONE_EACH, Way("stdio", "modern")], ids=str)
async def test_who_begins_to_listen_later_is_heard(way: Way) -> None:
    async with meeting(way) as (server, client):
        await client.call_tool("echo", {"text": "hi"})
        ear = Ear(client)
        await server.notify(TOOLS_CHANGED)
        await ear.until(1)


@every_way
async def test_tools_are_listed_again_after_they_changed(way: Way) -> None:
    async with meeting(way) as (server, client):
        ear = Ear(client)
        await server.set_cache(60_000)
        before = len(await client.list_tools())
        await server.set_tools([{"name": "new", "inputSchema": {"type": "object"}}])
        assert len(await client.list_tools()) == before
        await server.notify(TOOLS_CHANGED)
        await ear.until(1)
        assert len(await client.list_tools()) == before + 1
        assert len(await server.requests("tools/list")) == 2


REFUSED: dict[str, Any] = {"error": {"code": -32601, "message": "no"}}


@pytest.mark.parametrize(
    "refusal",
    [REFUSED, {**REFUSED, "status": 404}, {"status": 404}, {"status": 405}],
    ids=["error", "error-404", "404", "405"],
)
async def test_a_modern_server_without_subscriptions_is_left_alone(refusal: Any) -> None:
    way = Way("json", "modern")
    async with meeting(way) as (server, client):
        await server.script(when("subscriptions/listen", **refusal))
        ear = Ear(client)
        await client.connect()
        await server.requests("subscriptions/listen", at_least=1)
        for _ in range(6):  # longer than the first pauses before a stream is asked for again
            await client.call_tool("slow", {"seconds": 0.1})
        assert await streams(server) == 1
        assert ear.changes == []


@every_way
@pytest.mark.parametrize("listening", [False, True], ids=["unheard", "heard"])
async def test_a_subscription_that_is_refused_is_forgotten(way: Way, listening: bool) -> None:
    async with server_of(way) as server, client_of(server, way) as client:
        ear = Ear(client) if listening else None
        method = "resources/subscribe" if way.era == "legacy" else "subscriptions/listen"
        await server.script(when(method, **REFUSED))
        for _ in range(2):
            async with asyncio.timeout(2.0):
                with pytest.raises(CallRejected) as caught:
                    await client.subscribe(NOTES)
            assert caught.value.delivery is Delivery.ANSWERED
        await server.clear()
        await client.subscribe(OTHER)
        assert list((await server.subscriptions()).values()) == [[OTHER]]
        assert ear is None or ("resource", NOTES) not in ear.changes


@every_way
async def test_a_subscription_that_is_given_up_is_forgotten(way: Way) -> None:
    async with meeting(way) as (server, client):
        method = "resources/subscribe" if way.era == "legacy" else "subscriptions/listen"
        await server.script(when(method, times=1, hang=True, run=False))
        giving_up = asyncio.create_task(client.subscribe(NOTES))
        await server.requests(method, at_least=1)
        await ended(giving_up)
        await client.subscribe(OTHER)
        assert list((await server.subscriptions()).values()) == [[OTHER]]


class Modern:
    """A modern server in a few lines, whose subscriptions cover nothing and end at once."""

    def __init__(self) -> None:
        self.listened: list[float] = []

    def __call__(self, asked: Asked) -> bytes:
        method, about = asked.message.get("method"), asked.id
        if method == "subscriptions/listen":
            self.listened.append(asyncio.get_running_loop().time())
            meta = {"io.modelcontextprotocol/subscriptionId": about}
            params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
            told = {
                "jsonrpc": "2.0",
                "method": "notifications/subscriptions/acknowledged",
                "params": params,
            }
            return http(f"data: {json.dumps(told)}\n\n".encode(), kind="text/event-stream")
        found: dict[str, Any] = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
        result = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public", **found}
        return http(json.dumps({"jsonrpc": "2.0", "id": about, "result": result}).encode())


async def test_a_stream_that_ends_at_once_is_asked_for_less_and_less() -> None:
    modern = Modern()
    async with RawServer(modern, only=True) as server:
        async with client_to(server) as client:
            Ear(client)
            await client.connect()
            await asyncio.sleep(2.0)
        told = len(modern.listened)
        assert 2 <= told <= 8
        await asyncio.sleep(0.3)
        assert len(modern.listened) == told, "nobody asks after the client was closed"


async def test_a_resource_that_a_subscription_does_not_cover_is_refused() -> None:
    async with RawServer(Modern(), only=True) as server, client_to(server) as client:
        async with asyncio.timeout(BOUND / 2):
            with pytest.raises(CallRejected):
                await client.subscribe(NOTES)


def client_to(server: RawServer) -> Client:
    return Client({"name": "raw", "url": server.url, "mode": "modern"})


@every_way
async def test_a_client_that_is_used_again_listens_again(way: Way) -> None:
    async with meeting(way) as (server, client):
        ear = Ear(client)
        await client.subscribe(NOTES)
        await client.aclose()
        assert await server.notify(TOOLS_CHANGED, listeners=0) == 0
        await client.connect()
        await server.resource_updated(NOTES)
        await ear.until(1)
        assert set(ear.changes) == {("resource", NOTES)}
