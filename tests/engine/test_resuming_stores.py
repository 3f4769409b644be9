"""Stores that fail, hang or hold what is not ours cost a fresh session, and never a call."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.engine.helpers_resuming import Store, client_at, echo, legacy, used
from tests.engine.support import PATIENCE, methods
from toolkeep.state import MemoryStore

pytestmark = pytest.mark.requirement("S11")


TROUBLES = {
    "disk": OSError("no space"),
    "value": ValueError("too large"),
    "bug": KeyError("a bug of its own"),
    "cancelled": asyncio.CancelledError(),
}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
async def test_a_store_that_fails_costs_no_call(trouble: BaseException):
    store = Store()
    store.trouble = trouble
    async with legacy() as server:
        first = await used(client_at(server, store))
        assert store.asked == ["get"] * 2, "it is left alone for a while"
        seen = await server.requests()
        assert methods(seen)[-1] == "DELETE"  # nobody else can know of it
        assert await used(client_at(server, store)) != first


class Early(MemoryStore):
    """Raises before there is anything to await."""

    def get(self, key: str) -> Any:
        raise OSError("no connection")


async def test_a_store_that_fails_before_it_waits_costs_no_call():
    async with legacy() as server:
        await used(client_at(server, Early()))


async def test_a_store_that_hangs_delays_the_opening_and_no_more():
    store = Store()
    store.hangs_on = "get"
    async with legacy() as server:
        client = client_at(server, store, settings={"timeouts": {"call": 20.0}})
        async with asyncio.timeout(PATIENCE):
            assert (await client.call_tool("echo", {"text": "it"})).text == "it"
        assert store.asked == ["get"] * 2
        async with asyncio.timeout(PATIENCE):
            await client.aclose()


async def test_a_store_that_fails_later_does_not_keep_a_client_from_closing():
    store = Store()
    async with legacy() as server:
        async with client_at(server, store, terminate_on_close=True) as client:
            await echo(client)
            store.trouble = OSError("gone")
        assert store.asked[-1] == "get"
        assert methods(await server.requests())[-1] == "DELETE"


FOREIGN: Mapping[str, Any] = {
    "nothing of ours": b"\xff\x00",
    "no session": [],
    "too deep": b"[" * 100_000,
    "another format": {"session_id": 7, "handshake": {}, "binding": ""},
    "of nobody": {"session_id": "s", "handshake": {}, "binding": ""},
    "unbound": {"session_id": "é\ud800", "handshake": {}, "binding": "ü"},
}


@pytest.mark.parametrize("found", FOREIGN.values(), ids=FOREIGN)
async def test_what_a_store_should_not_have_is_not_used(found: Any):
    store = Store()
    async with legacy() as server:
        session = await used(client_at(server, store))
        for key in await store.records():
            await store.replace(key, found)
        assert await used(client_at(server, store)) != session
        assert {seen.session_id for seen in await server.requests("tools/call")} >= {session}


UNREADABLE: Mapping[str, Any] = {
    "empty": {},
    "malformed": {"protocolVersion": 7},
    "of a version to come": {
        "protocolVersion": "2999-01-01",
        "capabilities": {},
        "serverInfo": {"name": "kit", "version": "1"},
    },
}


@pytest.mark.parametrize("handshake", UNREADABLE.values(), ids=UNREADABLE)
async def test_a_handshake_that_this_version_cannot_read_is_made_anew(handshake: Any):
    store = Store()
    async with legacy() as server:
        session = await used(client_at(server, store))
        ((key, kept),) = (await store.records()).items()
        await store.replace(key, {**kept, "handshake": handshake})
        fresh = await used(client_at(server, store))
        assert await store.sessions() == [fresh] != [session]
