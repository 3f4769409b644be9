"""Checks that every driver of `toolkeep.state.Store` must pass; run them over your own.

    import asyncio, pytest
    from toolkeep.testing.store_suite import CHECKS

    @pytest.mark.parametrize("name", CHECKS)
    def test_my_store(name):
        asyncio.run(CHECKS[name](lambda: MyStore("db://test")))

Each call of the factory returns a handle to the same state, like the handle of another process (for
a store in memory: the same object). A check opens two handles and closes them. It uses keys of its
own, so that checks can share one state and run at the same time. Waits are bounded by `TIMEOUT`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from toolkeep.state.store import Entry, Lease, Store

__all__ = ["CHECKS", "TIMEOUT", "Check", "Factory"]

TIMEOUT = 10.0
"""Seconds that a check waits for something that must happen."""

SHORT, LONG = 0.05, 60.0
"""A ttl that expires during a check, and one that does not."""

BINARY = bytes(range(256)) * 4

Factory = Callable[[], Store]
Check = Callable[[Factory], Coroutine[Any, Any, None]]

CHECKS: dict[str, Check] = {}
"""Every check, by its name, which says what it proves."""

CheckFunction = Callable[[Store, Store, str], Awaitable[None]]
T = TypeVar("T")


def _check(function: CheckFunction) -> CheckFunction:
    async def check(factory: Factory) -> None:
        async with _opened(factory) as one, _opened(factory) as two:
            await function(one, two, f"suite:{secrets.token_hex(8)}")

    CHECKS[function.__name__] = check
    return function


@asynccontextmanager
async def _opened(factory: Factory) -> AsyncGenerator[Store]:
    store = factory()
    try:
        yield store
    finally:
        await store.aclose()


async def _wait_for(read: Callable[[], Awaitable[T]], is_expected: Callable[[T], bool]) -> T:
    """Read until the answer is the expected one."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            answer = await read()
            if is_expected(answer):
                return answer
            await asyncio.sleep(0.01)


def _expect(condition: bool, what: str) -> None:
    # Not `assert`: this is product code, which also runs under -O.
    if not condition:
        raise AssertionError(what)


def _equal(found: object, expected: object) -> None:
    _expect(found == expected, f"found {found!r}, expected {expected!r}")


async def _refused(call: Awaitable[object]) -> None:
    try:
        await call
    except ValueError:
        return
    raise AssertionError("expected a ValueError")


async def _put(store: Store, key: str, value: bytes, *, ttl: float | None = None) -> int:
    version = await store.put(key, value, ttl=ttl)
    _expect(version is not None, "a put without if_version always keeps the value")
    return version or 0


async def _lease(store: Store, key: str, ttl: float = LONG) -> Lease:
    lease = await store.lease(key, ttl)
    _expect(lease is not None, "the lease is free")
    assert lease is not None
    return lease


# -- values ---------------------------------------------------------------------------------------


@_check
async def a_value_is_found_by_every_handle(one: Store, two: Store, key: str) -> None:
    _equal(await two.get(key), None)
    version = await _put(one, key, BINARY)
    _equal(await two.get(key), Entry(BINARY, version))
    _equal(await one.get(key), Entry(BINARY, version))


@_check
async def an_empty_value_is_a_value(one: Store, two: Store, key: str) -> None:
    version = await _put(one, key, b"")
    _equal(await two.get(key), Entry(b"", version))


@_check
async def names_are_any_text(one: Store, two: Store, key: str) -> None:
    for number, odd in enumerate(("{a}b", "*?[x]", "täst \u2603", "a\nb", "%s", "'", "x" * 900)):
        await _put(one, f"{key}:{odd}", b"%d" % number)
        entry = await two.get(f"{key}:{odd}")
        _equal(entry and entry.value, b"%d" % number)


@_check
async def a_version_grows_with_every_put_and_after_a_delete(
    one: Store, two: Store, key: str
) -> None:
    versions = [await _put(store, key, b"x") for store in (one, two, one, two)]
    _equal(await one.delete(key), True)
    versions.append(await _put(two, key, b"x"))
    _equal(versions, sorted(set(versions)))


@_check
async def a_version_grows_after_an_expiry(one: Store, two: Store, key: str) -> None:
    first = await _put(one, key, b"x", ttl=SHORT)
    await _wait_for(lambda: two.get(key), lambda entry: entry is None)
    _expect(await _put(two, key, b"y") > first, "the version has to grow")


@_check
async def a_put_with_a_version_needs_that_version(one: Store, two: Store, key: str) -> None:
    _equal(await one.put(key, b"x", if_version=7), None)
    first = await one.put(key, b"a", if_version=0)
    _expect(first is not None, "absent: if_version=0 matches")
    _equal(await two.put(key, b"b", if_version=0), None)
    second = await two.put(key, b"c", if_version=first)
    _expect(second is not None, "the version matches")
    _equal(await one.put(key, b"d", if_version=first), None)
    _equal(await one.get(key), Entry(b"c", second or 0))


@_check
async def a_delete_with_a_version_needs_that_version(one: Store, two: Store, key: str) -> None:
    _equal(await one.delete(key), False)
    first = await _put(one, key, b"a")
    second = await _put(two, key, b"b")
    _equal(await one.delete(key, if_version=first), False)
    _equal(await one.delete(key, if_version=0), False)
    _equal(await one.delete(key, if_version=second), True)
    _equal(await two.get(key), None)


@_check
async def a_value_expires(one: Store, two: Store, key: str) -> None:
    await _put(one, key, b"x", ttl=SHORT)
    await _wait_for(lambda: two.get(key), lambda entry: entry is None)
    _equal(await one.delete(key), False)
    _expect(await one.put(key, b"y", if_version=0) is not None, "what expired is absent")


@_check
async def a_put_sets_the_time_to_live_anew(one: Store, two: Store, key: str) -> None:
    await _put(one, key, b"x", ttl=SHORT)
    await _put(one, key, b"y")
    await _put(two, f"{key}:beside", b"x", ttl=SHORT)
    await _wait_for(lambda: two.get(f"{key}:beside"), lambda entry: entry is None)
    entry = await two.get(key)
    _equal(entry and entry.value, b"y")


@_check
async def of_many_that_replace_a_value_one_wins(one: Store, two: Store, key: str) -> None:
    for last in (0, await _put(one, f"{key}:b", b"x")):
        name = f"{key}:b" if last else f"{key}:a"
        puts = [(one, two)[n % 2].put(name, b"%d" % n, if_version=last) for n in range(12)]
        won = [version for version in await asyncio.gather(*puts) if version is not None]
        _equal(len(won), 1)


@_check
async def a_scan_finds_the_keys_of_a_prefix(one: Store, two: Store, key: str) -> None:
    expected = {f"{key}:in:{number}" for number in range(1200)} | {f"{key}:in:*[é"}
    for start in range(0, 1200, 50):
        await asyncio.gather(
            *(one.put(f"{key}:in:{number}", b"x") for number in range(start, start + 50))
        )
    await _put(one, f"{key}:in:*[é", b"x")
    await _put(one, f"{key}:out", b"x")
    await _put(one, f"{key}:in:gone", b"x")
    await one.delete(f"{key}:in:gone")
    await one.lease(f"{key}:in:lease", LONG)
    await one.append(f"{key}:in:log", b"x", max_entries=1, ttl=LONG)
    _equal({name async for name in two.scan(f"{key}:in:")}, expected)
    _equal({name async for name in two.scan(f"{key}:in:*")}, {f"{key}:in:*[é"})
    _equal([name async for name in two.scan(f"{key}:none")], [])


# -- leases ---------------------------------------------------------------------------------------


@_check
async def a_lease_is_held_once(one: Store, two: Store, key: str) -> None:
    lease = await _lease(one, key)
    _equal(lease.key, key)
    _equal(await two.lease(key, LONG), None)
    _equal(await one.lease(key, LONG), None)
    await one.release(lease)
    await one.release(lease)
    again = await _lease(two, key)
    _expect(again.token > lease.token, "the fencing token has to grow")
    _expect(again.holder != lease.holder, "each holding has an id of its own")


@_check
async def a_lease_ends_with_its_time(one: Store, two: Store, key: str) -> None:
    lost = await _lease(one, key, SHORT)
    taken = await _wait_for(lambda: two.lease(key, LONG), lambda lease: lease is not None)
    _expect(taken is not None and taken.token > lost.token, "the fencing token has to grow")
    _equal(await one.renew(lost, LONG), False)
    await one.release(lost)
    _equal(await one.lease(key, LONG), None)


@_check
async def a_lease_is_renewed_by_its_holder(one: Store, two: Store, key: str) -> None:
    lease = await _lease(one, key, 1.0)
    _equal(await one.renew(lease, LONG), True)
    _equal(await two.renew(lease, LONG), True)
    _equal(await two.renew(Lease(key, lease.token, "another"), LONG), False)
    await two.release(Lease(key, lease.token, "another"))
    _equal(await two.lease(key, LONG), None)
    await one.release(lease)
    _equal(await one.renew(lease, LONG), False)


@_check
async def of_many_that_want_a_lease_one_has_it(one: Store, two: Store, key: str) -> None:
    wanted = [(one, two)[number % 2].lease(key, LONG) for number in range(12)]
    _equal(len([lease for lease in await asyncio.gather(*wanted) if lease]), 1)


# -- limits ---------------------------------------------------------------------------------------


@_check
async def a_bucket_gives_its_burst_and_then_says_how_long(one: Store, two: Store, key: str) -> None:
    taken = [await store.take(key, rate=0.01, burst=4) for store in (one, two, one, two)]
    _equal(taken, [0.0] * 4)
    wait = await one.take(key, rate=0.01, burst=4)
    _expect(80 < wait <= 100, f"one token at 0.01/s takes about 100 s: {wait}")
    wait = await two.take(key, rate=0.01, burst=4, cost=3)
    _expect(280 < wait <= 300, f"a refusal takes nothing; three tokens: {wait}")


@_check
async def a_bucket_fills_again(one: Store, two: Store, key: str) -> None:
    _equal(await one.take(key, rate=20, burst=1), 0.0)
    wait = await two.take(key, rate=20, burst=1)
    _expect(wait <= 0.05, f"one token at 20/s: {wait}")
    await asyncio.sleep(wait)
    await _wait_for(lambda: two.take(key, rate=20, burst=1), lambda wait: wait == 0.0)


# -- logs -----------------------------------------------------------------------------------------


@_check
async def a_log_is_read_in_order_and_from_a_position(one: Store, two: Store, key: str) -> None:
    _equal(await two.read(key), [])
    written = [BINARY, b"", b"c", b"d"]
    places = [
        await (one, two)[number % 2].append(key, entry, max_entries=10, ttl=LONG)
        for number, entry in enumerate(written)
    ]
    _equal(places, sorted(set(places)))
    _equal(await two.read(key), list(zip(places, written, strict=True)))
    _equal(await one.read(key, places[1]), list(zip(places[2:], written[2:], strict=True)))
    _equal(await one.read(key, places[0], limit=1), [(places[1], b"")])
    _equal(await one.read(key, places[3]), [])


@_check
async def a_log_keeps_its_newest_entries(one: Store, two: Store, key: str) -> None:
    for number in range(8):
        await one.append(key, b"%d" % number, max_entries=3, ttl=LONG)
    _equal([entry for _, entry in await two.read(key)], [b"5", b"6", b"7"])
    await two.append(key, b"8", max_entries=1, ttl=LONG)
    _equal([entry for _, entry in await one.read(key)], [b"8"])


@_check
async def a_log_expires_and_its_positions_go_on(one: Store, two: Store, key: str) -> None:
    before = await one.append(key, b"a", max_entries=9, ttl=SHORT)
    await _wait_for(lambda: two.read(key), lambda entries: not entries)
    after = await two.append(key, b"b", max_entries=9, ttl=LONG)
    _equal(await one.read(key, before), [(after, b"b")])
    _equal(await one.read(key), [(after, b"b")])


# -- channels -------------------------------------------------------------------------------------


@_check
async def a_message_reaches_every_subscriber(one: Store, two: Store, key: str) -> None:
    async with two.subscribe(key) as far, one.subscribe(key) as near, one.subscribe(key) as third:
        await one.publish(f"{key}:other", b"no")
        for message in (BINARY, b"", b"c"):
            await one.publish(key, message)
        async with asyncio.timeout(TIMEOUT):
            for messages in (far, near, third):
                _equal([await anext(messages) for _ in range(3)], [BINARY, b"", b"c"])


@_check
async def a_subscriber_hears_what_is_published_later(one: Store, two: Store, key: str) -> None:
    await one.publish(key, b"before")
    async with two.subscribe(key) as messages:
        await one.publish(key, b"after")
        async with asyncio.timeout(TIMEOUT):
            _equal(await anext(messages), b"after")


@_check
async def a_slow_subscriber_holds_up_no_publisher(one: Store, two: Store, key: str) -> None:
    async with two.subscribe(key) as messages:
        for start in range(0, 3000, 100):
            some = range(start, start + 100)
            await asyncio.gather(*(one.publish(key, b"%d" % number) for number in some))
        await one.publish(key, b"last")
        async with asyncio.timeout(TIMEOUT):
            while await anext(messages) != b"last":
                pass


@_check
async def closing_ends_a_subscription(one: Store, two: Store, key: str) -> None:
    async with two.subscribe(key) as messages:
        waiting = asyncio.ensure_future(anext(messages, None))
        await asyncio.sleep(0)
        await two.aclose()
        async with asyncio.timeout(TIMEOUT):
            _equal(await waiting, None)


# -- all ------------------------------------------------------------------------------------------


@_check
async def kinds_with_the_same_name_are_apart(one: Store, two: Store, key: str) -> None:
    lease = await _lease(one, key)
    await one.append(key, b"entry", max_entries=2, ttl=LONG)
    _equal(await one.take(key, rate=1, burst=1), 0.0)
    version = await _put(one, key, b"value")
    _equal(await two.get(key), Entry(b"value", version))
    _equal([entry for _, entry in await two.read(key)], [b"entry"])
    _equal(await two.delete(key), True)
    _equal(await two.lease(key, LONG), None)
    _equal(await two.renew(lease, LONG), True)


@_check
async def what_makes_no_sense_is_refused(one: Store, two: Store, key: str) -> None:
    await _refused(one.get(""))
    await _refused(one.get("x" * 1025))
    await _refused(one.put(key, b"x", ttl=0))
    await _refused(one.put(key, b"x", ttl=float("nan")))
    await _refused(one.put(key, b"x", if_version=-1))
    await _refused(one.lease(key, -1))
    await _refused(one.take(key, rate=0, burst=1))
    await _refused(one.take(key, rate=1, burst=1, cost=2))
    await _refused(one.append(key, b"x", max_entries=0, ttl=1))
    await _refused(one.read(key, limit=0))
    _equal(await two.get(key), None)


@_check
async def a_store_can_be_closed_twice_and_used_again(one: Store, two: Store, key: str) -> None:
    version = await _put(one, key, b"x")
    await one.aclose()
    await one.aclose()
    _equal(await one.get(key), Entry(b"x", version))
    _equal(await two.get(key), Entry(b"x", version))
