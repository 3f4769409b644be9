"""The response cache: fresh or nothing, whatever races it and however its store behaves."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from toolkeep._client.response_cache import MAX_TTL_MS, CacheKey, ResponseCache
from toolkeep.state import Entry, MemoryStore
from toolkeep.state.shared import SharedState

BOUND = 10.0
LIST, READ = "tools/list", "resources/read"
MANY = 4096


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Gate:
    """Where one operation of a store waits."""

    def __init__(self) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()


class Slow(MemoryStore):
    """An operation can be held: a read when it is done, a write before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.deletions = 0
        self._gates: dict[str, Gate] = {}

    def hold(self, operation: str) -> Gate:
        return self._gates.setdefault(operation, Gate())

    async def _pass(self, operation: str) -> None:
        gate = self._gates.pop(operation, None)
        if gate is not None:
            gate.reached.set()
            await gate.open.wait()

    async def get(self, key: str) -> Entry | None:
        found = await super().get(key)
        await self._pass("get")
        return found

    async def put(self, key: str, value: bytes, **options: Any) -> int | None:
        await self._pass("put")
        version = await super().put(key, value, **options)
        await self._pass("after put")
        return version

    async def delete(self, key: str, **options: Any) -> bool:
        self.deletions += 1
        return await super().delete(key, **options)


def cache_in(store: MemoryStore) -> ResponseCache:
    return ResponseCache(SharedState(store))


async def keep(
    cache: ResponseCache,
    value: dict[str, Any],
    *,
    partition: str = "p",
    method: str = LIST,
    key: str = "",
    ttl_ms: float = 60_000,
) -> None:
    ticket = cache.start_fetch(method, key)
    await cache.put(partition, method, key, ticket, value, ttl_ms=ttl_ms)


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_an_answer_is_served_until_its_time_is_over(clock: Clock):
    cache = ResponseCache(clock=clock)
    assert await cache.get("p", LIST) is None
    await keep(cache, {"tools": []}, ttl_ms=1500)
    clock.now += 1.4
    assert await cache.get("p", LIST) == {"tools": []}
    clock.now += 0.2
    assert await cache.get("p", LIST) is None


@pytest.mark.parametrize("ttl_ms", [0, -1, math.nan, -math.inf])
async def test_what_may_not_be_kept_is_not_and_ends_what_was_kept_before(ttl_ms: float):
    store = MemoryStore()
    cache = cache_in(store)
    await keep(cache, {"n": 1}, ttl_ms=ttl_ms)
    assert await store.get(CacheKey(LIST, "", "p").name) is None
    await keep(cache, {"n": 1})
    await keep(cache, {"n": 2}, ttl_ms=ttl_ms)
    assert await cache.get("p", LIST) is None
    assert await store.get(CacheKey(LIST, "", "p").name) is None


@pytest.mark.parametrize("ttl_ms", [math.inf, 1e300, MAX_TTL_MS + 1])
async def test_nothing_lives_longer_than_the_cap(clock: Clock, ttl_ms: float):
    cache = ResponseCache(clock=clock)
    await keep(cache, {"n": 1}, ttl_ms=ttl_ms)
    clock.now += MAX_TTL_MS / 1000 - 1
    assert await cache.get("p", LIST) == {"n": 1}
    clock.now += 2
    assert await cache.get("p", LIST) is None


async def test_a_clock_that_is_set_back_makes_nothing_live_longer(clock: Clock):
    cache = ResponseCache(clock=clock)
    await keep(cache, {"n": 1}, ttl_ms=MAX_TTL_MS)
    clock.now -= 10
    assert await cache.get("p", LIST) is None


async def test_the_callers_changes_reach_nobody_else():
    cache = ResponseCache()
    given: dict[str, Any] = {"tools": [{"name": "a"}]}
    await keep(cache, given)
    given["tools"][0]["name"] = "given"
    taken = await cache.get("p", LIST)
    assert taken is not None
    assert taken == {"tools": [{"name": "a"}]}
    taken["tools"].clear()
    assert await cache.get("p", LIST) == {"tools": [{"name": "a"}]}


async def test_partitions_methods_and_keys_are_kept_apart():
    cache = ResponseCache()
    places = [
        ("p", READ, "x"),
        ("q", READ, "x"),
        ("p", READ, "y"),
        ("p", LIST, "x"),
        ("px", READ, ""),
    ]
    for number, (partition, method, key) in enumerate(places):
        await keep(cache, {"n": number}, partition=partition, method=method, key=key)
    assert [await cache.get(*place) for place in places] == [{"n": n} for n in range(5)]


async def test_who_polls_the_cache_lets_others_run():
    cache = ResponseCache()
    await keep(cache, {"n": 1})
    eviction = asyncio.create_task(cache.evict("p", LIST))
    polls = 0
    while await cache.get("p", LIST) is not None:
        polls += 1
        assert polls < 100
    await eviction


async def test_an_eviction_ends_one_key_or_all_of_a_method():
    cache = ResponseCache()
    for key in ("a", "b", "c"):
        await keep(cache, {"key": key}, method=READ, key=key)
    await keep(cache, {"n": 1})
    await cache.evict("p", READ, "a")
    assert await cache.get("p", READ, "a") is None
    assert await cache.get("p", READ, "b") == {"key": "b"}
    await cache.evict("p", READ, None)
    assert [await cache.get("p", READ, key) for key in ("b", "c")] == [None, None]
    assert await cache.get("p", LIST) == {"n": 1}
    await keep(cache, {"key": "new"}, method=READ, key="b")
    assert await cache.get("p", READ, "b") == {"key": "new"}


async def test_clearing_forgets_our_entries_and_leaves_those_of_others_in_the_store():
    store = MemoryStore()
    ours, theirs = cache_in(store), cache_in(store)
    await keep(ours, {"by": "us"})
    await keep(theirs, {"by": "them"}, method=READ, key="seen")
    await keep(theirs, {"by": "them"}, method=READ, key="unseen")
    assert await ours.get("p", READ, "seen") == {"by": "them"}
    await ours.clear()
    assert await ours.get("p", LIST) is None
    assert await ours.get("p", READ, "unseen") is None
    assert await theirs.get("p", LIST) is None
    assert await theirs.get("p", READ, "seen") is None
    assert await theirs.get("p", READ, "unseen") == {"by": "them"}
    await keep(ours, {"by": "us again"})
    assert await ours.get("p", LIST) == {"by": "us again"}


async def outdate(cache: ResponseCache) -> None:
    cache.invalidate(READ, "x")


EVICTIONS: list[Callable[[ResponseCache], Awaitable[None]]] = [
    lambda cache: cache.evict("p", READ, "x"),
    lambda cache: cache.evict("p", READ, None),
    lambda cache: cache.clear(),
    outdate,
]
every_eviction = pytest.mark.parametrize(
    "evict", EVICTIONS, ids=["key", "method", "clear", "outdate"]
)


@every_eviction
async def test_an_answer_evicted_while_it_was_fetched_is_not_kept(evict: Any):
    store = MemoryStore()
    cache = cache_in(store)
    ticket = cache.start_fetch(READ, "x")
    await evict(cache)
    await cache.put("p", READ, "x", ticket, {"old": 1}, ttl_ms=60_000)
    assert await cache.get("p", READ, "x") is None
    assert await store.get(CacheKey(READ, "x", "p").name) is None


@every_eviction
async def test_an_answer_evicted_while_it_was_written_is_not_served(evict: Any):
    store = Slow()
    cache = cache_in(store)
    setting = store.hold("put")
    writing = asyncio.create_task(keep(cache, {"old": 1}, method=READ, key="x"))
    await asyncio.wait_for(setting.reached.wait(), BOUND)
    await evict(cache)
    await keep(cache, {"new": 1}, method=READ, key="x")  # the old answer may yet overwrite it
    done = store.hold("after put")
    setting.open.set()
    await asyncio.wait_for(done.reached.wait(), BOUND)
    assert await store.get(CacheKey(READ, "x", "p").name) is not None
    assert await cache.get("p", READ, "x") is None
    done.open.set()
    await asyncio.wait_for(writing, BOUND)
    assert await store.get(CacheKey(READ, "x", "p").name) is None
    await keep(cache, {"new": 2}, method=READ, key="x")
    assert await cache.get("p", READ, "x") == {"new": 2}


@every_eviction
async def test_an_answer_evicted_while_it_was_read_is_not_served(evict: Any):
    store = Slow()
    cache = cache_in(store)
    await keep(cache, {"old": 1}, method=READ, key="x")
    getting = store.hold("get")
    reading = asyncio.create_task(cache.get("p", READ, "x"))
    await asyncio.wait_for(getting.reached.wait(), BOUND)
    await evict(cache)
    await keep(cache, {"new": 1}, method=READ, key="x")
    getting.open.set()
    assert await asyncio.wait_for(reading, BOUND) is None
    assert await cache.get("p", READ, "x") == {"new": 1}


async def test_a_key_evicted_before_it_was_ever_seen_is_evicted_too():
    store = MemoryStore()
    await keep(cache_in(store), {"old": 1}, method=READ, key="x")
    cache = cache_in(store)
    await cache.evict("p", READ, None)
    assert await cache.get("p", READ, "x") is None


async def test_what_is_forgotten_is_fetched_again_and_never_served_stale():
    cache = cache_in(Slow())
    first, other = cache.start_fetch(READ, "0"), cache.start_fetch(READ, "other")
    await keep(cache, {"n": 1})
    for number in range(MANY + 1):
        await cache.evict("p", READ, str(number))
    for key, ticket in (("0", first), ("other", other)):
        await cache.put("p", READ, key, ticket, {"old": 1}, ttl_ms=60_000)
        assert await cache.get("p", READ, key) is None
    assert await cache.get("p", LIST) is None
    await keep(cache, {"n": 2})
    assert await cache.get("p", LIST) == {"n": 2}


async def test_evicting_a_method_holds_for_more_keys_than_are_remembered():
    store = Slow()
    cache = cache_in(store)
    for number in range(MANY + 10):
        await keep(cache, {"n": number}, method=READ, key=str(number))
    assert await cache.get("p", READ, "0") == {"n": 0}
    await cache.evict("p", READ, None)
    assert store.deletions == MANY
    for key in ("0", "1", str(MANY)):
        assert await cache.get("p", READ, key) is None


async def test_what_is_outdated_leaves_the_store_when_it_is_next_asked_for():
    store = MemoryStore()
    ours, theirs = cache_in(store), cache_in(store)
    await keep(ours, {"old": 1}, method=READ, key="x")
    await keep(theirs, {"by": "them"}, method=READ, key="y")
    for key in ("x", "y"):
        ours.invalidate(READ, key)
        assert await ours.get("p", READ, key) is None
    assert await theirs.get("p", READ, "x") is None
    assert await theirs.get("p", READ, "y") == {"by": "them"}  # never seen by us
