"""Where results are kept: in a store that processes share, that fails, hangs or lies; or here."""

import asyncio
import json
from time import monotonic
from typing import Any

import pytest

from tests.runtime._identity import named
from tests.runtime._life import config_of
from tests.runtime.test_result_cache import KEPT, TOOLS, ran
from toolkeep import Runtime
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.state import MemoryStore
from toolkeep.state.cache import Cache
from toolkeep.state.shared import SharedState
from toolkeep.testing import ScriptedServer


class Store(MemoryStore):
    """Does what a test says, with results alone."""

    def __init__(self, get: Any = None, put: Any = None) -> None:
        super().__init__()
        self._get, self._put = get, put
        self.asked = 0

    async def get(self, key: str) -> Any:
        if ":result:" in key and self._get is not None:
            self.asked += 1
            return await _does(self._get)
        return await super().get(key)

    async def put(self, key: str, value: bytes, **options: Any) -> Any:
        if ":result:" in key and self._put is not None:
            self.asked += 1
            return await _does(self._put)
        return await super().put(key, value, **options)


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
        async with Runtime.open(config, state=store) as runtime, asyncio.timeout(20):
            for _ in range(2):
                result = await runtime.call("kit.read", {"a": 1})
                assert result.text == '{"a": 1}'
                assert not result.cached
        return await ran(server)


@pytest.mark.parametrize(
    "trouble", [RuntimeError("s3cr3t"), TimeoutError(), asyncio.CancelledError(), asyncio.Event]
)
@pytest.mark.parametrize("step", ["get", "put"])
async def test_a_store_that_fails_or_hangs_costs_no_call(
    trouble: Any, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(**{step: trouble})
    assert await _twice(store) == 2
    assert "s3cr3t" not in caplog.text
    assert store.asked <= 2, "it is left alone for a while"


@pytest.mark.parametrize("step", ["get", "put"])
async def test_a_store_takes_no_more_time_than_a_quarter_of_a_second(step: str) -> None:
    async with ScriptedServer.local(era="modern", **TOOLS) as server:
        config = config_of(kit={**server.spec, **KEPT})
        store = Store(**{step: asyncio.Event})
        async with Runtime.open(config, state=store) as runtime:
            await runtime.call("kit.read", {"warm": "up"}, meta={"not": "kept"})
            began = monotonic()
            result = await runtime.call("kit.read", {"a": 1}, timeout=0.3)
            assert monotonic() - began < 2.0
        assert result.text == '{"a": 1}'
        assert await ran(server) == 2


async def test_what_is_being_kept_is_kept_before_the_runtime_is_closed() -> None:
    class Slow(MemoryStore):
        async def put(self, key: str, value: bytes, **options: Any) -> Any:
            if ":result:" in key:
                writing.set()
                await go_on.wait()
            return await super().put(key, value, **options)

    store, writing, go_on = Slow(), asyncio.Event(), asyncio.Event()
    async with ScriptedServer.local(era="modern", **TOOLS) as server:
        config = config_of(kit={**server.spec, **KEPT})
        async with Runtime.open(config, state=store) as runtime:
            call = asyncio.create_task(runtime.call("kit.read", {"a": 1}, timeout=20))
            await writing.wait()
            call.cancel()
            await asyncio.wait((call,))
            asyncio.get_running_loop().call_later(0.05, go_on.set)
    assert [key async for key in store.scan("toolkeep:result:")]


async def test_what_has_no_address_is_shared_with_no_other_runtime() -> None:
    store = MemoryStore()
    async with ScriptedServer.stdio(era="modern", **TOOLS) as server:
        spec = {**server.spec, **KEPT}
        for _ in range(2):
            async with Runtime.open(config_of(kit=spec), state=store) as runtime:
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
    ],
    ids=lambda junk: repr(junk[:30]),
)
@pytest.mark.parametrize("stamped", [True, False])
async def test_what_no_result_can_be_is_not_taken_for_one(junk: bytes, stamped: bool) -> None:
    store = MemoryStore()
    async with ScriptedServer.local(era="modern", **TOOLS) as server:
        config = config_of(kit={**server.spec, **KEPT})
        async with Runtime.open(config, state=store) as runtime:
            await runtime.call("kit.read", {"a": 1})
            (key,) = [key async for key in store.scan("toolkeep:result:")]
            entry = await store.get(key)
            assert entry is not None
            stamp = entry.value.partition(b"\n")[0] + b"\n" if stamped else b""
            await store.put(key, stamp + junk)
            assert not (await runtime.call("kit.read", {"a": 1})).cached
        assert await ran(server) == 2


@pytest.mark.requirement("F1")
async def test_two_runtimes_may_share_a_store_and_still_no_principals() -> None:
    store = MemoryStore()
    async with ScriptedServer.local(era="modern", **TOOLS) as server:
        config = config_of(kit={**server.spec, **KEPT})
        for _ in range(2):
            async with Runtime.open(config, state=store) as runtime:
                for caller in (named("ada"), named("bob"), None):
                    await runtime.call("kit.read", {"a": 1}, context=caller)
        assert await ran(server) == 3


@pytest.mark.requirement("F1")
async def test_what_one_process_writes_ends_what_the_others_kept() -> None:
    store = MemoryStore()
    async with ScriptedServer.local(era="modern", **TOOLS) as server:
        config = config_of(kit={**server.spec, **KEPT})
        async with (
            Runtime.open(config, state=store) as one,
            Runtime.open(config, state=store) as other,
        ):
            await one.call("kit.read", {"a": 1})
            assert (await other.call("kit.read", {"a": 1})).cached
            await one.call("kit.record", {"key": "written"})
            assert not (await other.call("kit.read", {"a": 1})).cached
            assert (await one.call("kit.read", {"a": 1})).cached, "and goes on being shared"


@pytest.mark.requirement("F1")
async def test_what_one_process_forgets_is_used_by_none() -> None:
    store = MemoryStore()
    async with ScriptedServer.local(era="modern", **TOOLS) as server:
        config = config_of(kit={**server.spec, **KEPT})
        async with (
            Runtime.open(config, state=store) as one,
            Runtime.open(config, state=store) as other,
        ):
            for who in ("ada", "bob"):
                await one.call("kit.read", {"a": 1}, context=named(who))
            await one.forget("ada")
            assert not (await other.call("kit.read", {"a": 1}, context=named("ada"))).cached
            assert (await other.call("kit.read", {"a": 1}, context=named("bob"))).cached


class Key:
    """An authorizer: the account of one service."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def headers(self, request: AuthRequest) -> dict[str, str]:
        return {"authorization": f"Bearer {self._key}"}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        return False


async def test_two_services_with_credentials_of_their_own_share_nothing_that_has_no_principal() -> (
    None
):
    store = MemoryStore()
    async with ScriptedServer.local(era="modern", **TOOLS) as server:
        config = config_of(kit={**server.spec, **KEPT})
        for key in ("one", "two"):
            async with Runtime.open(config, state=store, auth=Key(key)) as runtime:
                await runtime.call("kit.read", {"a": 1})
                assert (await runtime.call("kit.read", {"a": 1})).cached
        assert await ran(server) == 2


async def test_a_key_tells_nothing_of_caller_and_arguments() -> None:
    store = MemoryStore()
    async with ScriptedServer.local(era="modern", **TOOLS) as server:
        config = config_of(kit={**server.spec, **KEPT})
        async with Runtime.open(config, state=store) as runtime:
            await runtime.call("kit.read", {"secret": "s3cr3t"}, context=named("ada"))
    keys = json.dumps([key async for key in store.scan("")])
    assert keys != "[]"
    assert "s3cr3t" not in keys
    assert "ada" not in keys


# -- in this process ------------------------------------------------------------------------------


async def kept(cache: Cache, key: str) -> bytes | None:
    return (await cache.load(key, ("mark",)))[0]


async def keep(cache: Cache, key: str, value: bytes, ttl: float = 60) -> bool:
    return await cache.save(key, value, (await cache.load(key, ("mark",)))[1], ttl)


async def test_nothing_is_given_back_after_its_time() -> None:
    cache = Cache(SharedState())
    await keep(cache, "a", b"x", 0.005)
    await keep(cache, "b", b"y")
    await asyncio.sleep(0.01)
    assert await kept(cache, "a") is None
    assert await kept(cache, "b") == b"y"
    assert len(cache) == 1


@pytest.mark.requirement("F1")
async def test_what_was_used_the_longest_ago_makes_room() -> None:
    cache = Cache(SharedState(), max_bytes=5_000)
    for name in "abcd":
        await keep(cache, name, b"x" * 900)
    await kept(cache, "a")
    await keep(cache, "e", b"x" * 900)
    assert await kept(cache, "b") is None
    assert await kept(cache, "a") == b"x" * 900
    assert cache.bytes <= 5_000


async def test_what_is_larger_than_the_bound_is_not_kept_and_pushes_nothing_out() -> None:
    cache = Cache(SharedState(), max_bytes=2_000)
    assert await keep(cache, "a", b"x")
    assert not await keep(cache, "b", b"x" * 2_000)
    assert await kept(cache, "a") == b"x"


async def test_what_is_saved_again_counts_once() -> None:
    cache = Cache(SharedState())
    for _ in range(10):
        await keep(cache, "a", b"x" * 100)
    assert len(cache) == 1
    assert cache.bytes < 1_000
    assert await cache.delete("a")
    assert (len(cache), cache.bytes) == (0, 0)


@pytest.mark.parametrize("state", [None, MemoryStore()], ids=["here", "shared"])
async def test_what_was_made_before_its_mark_was_moved_is_not_kept(
    state: MemoryStore | None,
) -> None:
    cache = Cache(SharedState(state))
    _, stamp = await cache.load("a", ("mark",))
    await cache.move("mark")
    await cache.save("a", b"old", stamp, 60)
    assert await kept(cache, "a") is None
    await keep(cache, "a", b"new\nand more")
    assert await kept(cache, "a") == b"new\nand more"


async def test_marks_that_are_dropped_make_nothing_valid_again() -> None:
    cache = Cache(SharedState())
    await cache.move("mark")
    _, stamp = await cache.load("a", ())
    await cache.save("a", b"old", stamp, 60)
    for number in range(5000):
        await cache.move(f"mark {number}")
    assert (await cache.load("a", ()))[0] is None
