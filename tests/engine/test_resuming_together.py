"""Clients that share a store: those who may share a session, and those who may not."""

import itertools
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.engine.helpers_resuming import Store, client_at, echo, legacy, used
from tests.engine.support import methods, together
from toolkeep import Client, ConfigError, NotPermitted
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.state import MemoryStore
from toolkeep.testing import Recorded, ScriptedServer

pytestmark = pytest.mark.requirement("S11")


async def test_of_clients_that_open_at_once_one_opens_and_the_others_take_it_up():
    store = Store()
    async with legacy(initialize_delay=0.2) as server, AsyncExitStack() as stack:
        clients = [client_at(server, store) for _ in range(5)]
        for client in clients:
            stack.push_async_callback(client.aclose)
        await together(*(client.connect() for client in clients))
        assert len({client.session_id for client in clients}) == 1
        await together(*(echo(client) for client in clients))
        assert methods(await server.requests()).count("initialize") == 1


async def test_those_who_lose_a_shared_session_together_open_one():
    store = Store()
    async with legacy(initialize_delay=0.2) as server, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_at(server, store)) for _ in range(3)]
        for _ in range(2):
            await server.forget_sessions()
            assert await together(*(echo(client) for client in clients * 3)) == [None] * 9
            assert {client.session_id for client in clients} == set(await store.sessions())
        assert methods(await server.requests()).count("initialize") == 3


async def test_a_process_that_dies_while_it_opens_holds_the_others_up_for_a_moment():
    store = Store()
    async with legacy() as server:
        session = await used(client_at(server, store))
        ((key, _),) = (await store.records()).items()
        await server.forget_sessions()
        assert await store.lease(f"{key}:opening", 0.3) is not None  # and never released
        assert await used(client_at(server, store)) != session


async def test_an_opening_waits_for_another_no_longer_than_it_may_take_itself():
    store = Store()
    async with legacy() as server:
        await used(client_at(server, store))
        ((key, _),) = (await store.records()).items()
        await server.forget_sessions()
        assert await store.lease(f"{key}:opening", 60) is not None
        impatient = {"timeouts": {"connect": 0.3}}
        assert await used(client_at(server, store, settings=impatient))


async def test_where_there_is_no_session_the_openings_do_not_wait_for_each_other():
    store = Store()
    async with (
        ScriptedServer.local(era="legacy", sessions=False, initialize_delay=0.3) as server,
        AsyncExitStack() as stack,
    ):
        await used(client_at(server, store))
        store.asked.clear()
        await stack.enter_async_context(client_at(server, store))
        assert "lease" not in store.asked


async def test_the_second_to_notice_a_loss_takes_up_what_the_first_has_opened():
    store = MemoryStore()
    async with legacy() as server:
        async with client_at(server, store) as first, client_at(server, store) as second:
            await server.forget_sessions()
            await echo(first)
            await echo(second)
            assert first.session_id == second.session_id
        assert methods(await server.requests()).count("initialize") == 2


async def test_requests_of_clients_that_share_a_session_have_different_numbers():
    store = MemoryStore()
    async with legacy() as server, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_at(server, store)) for _ in range(3)]
        await together(*(echo(client) for client in clients * 5))
        assert len(set(numbers(await server.requests("tools/call")))) == 15


def numbers(seen: Sequence[Recorded]) -> list[Any]:
    return [record.body["id"] for record in seen]


async def test_those_who_could_not_share_a_session_have_records_of_their_own():
    async def no_roots(needed: object) -> Any:
        return {"roots": []}

    store = Store()
    options: list[dict[str, Any]] = [
        {},
        {"principal": "ann"},
        {"principal": ""},
        {"settings": {"api_key": "k"}},
        {"settings": {"headers": {"x-user": "ann"}}},
        {"principal": "ann", "settings": {"headers": {"x-tenant": "a"}}},
        {"principal": "ann", "settings": {"headers": {"x-tenant": "b"}}},
        {"settings": {"name": "other"}},
        {"roots": no_roots},
        {"roots": no_roots, "sampling": no_roots},
    ]
    async with legacy() as server:
        first = [await used(client_at(server, store, **each)) for each in options]
        assert len(set(first)) == len(await store.records()) == len(options)
        assert [await used(client_at(server, store, **each)) for each in options] == first
        assert methods(await server.requests()).count("initialize") == len(options)


async def test_a_store_that_mixes_up_its_records_gives_nobody_the_session_of_another():
    store = Store()
    async with legacy() as server:
        sessions = [await used(client_at(server, store, principal=name)) for name in ("ann", "bob")]
        kept = await store.records()
        for key, record in zip(kept, reversed(kept.values()), strict=True):
            await store.replace(key, record)
        for name in ("ann", "bob"):
            assert await used(client_at(server, store, principal=name)) not in sessions


class Tokens:
    """An authorizer whose tokens change."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        return {"authorization": f"Bearer {request.principal}-{next(self._numbers)}"}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        return False


def test_an_authorizer_needs_a_principal_for_its_sessions_to_be_stored():
    with pytest.raises(ConfigError) as caught:
        Client("http://127.0.0.1:1/mcp", state=MemoryStore(), auth=Tokens())
    assert caught.value.key == "principal"


async def test_a_principal_keeps_its_session_whatever_its_token():
    store = MemoryStore()
    async with legacy() as server:
        sessions = [
            await used(client_at(server, store, auth=Tokens(), principal=name))
            for name in ("ann", "bob", "ann", "bob")
        ]
        assert sessions[:2] == sessions[2:]
        assert sessions[0] != sessions[1]


@pytest.mark.requirement("H3")
async def test_a_call_for_somebody_in_particular_is_refused_where_sessions_are_nobodys():
    async with legacy() as server:
        async with client_at(server, MemoryStore()) as client:
            await server.clear()
            with pytest.raises(NotPermitted):
                await echo(client, headers={"x-user": "ann"})
            assert await server.requests() == []
            await echo(client, headers={"traceparent": "00-1-1-00"})
        named = client_at(server, MemoryStore(), principal="ann")
        async with named as client:
            await echo(client, headers={"x-user": "ann"})


@pytest.mark.parametrize("kind", ["modern", "no sessions"])
async def test_where_there_is_no_session_none_is_kept(kind: str):
    store = Store()
    options: Any = {"era": "modern"} if kind == "modern" else {"era": "legacy", "sessions": False}
    async with ScriptedServer.local(**options) as server:
        for _ in range(2):
            assert await used(client_at(server, store)) is None
        assert await store.records() == {}


async def test_a_session_over_http_and_sse_ends_with_its_stream_and_is_not_kept():
    store = Store()
    async with legacy(transport="sse") as server:
        sessions = [await used(client_at(server, store)) for _ in range(2)]
        assert sessions[0] != sessions[1]
        assert await store.records() == {}
