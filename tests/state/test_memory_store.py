"""The driver in memory: bounded, and shared by threads and event loops."""

import asyncio
import threading

import pytest

from toolkeep.errors import StoreUnavailable
from toolkeep.state import MemoryStore

PATIENCE = 10.0


async def test_a_full_store_refuses_and_drops_what_has_expired():
    store = MemoryStore(max_bytes=20_000)
    await store.put("old", bytes(9000), ttl=0.02)
    await store.append("log", bytes(5000), max_entries=9, ttl=60)
    with pytest.raises(StoreUnavailable, match="the store is full"):
        await store.append("log", bytes(9000), max_entries=9, ttl=60)
    with pytest.raises(StoreUnavailable, match="the store is full"):
        await store.put("new", bytes(9000))
    async with asyncio.timeout(PATIENCE):
        while await store.get("old"):
            await asyncio.sleep(0.01)
    assert await store.put("new", bytes(9000))
    assert await store.put("new", bytes(10))  # replacing it by less always fits
    assert [len(entry) for _, entry in await store.read("log")] == [5000]


async def test_expired_rows_do_not_pile_up():
    store = MemoryStore()
    for number in range(10_000):
        await store.put(f"key{number}", b"x", ttl=0.001)
        await store.take(f"bucket{number}", rate=10_000, burst=1)
    assert "MemoryStore" in repr(store)
    assert int(repr(store).split(", ")[1].split()[0]) < 10_000
    await store.put("last", b"x")


async def test_a_log_gives_back_what_it_drops():
    store = MemoryStore(max_bytes=10_000)
    for number in range(200):
        await store.append("log", bytes(1000), max_entries=3, ttl=60)
        await store.put("key", b"%d" % number)
    assert len(await store.read("log")) == 3


def test_threads_and_event_loops_share_one_store():
    store, subscribed = MemoryStore(), threading.Barrier(2)

    async def listen() -> bytes:
        async with store.subscribe("channel") as messages:
            await asyncio.to_thread(subscribed.wait, PATIENCE)
            return await asyncio.wait_for(anext(messages), PATIENCE)

    heard: list[bytes] = []
    thread = threading.Thread(target=lambda: heard.append(asyncio.run(listen())))
    thread.start()
    subscribed.wait(PATIENCE)
    asyncio.run(store.publish("channel", b"x"))
    thread.join(PATIENCE)
    assert heard == [b"x"]


def test_a_subscriber_whose_event_loop_is_gone_is_forgotten():
    store = MemoryStore()
    loop = asyncio.new_event_loop()
    leaving = store.subscribe("channel")
    loop.run_until_complete(leaving.__aenter__())
    loop.close()
    asyncio.run(store.publish("channel", b"x"))
    asyncio.run(store.publish("channel", b"x"))
