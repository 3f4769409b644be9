"""The response cache above a store that fails: a miss, told once, never a failed request."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from toolkeep._client.response_cache import CacheKey, ResponseCache
from toolkeep.state import MemoryStore
from toolkeep.state import shared as shared_state
from toolkeep.state.shared import SharedState, forgotten_mark

BOUND = 10.0
LIST = "tools/list"
EVERY = ("get", "put", "delete")
NAME = CacheKey(LIST, "", "p").name


class Broken(MemoryStore):
    """Does something else than it should in those operations that are named."""

    def __init__(self, does: Callable[[], Awaitable[Any]], *operations: str) -> None:
        super().__init__()
        self.does, self.operations = does, set(operations)

    async def get(self, key: str) -> Any:
        return await (self.does() if "get" in self.operations else super().get(key))

    async def put(self, key: str, value: bytes, **options: Any) -> Any:
        doing = self.does() if "put" in self.operations else super().put(key, value, **options)
        return await doing

    async def delete(self, key: str, **options: Any) -> Any:
        return await (self.does() if "delete" in self.operations else super().delete(key))


async def fail() -> None:
    raise ConnectionError("redis://ann:s3cret@cache")


async def cancel_itself() -> None:
    raise asyncio.CancelledError("by itself")


async def hang() -> None:
    await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def no_cooldown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_state, "COOLDOWN", 0.0)


def cache_in(store: MemoryStore) -> ResponseCache:
    return ResponseCache(SharedState(store))


async def keep(cache: ResponseCache, value: dict[str, Any], *, ttl_ms: float = 60_000) -> None:
    ticket = cache.start_fetch(LIST)
    await cache.put("p", LIST, "", ticket, value, ttl_ms=ttl_ms)


@pytest.mark.parametrize("does", [fail, cancel_itself, hang])
async def test_a_store_that_does_not_work_is_a_miss(
    does: Callable[[], Awaitable[Any]], caplog: pytest.LogCaptureFixture
):
    cache = cache_in(Broken(does, *EVERY))
    asked = (cache.get("p", LIST), keep(cache, {"n": 1}), cache.evict("p", LIST, ""))
    ends = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), BOUND)
    assert ends == [None, None, None]
    told = [(record.name, record.levelname) for record in caplog.records]
    assert told == [("toolkeep.state", "WARNING")]
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    "nonsense",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b'{"value": {"n": 1}}',
        b'{"value": "text", "expires_at": 2e9}',
        b'{"value": {}, "expires_at": "tomorrow"}',
        b'{"value": {"n": 1}, "expires_at": NaN}',
        b'{"value": {"n": 1}, "expires_at": null}',
    ],
    ids=lambda text: repr(text[:30]),
)
@pytest.mark.parametrize("stamped", [True, False])
async def test_nonsense_is_a_miss(nonsense: bytes, stamped: bool):
    store = MemoryStore()
    cache = cache_in(store)
    await keep(cache, {"n": 1})
    entry = await store.get(NAME)
    assert entry is not None
    stamp = entry.value.partition(b"\n")[0] + b"\n" if stamped else b""
    await store.put(NAME, stamp + nonsense)
    assert await cache.get("p", LIST) is None


async def test_an_answer_that_cannot_be_written_is_not_kept():
    endless: dict[str, Any] = {}
    inner = endless
    for _ in range(100_000):
        inner["in"] = inner = {}
    cache = ResponseCache()
    await keep(cache, endless)
    assert await cache.get("p", LIST) is None


async def test_an_answer_is_as_it_was_in_another_process():
    store = MemoryStore()
    value = {"items": [{"name": "é", "n": 1.0, "none": None}], "ttl": 60.0, "public": True}
    await keep(cache_in(store), value)
    found = await cache_in(store).get("p", LIST)
    assert found == value
    assert json.dumps(found) == json.dumps(value)


async def test_what_a_forgotten_principal_was_told_is_a_miss_everywhere():
    store, mark = MemoryStore(), forgotten_mark("ann")
    ours, theirs = (ResponseCache(SharedState(store), mark) for _ in range(2))
    assert await theirs.get("p", LIST) is None  # and is being fetched
    await keep(ours, {"n": 1})
    assert await theirs.get("p", LIST) == {"n": 1}
    await store.put(mark, b"")
    assert await ours.get("p", LIST) is None
    assert await theirs.get("p", LIST) is None
    await keep(ours, {"n": 2})
    assert await theirs.get("p", LIST) == {"n": 2}


async def test_what_could_not_be_deleted_is_not_served():
    store = Broken(fail, "delete")
    cache = cache_in(store)
    await keep(cache, {"old": 1})
    await cache.evict("p", LIST)
    assert await store.get(NAME) is not None
    assert await cache.get("p", LIST) is None
    await keep(cache, {"new": 1})
    assert await cache.get("p", LIST) == {"new": 1}


async def test_what_could_not_be_replaced_is_not_served():
    store = Broken(fail)
    cache = cache_in(store)
    await keep(cache, {"old": 1})
    store.operations.add("put")
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

    cache = cache_in(Broken(wait, operation))
    asking = {
        "get": lambda: cache.get("p", LIST),
        "put": lambda: keep(cache, {"n": 1}),
        "delete": lambda: cache.evict("p", LIST),
    }
    task = asyncio.ensure_future(asking[operation]())
    await asyncio.wait_for(begun.wait(), BOUND)
    task.cancel()
    await asyncio.wait((task,), timeout=BOUND)
    assert task.cancelled()
    assert not caplog.records


async def test_after_a_cancelled_write_the_next_one_is_kept():
    store = Broken(hang, "put")
    cache = cache_in(store)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(keep(cache, {"n": 1}), 0.05)
    store.operations.clear()
    await keep(cache, {"n": 2})
    assert await cache.get("p", LIST) == {"n": 2}
