"""Lists of processes that share a store: one process lists, and all are told of changes."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.runtime._identity import BOUND, named, until
from tests.runtime._life import config_of
from tests.runtime.test_shared_state import PROGRAM, needs_redis
from tests.state.servers import Server, running
from toolkeep import Runtime
from toolkeep.state import MemoryStore
from toolkeep.testing import Behaviour, Rule, ScriptedServer

TOOL = {"name": "new", "inputSchema": {"type": "object"}}


@pytest.fixture
def redis(tmp_path: Path) -> Any:
    assert PROGRAM is not None
    with running(PROGRAM, tmp_path) as server:
        yield server


def runtime_of(server: ScriptedServer, state: Any, **options: Any) -> Runtime:
    return Runtime(config_of(kit={"url": server.url, "mode": "legacy"}), state=state, **options)


async def listed(server: ScriptedServer) -> int:
    return len(await server.requests("tools/list"))


async def echo(runtime: Runtime, who: str) -> None:
    await runtime.call("kit.echo", {"text": "x"}, context=named(who))


@needs_redis
async def test_processes_that_start_together_list_once(redis: Server) -> None:
    async with ScriptedServer.local(era="legacy") as server, AsyncExitStack() as stack:
        await server.script(Rule(method="tools/list", do=Behaviour(delay=0.5)))
        runtimes = [runtime_of(server, redis.url) for _ in range(6)]
        await asyncio.gather(*map(stack.enter_async_context, runtimes))
        # A process that asks after the first has begun may not take what the first gets.
        assert await listed(server) <= 2
        assert len({len(each.catalogue.tools) for each in runtimes}) == 1


@needs_redis
async def test_what_one_process_listed_for_a_principal_no_other_lists(redis: Server) -> None:
    async with ScriptedServer.local(era="legacy") as server, AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(runtime_of(server, redis.url)) for _ in range(2)
        ]
        await echo(one, "ann")
        before = len(await server.requests())
        await echo(other, "ann")
        assert len(await server.requests()) == before + 1, "the call, and nothing else"
        await echo(other, "bob")
        assert len(await server.requests("tools/list")) == 4, "two starts, ann and bob"


@needs_redis
async def test_a_change_is_heard_by_all_and_listed_once_or_twice(redis: Server) -> None:
    async with ScriptedServer.local(era="legacy") as server, AsyncExitStack() as stack:
        runtimes = [
            await stack.enter_async_context(runtime_of(server, redis.url)) for _ in range(5)
        ]
        await echo(runtimes[0], "ann")
        await echo(runtimes[1], "ann")
        before = await listed(server)
        await server.set_tools([TOOL])
        await server.notify("notifications/tools/list_changed")
        await until(lambda: all("kit.new" in each.catalogue for each in runtimes))
        assert await listed(server) - before <= 3
        # What was listed for principals before the change is outdated in every process.
        await runtimes[2].call("kit.new", {}, context=named("ann"))
        await runtimes[0].call("kit.new", {}, context=named("ann"))


async def test_a_process_that_finds_a_change_which_was_not_announced_tells_the_others() -> None:
    store = MemoryStore()
    async with ScriptedServer.local(era="legacy") as server, runtime_of(server, store) as one:
        await echo(one, "ann")
        await server.set_tools([TOOL])
        async with runtime_of(server, store) as other:
            assert "kit.new" in other.catalogue
            await until(lambda: "kit.new" in one.catalogue)
            await one.call("kit.new", {}, context=named("ann"))
            await other.call("kit.new", {}, context=named("ann"))
        assert await listed(server) == 4, "two starts, ann before and after the change"


async def test_a_list_of_a_forgotten_principal_is_not_used() -> None:
    store = MemoryStore()
    async with (
        ScriptedServer.local(era="legacy") as server,
        runtime_of(server, store) as one,
        runtime_of(server, store) as other,
    ):
        await echo(one, "ann")
        before = await listed(server)
        await one.forget("ann")
        await echo(other, "ann")
        assert await listed(server) == before + 1


async def test_equal_lists_of_many_principals_are_stored_once() -> None:
    store = MemoryStore()
    async with ScriptedServer.local(era="legacy") as server, runtime_of(server, store) as runtime:
        for number in range(5):
            await echo(runtime, f"user-{number}")
        names = [name async for name in store.scan("toolkeep:")]
        assert sum(name.startswith("toolkeep:list:") for name in names) == 4 + 5
        # The tools once for all, and what the runtime itself listed besides.
        assert sum(name.startswith("toolkeep:content:") for name in names) <= 4


async def test_a_process_that_lists_and_dies_delays_the_others_by_its_lease_at_most() -> None:
    store = MemoryStore()
    async with ScriptedServer.local(era="legacy") as server:
        await server.script(Rule(method="tools/list", times=1, do=Behaviour(hang=True)))
        first = asyncio.create_task(runtime_of(server, store).connect())
        async with asyncio.timeout(BOUND):
            while not await listed(server):
                await asyncio.sleep(0.01)
            first.cancel()
            await asyncio.wait([first])
            async with runtime_of(server, store) as runtime:
                assert "kit.echo" in runtime.catalogue


@needs_redis
async def test_without_the_store_each_process_lists_by_itself(redis: Server) -> None:
    redis.stop()
    async with (
        ScriptedServer.local(era="legacy") as server,
        runtime_of(server, redis.url) as one,
        runtime_of(server, redis.url) as other,
    ):
        assert "kit.echo" in one.catalogue
        assert "kit.echo" in other.catalogue
        assert await listed(server) == 2
