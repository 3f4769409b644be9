"""Where results are kept: stores of other people's making, that fail, hang, lie, or are shared."""

import asyncio
from time import monotonic
from typing import Any

import pytest

from tests.runtime._identity import named
from tests.runtime._life import config_of
from tests.runtime.test_reuse import KEPT, TOOLS, ran
from toolkeep import MemoryResultStore, ResultStore, Runtime
from toolkeep.testing import ScriptedServer


class Store:
    """Does what a test says."""

    def __init__(self, load: Any = None, save: Any = None) -> None:
        self._load, self._save = load, save
        self.asked = 0

    async def load(self, key: str) -> Any:
        self.asked += 1
        return await _does(self._load)

    async def save(self, key: str, value: bytes, seconds: float) -> Any:
        self.asked += 1
        return await _does(self._save)


async def _does(what: Any) -> Any:
    if isinstance(what, BaseException):
        raise what
    if what is asyncio.Event:
        await asyncio.Event().wait()
    return what


async def _twice(store: Any) -> int:
    """How often a server is called when the same is asked for twice."""
    async with ScriptedServer.local(era="modern", **TOOLS) as server:
        config = config_of(kit={**server.spec, **KEPT})
        async with Runtime.open(config, results=store) as runtime, asyncio.timeout(20):
            for _ in range(2):
                result = await runtime.call("kit.read", {"a": 1})
                assert result.text == '{"a": 1}'
                assert not result.cached
        return await ran(server)


@pytest.mark.parametrize(
    "trouble", [RuntimeError("s3cr3t"), TimeoutError(), asyncio.CancelledError(), asyncio.Event]
)
@pytest.mark.parametrize("step", ["load", "save"])
async def test_a_store_that_fails_or_hangs_costs_no_call(
    trouble: Any, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(**{step: trouble})
    assert await _twice(store) == 2
    assert "s3cr3t" not in caplog.text
    assert store.asked <= 2, "it is left alone for a while"


class Early(Store):
    """Raises before there is anything to await."""

    def load(self, key: str) -> Any:
        if self._load is not None:
            raise self._load
        return _does(None)

    def save(self, key: str, value: bytes, seconds: float) -> Any:
        if self._save is not None:
            raise self._save
        return _does(None)


@pytest.mark.parametrize("step", ["load", "save"])
async def test_a_store_that_fails_before_it_waits_costs_no_call(step: str) -> None:
    assert await _twice(Early(**{step: RuntimeError("no connection")})) == 2


@pytest.mark.parametrize("step", ["load", "save"])
async def test_a_store_that_takes_its_time_takes_none_that_the_call_has_not(step: str) -> None:
    async with ScriptedServer.local(era="modern", **TOOLS) as server:
        config = config_of(kit={**server.spec, **KEPT})
        store = Store(**{step: asyncio.Event})
        async with Runtime.open(config, results=store) as runtime:
            await runtime.call("kit.read", {"warm": "up"}, meta={"not": "kept"})
            began = monotonic()
            result = await runtime.call("kit.read", {"a": 1}, timeout=0.6)
            assert monotonic() - began < 0.9, "well before the second that a store has"
        assert result.text == '{"a": 1}'
        assert await ran(server) == 2


async def test_what_is_being_kept_is_kept_before_the_runtime_is_closed() -> None:
    class Slow(MemoryResultStore):
        async def save(self, key: str, value: bytes, seconds: float) -> None:
            await asyncio.sleep(0.8)
            await super().save(key, value, seconds)

    store = Slow()
    async with ScriptedServer.local(era="modern", **TOOLS) as server:
        config = config_of(kit={**server.spec, **KEPT})
        async with Runtime.open(config, results=store) as runtime:
            await runtime.call("kit.read", {"a": 1}, timeout=0.5)
            assert len(store) == 0
    assert len(store) == 1


async def test_what_has_no_address_is_shared_with_no_other_runtime() -> None:
    store = MemoryResultStore()
    async with ScriptedServer.stdio(era="modern", **TOOLS) as server:
        spec = {**server.spec, **KEPT}
        for _ in range(2):
            async with Runtime.open(config_of(kit=spec), results=store) as runtime:
                assert not (await runtime.call("kit.read", {"a": 1})).cached
                assert (await runtime.call("kit.read", {"a": 1})).cached


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"content": "text"}',
        b'{"content": [], "isError": true}',
        b'{"content": [], "resultType": "input_required"}',
        b"[" * 100_000,
        "text",
        42,
        {"content": []},
    ],
    ids=repr,
)
async def test_what_no_result_can_be_is_not_taken_for_one(junk: Any) -> None:
    assert await _twice(Store(load=junk)) == 2


@pytest.mark.requirement("F1")
async def test_two_runtimes_may_share_a_store_and_still_no_principals() -> None:
    store = MemoryResultStore()
    async with ScriptedServer.local(era="modern", **TOOLS) as server:
        config = config_of(kit={**server.spec, **KEPT})
        for _ in range(2):
            async with Runtime.open(config, results=store) as runtime:
                for caller in (named("ada"), named("bob"), None):
                    await runtime.call("kit.read", {"a": 1}, context=caller)
        assert await ran(server) == 3


class Key:
    """An authorizer: the account of one service."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def headers(
        self, server: str, principal: str | None, method: str, url: str
    ) -> dict[str, str]:
        return {"authorization": f"Bearer {self._key}"}

    async def challenged(self, status: int, headers: Any) -> bool:
        return False


async def test_two_services_with_credentials_of_their_own_share_nothing_that_has_no_principal() -> (
    None
):
    store = MemoryResultStore()
    async with ScriptedServer.local(era="modern", **TOOLS) as server:
        config = config_of(kit={**server.spec, **KEPT})
        for key in ("one", "two"):
            async with Runtime.open(config, results=store, auth=Key(key)) as runtime:
                await runtime.call("kit.read", {"a": 1})
                assert (await runtime.call("kit.read", {"a": 1})).cached
        assert await ran(server) == 2


def test_the_store_in_memory_is_one() -> None:
    assert isinstance(MemoryResultStore(), ResultStore)


async def test_nothing_is_given_back_after_its_time() -> None:
    store = MemoryResultStore()
    await store.save("a", b"x", 0.005)
    await store.save("b", b"y", 60)
    await asyncio.sleep(0.01)
    assert await store.load("a") is None
    assert await store.load("b") == b"y"
    assert len(store) == 1


@pytest.mark.requirement("F1")
async def test_what_was_used_the_longest_ago_makes_room() -> None:
    store = MemoryResultStore(max_bytes=5_000)
    for name in "abcd":
        await store.save(name, b"x" * 900, 60)
    await store.load("a")
    await store.save("e", b"x" * 900, 60)
    assert await store.load("b") is None
    assert await store.load("a") == b"x" * 900
    assert store.bytes <= 5_000


async def test_what_is_larger_than_the_bound_is_not_kept_and_pushes_nothing_out() -> None:
    store = MemoryResultStore(max_bytes=2_000)
    await store.save("a", b"x", 60)
    await store.save("b", b"x" * 2_000, 60)
    assert await store.load("a") == b"x"
    assert await store.load("b") is None


async def test_what_is_saved_again_counts_once() -> None:
    store = MemoryResultStore()
    for _ in range(10):
        await store.save("a", b"x" * 100, 60)
    assert len(store) == 1
    assert store.bytes < 1_000
    store.clear()
    assert (len(store), store.bytes) == (0, 0)
