"""A stored legacy session is taken up without a request, and replaced when it is gone."""

from typing import Any

import pytest

from tests.engine.helpers_resuming import Store, client_at, echo, legacy, used
from tests.engine.support import methods
from toolkeep import Client
from toolkeep.events import Connected
from toolkeep.state import MemoryStore
from toolkeep.testing import Behaviour, Rule, ScriptedServer
from toolkeep.testing.session_loss import ALL_LOSSES

pytestmark = pytest.mark.requirement("S11")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_taking_up_a_session_costs_no_request(mode: Any):
    store = MemoryStore()
    async with legacy() as server:
        first = await used(client_at(server, store, mode=mode))
        await server.clear()
        async with client_at(server, store, mode=mode) as client:
            assert await server.requests() == []
            assert (client.is_initialized, client.session_id) == (True, first)
            assert (client.era, client.protocol_version) == ("legacy", "2025-11-25")
            assert client.handshake is not None
            await echo(client)
            (call,) = await server.requests()
            assert call.session_id == first
            assert call.headers["mcp-protocol-version"] == "2025-11-25"
        assert methods(await server.requests()) == ["tools/call"]


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", "2025-11-25"])
@pytest.mark.requirement("S12")
async def test_the_version_that_was_agreed_on_is_kept(version: str):
    store = MemoryStore()
    async with legacy(protocol_version=version) as server:
        await used(client_at(server, store))
        await server.clear()
        async with client_at(server, store) as client:
            assert client.protocol_version == version
            await echo(client)
        (call,) = await server.requests()
        assert call.headers["mcp-protocol-version"] == version


async def test_a_client_that_was_closed_goes_on_with_its_session():
    async with legacy() as server:
        client = client_at(server, MemoryStore())
        assert await used(client) == await used(client)
        assert methods(await server.requests()).count("initialize") == 1


async def test_whoever_watches_is_told_of_the_connection():
    store, events = MemoryStore(), []
    async with legacy() as server:
        session = await used(client_at(server, store))
        client = client_at(server, store)
        client.observe(events.append, listen=False)
        await used(client)
    (connected,) = [event for event in events if isinstance(event, Connected)]
    assert (connected.session_id, connected.protocol_version) == (session, "2025-11-25")


@pytest.mark.requirement("S4", "S5")
@pytest.mark.parametrize("loss", ALL_LOSSES.values(), ids=ALL_LOSSES)
async def test_an_expired_session_costs_two_requests_and_the_call_is_replayed(loss: Any):
    store = Store()
    async with legacy(session_loss=loss) as server:
        first = await used(client_at(server, store))
        await server.forget_sessions()
        await server.clear()
        second = await used(client_at(server, store))
        seen = methods(await server.requests())
        assert seen == ["tools/call", "initialize", "notifications/initialized", "tools/call"]
        assert await server.executions("echo") == 2
        assert await store.sessions() == [second] != [first]


@pytest.mark.parametrize("what", ["a list", "a ping"])
async def test_any_first_request_finds_out_that_the_session_is_gone(what: str):
    store = MemoryStore()
    async with legacy() as server:
        await used(client_at(server, store))
        await server.forget_sessions()
        async with client_at(server, store) as client:
            if what == "a list":
                assert await client.list_tools()
            else:
                assert await client.ping() > 0
        assert methods(await server.requests()).count("initialize") == 2


@pytest.mark.parametrize("terminate", [None, False, True], ids=str)
async def test_closing_ends_a_stored_session_only_when_told_to(terminate: bool | None):
    store = Store()
    async with legacy() as server:
        session = await used(client_at(server, store, terminate_on_close=terminate))
        deleted = [seen for seen in await server.requests() if seen.http_method == "DELETE"]
        assert [seen.session_id for seen in deleted] == ([session] if terminate else [])
        assert await store.sessions() == ([] if terminate else [session])


async def test_a_session_that_was_taken_up_can_be_ended_at_once():
    store = Store()
    async with legacy() as server:
        session = await used(client_at(server, store))
        await server.clear()
        async with client_at(server, store, terminate_on_close=True):
            pass
        (deleted,) = await server.requests()
        assert (deleted.http_method, deleted.session_id) == ("DELETE", session)
        assert deleted.headers["mcp-protocol-version"] == "2025-11-25"
        assert await store.sessions() == []


async def test_without_a_store_closing_ends_the_session_unless_told_otherwise():
    async with legacy() as server:
        for terminate in (None, True, False):
            async with Client(server.url, terminate_on_close=terminate) as client:
                await echo(client)
        assert methods(await server.requests()).count("DELETE") == 2


async def test_an_outage_is_not_taken_for_the_end_of_a_stored_session():
    store = Store()
    async with legacy() as server:
        session = await used(client_at(server, store))
        await server.script(Rule(tool="echo", times=1, do=Behaviour(status=503, headers=NOW)))
        assert await used(client_at(server, store)) == session
        assert methods(await server.requests()).count("initialize") == 1


NOW = {"retry-after": "0"}


async def test_a_client_of_the_modern_era_takes_up_no_legacy_session():
    store = Store()
    async with ScriptedServer.local() as server:
        await used(client_at(server, store, mode="legacy"))
        async with client_at(server, store, mode="modern") as client:
            assert client.era == "modern"
        assert len(await store.records()) == 1
