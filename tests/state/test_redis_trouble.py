"""A Redis that is killed, restarted, paused, full or foreign: no hang, and recovery by itself."""

import asyncio
import contextlib
import random
import socket
import time
from pathlib import Path

import pytest

from tests.state.servers import Server, until
from toolkeep.errors import StoreUnavailable, WrongLoop
from toolkeep.state import RedisStore, Store
from toolkeep.testing.store_suite import CHECKS

PATIENCE = 15.0
LONG_WAIT = 10.0
"""Far above the timeout of 0.25 s, so that a busy machine does not fail a test."""


async def until_it_works(store: Store) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(StoreUnavailable):
                return void(await store.put("probe", b"x"))
            await asyncio.sleep(0.02)


def void(_: object) -> None:
    return None


@contextlib.asynccontextmanager
async def opened(url: str, *, timeout: float = 5.0, **options):
    """With a generous timeout: a busy machine is slow, and few tests are about the timeout."""
    store = RedisStore(url, timeout=timeout, **options)
    try:
        yield store
    finally:
        await store.aclose()


async def test_a_restart_is_survived_and_versions_go_on(own_redis: Server):
    async with opened(own_redis.url) as store:
        before = await store.put("key", b"x")
        lease = await store.lease("lease", 60)
        await asyncio.gather(*(store.get("key") for _ in range(20)))  # several connections
        own_redis.restart()  # with no persistence: a flush, too
        await until_it_works(store)
        results = await asyncio.gather(*(store.get("key") for _ in range(20)))
        assert results == [None] * 20
        after = await store.put("key", b"y")
        again = await store.lease("lease", 60)
        assert (after or 0) > (before or 0) > 0
        assert again is not None
        assert lease is not None
        assert again.token > lease.token
        assert await store.renew(lease, 60) is False


async def test_while_redis_is_down_every_operation_says_so(own_redis: Server):
    async with opened(own_redis.url) as store:
        await store.put("key", b"x")
        own_redis.stop()
        started = time.monotonic()
        for call in (
            store.get("key"),
            store.put("key", b"x"),
            store.lease("key", 1),
            store.take("key", rate=1, burst=1),
            store.append("log", b"x", max_entries=1, ttl=1),
            store.read("log"),
            store.publish("channel", b"x"),
        ):
            with pytest.raises(StoreUnavailable) as caught:
                await call
            assert caught.value.store == own_redis.url
        with pytest.raises(StoreUnavailable):
            [key async for key in store.scan("")]
        with pytest.raises(StoreUnavailable):
            async with store.subscribe("channel"):
                pass
        assert time.monotonic() - started < 10 * LONG_WAIT
        own_redis.start()
        await until_it_works(store)


async def test_a_paused_redis_holds_nobody_up(own_redis: Server):
    async with opened(own_redis.url, timeout=0.25) as store:
        await until_it_works(store)
        own_redis.pause()
        try:
            started = time.monotonic()
            calls = [store.get("probe") for _ in range(200)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert time.monotonic() - started < LONG_WAIT
            assert {type(one) for one in results} == {StoreUnavailable}
            assert "no response within 0.25 s" in str(results[0]) or "Timeout" in str(results[0])
        finally:
            own_redis.resume()
        for _ in range(50):
            await until_it_works(store)


async def test_answers_never_reach_another_question(own_redis: Server):
    """A call that is cancelled or times out must not leave its answer in a connection."""
    async with opened(own_redis.url, max_connections=2) as store:
        for number in range(50):
            await store.put(f"key{number}", b"%d" % number)

        async def ask(number: int, patience: float) -> None:
            with contextlib.suppress(TimeoutError, StoreUnavailable):
                async with asyncio.timeout(patience):
                    entry = await store.get(f"key{number}")
                    assert entry is not None
                    assert entry.value == b"%d" % number

        for turn in range(10):
            await asyncio.gather(*(ask(n, 0.0001 * ((n + turn) % 20)) for n in range(50)))
        await asyncio.gather(*(ask(number, PATIENCE) for number in range(50)))


async def test_a_subscription_goes_on_after_a_restart(own_redis: Server):
    async with opened(own_redis.url) as store, store.subscribe("channel") as messages:
        await store.publish("channel", b"before")
        assert await asyncio.wait_for(anext(messages), PATIENCE) == b"before"
        own_redis.restart()
        await until_it_works(store)

        async def publish() -> None:
            while True:
                with contextlib.suppress(StoreUnavailable):
                    await store.publish("channel", b"after")
                await asyncio.sleep(0.05)

        publishing = asyncio.create_task(publish())
        try:
            assert await asyncio.wait_for(anext(messages), PATIENCE) == b"after"
        finally:
            publishing.cancel()
            await asyncio.wait([publishing])
        async with store.subscribe("another") as others:
            await store.publish("another", b"x")
            assert await asyncio.wait_for(anext(others), PATIENCE) == b"x"


async def test_many_subscriptions_come_and_go_on_one_connection(own_redis: Server):
    async with opened(own_redis.url) as store, opened(own_redis.url) as far:

        async def listen(number: int) -> bytes:
            async with far.subscribe(f"channel{number % 5}") as messages:
                await store.publish(f"channel{number % 5}", b"x")
                return await asyncio.wait_for(anext(messages), PATIENCE)

        for _ in range(3):
            assert set(await asyncio.gather(*(listen(n) for n in range(25)))) == {b"x"}
        # Redis notices a closed connection when it next looks at its sockets.
        until(lambda: own_redis.ask("PUBSUB CHANNELS").startswith("*0"))


async def test_a_full_redis_refuses_and_recovers(own_redis: Server):
    async with opened(own_redis.url, timeout=2) as store:
        await store.put("kept", b"x")
        lease = await store.lease("lease", 60)
        assert lease
        own_redis.ask("CONFIG SET maxmemory 1")
        for call in (
            store.put("more", b"x"),
            store.append("log", b"x", max_entries=9, ttl=9),
            store.lease("another", 9),
            store.take("bucket", rate=1, burst=1),
        ):
            with pytest.raises(StoreUnavailable, match=r"out of memory\. Raise maxmemory"):
                await call
        entry = await store.get("kept")
        assert entry is not None
        assert await store.renew(lease, 60)
        await store.release(lease)
        assert await store.delete("kept")
        own_redis.ask("CONFIG SET maxmemory 0")
        await until_it_works(store)
        assert await store.lease("lease", 60)


async def test_scripts_that_redis_has_forgotten_are_sent_again(own_redis: Server):
    async with opened(own_redis.url) as store:
        assert await store.put("key", b"x")
        own_redis.ask("SCRIPT FLUSH")
        assert await store.put("key", b"y")


async def test_every_operation_is_one_command(own_redis: Server):
    async with opened(own_redis.url) as store:

        async def operations() -> None:
            await store.put("key", b"x")
            await store.get("key")
            await store.delete("key")
            lease = await store.lease("key", 9)
            assert lease
            await store.renew(lease, 9)
            await store.release(lease)
            await store.take("key", rate=1, burst=1)
            await store.append("key", b"x", max_entries=1, ttl=9)
            await store.read("key")
            await store.publish("key", b"x")

        await operations()
        own_redis.ask("CONFIG RESETSTAT")
        await operations()
        said = own_redis.ask("INFO commandstats")
        calls = dict(
            line.removeprefix("cmdstat_").split(":calls=")
            for line in said.splitlines()
            if line.startswith("cmdstat_")
        )
        sent = {name: int(calls.get(name, "0").split(",")[0]) for name in SENT}
        assert sent == {"evalsha": 7, "get": 1 + 4, "xrange": 1, "publish": 1}  # four in scripts


SENT = ("evalsha", "get", "xrange", "publish")


async def test_what_others_wrote_is_refused(own_redis: Server):
    async with opened(own_redis.url) as store:
        own_redis.ask("SET v:text something-else-of-someone")
        with pytest.raises(StoreUnavailable, match="holds a value that toolkeep did not write"):
            await store.get("text")
        own_redis.ask("LPUSH v:list x")
        for call in (store.get("list"), store.put("list", b"x")):
            with pytest.raises(StoreUnavailable, match="Redis refused the command"):
                await call


@pytest.mark.requirement("H6")
async def test_no_error_shows_a_password_or_a_value(own_redis: Server):
    own_redis.ask("CONFIG SET requirepass correct-horse")
    url = own_redis.url.replace("//", "//:wrong-battery@")
    async with opened(url) as store:
        with pytest.raises(StoreUnavailable) as caught:
            await store.put("key", b"a secret value")
        shown = f"{caught.value!r} {caught.value} {store!r} {caught.value.__cause__!r}"
        assert "wrong-battery" not in shown
        assert "secret value" not in shown
    async with opened(own_redis.url.replace("//", "//:correct-horse@")) as store:
        assert await store.put("key", b"x")


async def test_a_port_that_accepts_and_says_nothing_is_given_up():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        async with opened(url, timeout=0.25) as store:
            started = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await store.get("key")
            assert time.monotonic() - started < LONG_WAIT


async def test_databases_do_not_share_channels(own_redis: Server):
    one, two = own_redis.url, own_redis.url.removesuffix("0") + "3"
    async with opened(one) as first, opened(two) as second, second.subscribe("x") as messages:
        await first.publish("x", b"of the first")
        await second.publish("x", b"of the second")
        assert await asyncio.wait_for(anext(messages), PATIENCE) == b"of the second"


def test_a_store_belongs_to_its_event_loop(own_redis: Server):
    store = RedisStore(own_redis.url)
    running = asyncio.new_event_loop()
    try:
        running.run_until_complete(store.put("key", b"x"))
        with pytest.raises(WrongLoop, match="opened in another event loop"):
            asyncio.run(store.get("key"))
        running.run_until_complete(store.aclose())
    finally:
        running.close()

    async def again() -> bytes | None:
        entry = await store.get("key")
        await store.aclose()
        return entry and entry.value

    assert asyncio.run(again()) == b"x"


async def test_the_permissions_of_the_page_are_enough(own_redis: Server):
    page = Path(__file__).parents[2] / "docs" / "how-to" / "share-state.md"
    permissions = page.read_text(encoding="utf-8").partition("needs the ACL `")[2].partition("`")[0]
    assert own_redis.ask(f"ACL SETUSER app on >secret {permissions}") == "+OK\r\n"
    url = own_redis.url.replace("//", "//app:secret@")
    for check in CHECKS.values():
        await check(lambda: RedisStore(url, timeout=5))
    assert "v:" not in own_redis.ask("ACL LOG")


def test_a_store_of_another_event_loop_is_not_closed_here(own_redis: Server):
    store, loop = RedisStore(own_redis.url), asyncio.new_event_loop()
    try:
        loop.run_until_complete(store.put("key", b"x"))
        with pytest.raises(WrongLoop):
            asyncio.run(store.aclose())
        loop.run_until_complete(store.aclose())
    finally:
        loop.close()


async def test_leaving_a_subscription_while_redis_is_paused_does_not_hang(own_redis: Server):
    async with opened(own_redis.url) as store:
        async with asyncio.timeout(PATIENCE):
            async with store.subscribe("a"), store.subscribe("b"):
                own_redis.pause()
            own_redis.resume()


async def test_a_cancelled_operation_never_goes_on(own_redis: Server):
    went_on = 0

    async def use(store: Store) -> None:
        nonlocal went_on
        with contextlib.suppress(StoreUnavailable):
            await store.get("key")
        task = asyncio.current_task()
        assert task is not None
        went_on += task.cancelling()

    async with opened(own_redis.url) as store:
        loop, dice = asyncio.get_running_loop(), random.Random(1)
        for _ in range(20):
            tasks = [loop.create_task(use(store)) for _ in range(50)]
            for task in tasks:
                loop.call_later(dice.random() * 0.02, task.cancel)
            await asyncio.wait(tasks, timeout=PATIENCE)
    assert went_on == 0


async def test_closing_ends_a_subscription_at_any_moment(own_redis: Server):
    for number in range(50):
        async with opened(own_redis.url) as store:
            listening = asyncio.create_task(store.subscribe("channel").__aenter__())
            for _ in range(number):
                await asyncio.sleep(0)
            listening.cancel()
            await asyncio.wait([listening])
            async with asyncio.timeout(PATIENCE):
                await store.aclose()
