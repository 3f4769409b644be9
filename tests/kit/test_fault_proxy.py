"""The fault proxy does what it is told, to the connections it is told about, and heals."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from tests.kit.wire import Wire, wire_to
from toolkeep.testing import FaultProxy, ScriptedServer


@pytest.fixture
async def proxy(server: ScriptedServer) -> AsyncIterator[FaultProxy]:
    async with FaultProxy.to("127.0.0.1", server.port) as proxy:
        yield proxy


@pytest.fixture
async def wire(proxy: FaultProxy) -> AsyncIterator[Wire]:
    async with wire_to(proxy.port) as wire:
        await wire.initialize()
        yield wire


async def test_it_forwards_and_counts(proxy: FaultProxy, wire: Wire):
    assert (await wire.call("echo", text="x")).status == 200
    assert (proxy.accepted, proxy.open_connections) == (1, 1)
    assert proxy.bytes_up > 100
    assert proxy.bytes_down > 100
    assert proxy.url("/mcp") == f"http://127.0.0.1:{proxy.port}/mcp"


async def test_refusing_spares_the_open_connections_until_healed(proxy: FaultProxy, wire: Wire):
    port = proxy.port
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    assert (await wire.call("echo", text="x")).status == 200
    await proxy.heal()
    async with wire_to(port) as other:
        assert (await other.initialize()).status == 200


async def test_a_reset_strikes_old_and_new_connections(proxy: FaultProxy, wire: Wire):
    proxy.reset(after_bytes=20, direction="down")
    old = await wire.call("echo", text="x")
    async with wire_to(proxy.port) as other:
        new = await other.initialize()
    assert (old.ended, new.ended) == ("reset", "reset")


async def test_a_reset_on_the_way_up_keeps_the_request_from_the_server(
    server: ScriptedServer, proxy: FaultProxy, wire: Wire
):
    proxy.reset(after_bytes=10, direction="up")
    assert (await wire.call("record")).ended == "reset"
    assert await server.ledger() == {}


async def test_a_cut_ends_the_body_cleanly(proxy: FaultProxy, wire: Wire):
    whole = await wire.call("big", bytes=5000)
    proxy.cut(after_bytes=3000, direction="down")
    answer = await wire.call("big", bytes=5000)
    assert answer.ended == "closed"
    assert 0 < len(answer.body) < len(whole.body)


async def test_a_deaf_proxy_accepts_and_forwards_nothing_until_healed(
    server: ScriptedServer, proxy: FaultProxy, wire: Wire
):
    proxy.stall()
    await wire.send("DELETE")
    async with wire_to(proxy.port) as other:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await other.initialize()
    await proxy.heal()
    assert (await wire.receive()).status == 200


async def test_a_throttled_answer_takes_its_time(proxy: FaultProxy, wire: Wire):
    proxy.throttle(20_000)
    started = time.monotonic()
    assert (await wire.call("big", bytes=6000)).ended == "whole"
    assert time.monotonic() - started > 0.2


async def test_one_connection_can_be_broken_by_what_it_says(
    server: ScriptedServer, proxy: FaultProxy, wire: Wire
):
    async with wire_to(proxy.port) as other:
        other.session = wire.session
        proxy.break_one(match=b"needle")
        struck, spared = await asyncio.gather(
            wire.call("record", key="needle"), other.call("record", key="hay")
        )
        assert (struck.ended, spared.status) == ("reset", 200)
        assert (await other.call("record", key="needle")).status == 200
    assert await server.ledger() == {"hay": 1, "needle": 1}


async def test_all_connections_can_be_killed_at_once(proxy: FaultProxy, wire: Wire):
    assert proxy.kill_connections() == 1
    assert (await wire.receive()).ended == "reset"


async def test_a_server_that_is_down_closes_the_connection():
    async with ScriptedServer.local() as server:
        port = server.port
    async with FaultProxy.to("127.0.0.1", port) as proxy, wire_to(proxy.port) as wire:
        assert (await wire.initialize()).ended != "whole"


async def test_a_proxy_closes_with_connections_in_every_state(server: ScriptedServer):
    async with (
        FaultProxy.to("127.0.0.1", server.port) as proxy,
        wire_to(proxy.port) as idle,
        wire_to(proxy.port) as waiting,
    ):
        await idle.initialize()
        proxy.stall()
        await waiting.send("GET")
        async with asyncio.timeout(5):
            await proxy.__aexit__(None, None, None)
    assert proxy.open_connections == 0
