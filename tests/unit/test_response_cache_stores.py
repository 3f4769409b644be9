"""The response cache above a store that fails: a miss, told once, never a failed request."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from mcp.client.caching import CacheEntry, CacheKey, InMemoryResponseCacheStore

from toolkeep._engine.caching import ResponseCache

BOUND = 10.0
LIST = "tools/list"
EVERY = ("get", "set", "delete")


class Broken(InMemoryResponseCacheStore):
    """Does something else than it should in those operations that are named."""

    def __init__(self, does: Callable[[], Awaitable[Any]], *operations: str) -> None:
        super().__init__()
        self.does, self.operations = does, set(operations)

    async def get(self, key: CacheKey) -> Any:
        return await (self.does() if "get" in self.operations else super().get(key))

    async def set(self, key: CacheKey, entry: CacheEntry) -> None:
        await (self.does() if "set" in self.operations else super().set(key, entry))

    async def delete(self, key: CacheKey) -> None:
        await (self.does() if "delete" in self.operations else super().delete(key))


async def fail() -> None:
    raise ConnectionError("redis://ann:s3cret@cache")


async def cancel_itself() -> None:
    raise asyncio.CancelledError("by itself")


async def hang() -> None:
    await asyncio.Event().wait()


def answering(value: Any) -> Callable[[], Awaitable[Any]]:
    async def answer() -> Any:
        return value

    return answer


async def keep(cache: ResponseCache, value: dict[str, Any], *, ttl_ms: float = 60_000) -> None:
    ticket = cache.begin(LIST)
    await cache.put("p", LIST, "", ticket, value, ttl_ms=ttl_ms, scope="private")


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.name, record.levelname) for record in caplog.records]


WARNING = ("toolkeep.client", "WARNING")


@pytest.mark.parametrize("does", [fail, cancel_itself, hang])
async def test_a_store_that_does_not_work_is_a_miss(
    does: Callable[[], Awaitable[Any]], caplog: pytest.LogCaptureFixture
):
    cache = ResponseCache(Broken(does, *EVERY))
    asked = (cache.get("p", LIST), keep(cache, {"n": 1}), cache.evict("p", LIST, ""))
    ends = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), BOUND)
    assert ends == [None, None, None]
    assert told(caplog) == [WARNING] * 3
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param("a string", id="no entry"),
        pytest.param({"value": {"n": 1}}, id="a dictionary"),
        pytest.param(SimpleNamespace(value={"n": 1}), id="half an entry"),
        pytest.param(CacheEntry("text", "private", 2e9), id="no answer"),
        pytest.param(SimpleNamespace(value={}, expires_at="tomorrow"), id="no time"),
        pytest.param(CacheEntry({"n": 1}, "private", float("nan")), id="a time that is none"),
        pytest.param(CacheEntry({"n": 1}, "private", None), id="never fresh"),
    ],
)
async def test_nonsense_is_a_miss(nonsense: Any):
    cache = ResponseCache(Broken(answering(nonsense), "get"))
    assert await cache.get("p", LIST) is None


async def test_an_answer_that_cannot_be_copied_is_not_kept():
    endless: dict[str, Any] = {}
    inner = endless
    for _ in range(5000):
        inner["in"] = inner = {}
    cache = ResponseCache()
    await keep(cache, endless)
    assert await cache.get("p", LIST) is None


async def test_trouble_is_told_once_until_it_is_over(caplog: pytest.LogCaptureFixture):
    store = Broken(fail, "get")
    cache = ResponseCache(store)
    for _ in range(3):
        await cache.get("p", LIST)
        await keep(cache, {"n": 1})  # that another operation works does not end the burst
    assert told(caplog) == [WARNING]
    store.operations.clear()
    assert await cache.get("p", LIST) == {"n": 1}
    store.operations.add("get")
    assert await cache.get("p", LIST) is None
    assert told(caplog) == [WARNING] * 2


async def test_what_could_not_be_deleted_is_not_served():
    store = Broken(fail, "delete")
    cache = ResponseCache(store)
    await keep(cache, {"old": 1})
    await cache.evict("p", LIST)
    assert await store.get(CacheKey(LIST, "", "p")) is not None
    assert await cache.get("p", LIST) is None
    await keep(cache, {"new": 1})
    assert await cache.get("p", LIST) == {"new": 1}


async def test_what_could_not_be_replaced_is_not_served():
    store = Broken(fail)
    cache = ResponseCache(store)
    await keep(cache, {"old": 1})
    store.operations.add("set")
    await keep(cache, {"new": 1})
    assert await cache.get("p", LIST) is None
    store.operations.clear()
    await keep(cache, {"newer": 1})
    assert await cache.get("p", LIST) == {"newer": 1}


@pytest.mark.parametrize("operation", EVERY)
async def test_a_cancellation_reaches_the_caller(operation: str, caplog: pytest.LogCaptureFixture):
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await hang()

    cache = ResponseCache(Broken(wait, operation))
    asking = {
        "get": lambda: cache.get("p", LIST),
        "set": lambda: keep(cache, {"n": 1}),
        "delete": lambda: cache.evict("p", LIST),
    }
    task = asyncio.ensure_future(asking[operation]())
    await asyncio.wait_for(begun.wait(), BOUND)
    task.cancel()
    await asyncio.wait((task,), timeout=BOUND)
    assert task.cancelled()
    assert not caplog.records


async def test_after_a_cancelled_write_the_next_one_is_kept():
    store = Broken(hang, "set")
    cache = ResponseCache(store)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(keep(cache, {"n": 1}), 0.05)
    store.operations.clear()
    await keep(cache, {"n": 2})
    assert await cache.get("p", LIST) == {"n": 2}
