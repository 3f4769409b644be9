"""The sessions of one server, on the edges: what is asked of those that are being closed."""

import asyncio
from typing import Any

import pytest

from toolkeep import Client, ConfigError, InvalidArguments, ServerUnavailable
from toolkeep._client.options import ClientOptions
from toolkeep._rules.identity import Identity
from toolkeep._runtime.session_pool import SessionPool
from toolkeep.config import ServerSpec
from toolkeep.testing import ScriptedServer

ANN, BEN = Identity("principal:ann", "ann"), Identity("principal:ben", "ben")


def sessions_of(server: ScriptedServer, **more: Any) -> SessionPool:
    spec = ServerSpec.parse({"name": "kit", "url": server.url, **more})
    return SessionPool(spec, ClientOptions(), {}, listen=False, emit=lambda identity, event: None)


@pytest.mark.requirement("H4")
@pytest.mark.parametrize("policy", [None, "principal", "call"])
async def test_sessions_that_are_being_closed_are_lent_to_nobody(policy: str | None):
    async with ScriptedServer.local(era="legacy") as server:
        sessions = sessions_of(server, session=policy)
        sessions.stop_acquiring()
        for identity in (None, ANN):
            with pytest.raises(ServerUnavailable):
                await sessions.acquire(identity, 1.0)
        with pytest.raises(ServerUnavailable):
            sessions.acquire_own()
        assert "kit" in repr(sessions)
        await sessions.aclose()


@pytest.mark.requirement("H4")
async def test_who_waits_for_a_place_is_told_when_all_is_closed():
    async with ScriptedServer.local(era="legacy") as server:
        sessions = sessions_of(server, max_sessions=1)
        lease = await sessions.acquire(ANN, 1.0)
        again = lease.acquire_again()
        waiting = asyncio.ensure_future(sessions.acquire(BEN, 10.0))
        await asyncio.sleep(0)
        assert (sessions.in_flight, sessions.slots.waiting) == (2, 1)
        await sessions.aclose()
        with pytest.raises(ServerUnavailable):
            await waiting
        for one in (lease, again):
            one.release()
        own = sessions_of(server)
        lent = own.acquire_own()
        lent.acquire_again().release()
        lent.release()
        assert own.in_flight == 0
        await own.aclose()


async def test_an_observer_is_a_plain_function_and_harms_nobody_when_it_takes_no_note():
    class Nosy:
        def __call__(self, event: Any) -> None: ...

        def add_server(self, spec: Any) -> None:
            raise RuntimeError("no")

    async def later(event: Any) -> None: ...

    async with ScriptedServer.local() as server:
        client = Client(server.url)
        for wrong in (later, 3):
            with pytest.raises(ConfigError):
                client.observe(wrong)  # pyright: ignore[reportArgumentType]
        client.observe(Nosy()).close()
        with pytest.raises(InvalidArguments):
            await client.call_tool("echo", on_progress=3)  # pyright: ignore[reportArgumentType]
        assert await server.requests() == []
        await client.aclose()
