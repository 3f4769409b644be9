"""Breakers and retry budgets of processes that share a store: one probe, one budget."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.runtime._identity import BOUND, failure_of
from tests.runtime._life import config_of
from tests.runtime.test_shared_state import PROGRAM, needs_redis
from tests.state.servers import Server, running
from toolkeep import Runtime
from toolkeep.errors import ServerUnavailable
from toolkeep.state import MemoryStore
from toolkeep.testing import Behaviour, Rule, ScriptedServer

BROKEN = Rule(tool="record", do=Behaviour(drop="before_body", reset=True))
ASLEEP = 30.0
"""Seconds of a breaker that is not to wake up in this test."""


@pytest.fixture
def redis(tmp_path: Path) -> Any:
    assert PROGRAM is not None
    with running(PROGRAM, tmp_path) as server:
        yield server


async def fleet(
    stack: AsyncExitStack, url: str, state: Any, count: int = 3, **spec: Any
) -> list[Runtime]:
    settings = {"url": url, "mode": "legacy", "breaker_threshold": 2, "max_retries": 0, **spec}
    config = config_of(kit=settings)
    # Health checks could be the probe, in place of a call.
    alone: Any = {"health_interval": None, "backoff": None}
    return [
        await stack.enter_async_context(Runtime.open(config, state=state, **alone))
        for _ in range(count)
    ]


async def fail(runtime: Runtime) -> Any:
    return await failure_of(runtime.call("kit.record", {"key": "x"}))


def is_refused(error: Any) -> bool:
    return isinstance(error, ServerUnavailable) and "is not tried for" in str(error)


async def sent(server: ScriptedServer) -> int:
    return len(await server.requests("tools/call"))


async def until_refused(runtime: Runtime) -> None:
    async with asyncio.timeout(BOUND):
        while not is_refused(await fail(runtime)):
            await asyncio.sleep(0.01)


@needs_redis
async def test_a_breaker_that_opens_in_one_process_opens_in_all(redis: Server) -> None:
    async with ScriptedServer.local(era="legacy") as server, AsyncExitStack() as stack:
        one, *others = await fleet(stack, server.url, redis.url, breaker_cooldown=ASLEEP)
        await server.script(BROKEN)
        for _ in range(2):
            assert not is_refused(await fail(one))
        for other in others:
            await until_refused(other)
        before = await sent(server)
        for runtime in (one, *others):
            assert is_refused(await fail(runtime))
        assert await sent(server) == before


async def test_one_process_probes_for_all_and_its_success_closes_all() -> None:
    async with ScriptedServer.local(era="legacy") as server, AsyncExitStack() as stack:
        runtimes = await fleet(stack, server.url, MemoryStore(), count=5, breaker_cooldown=0.5)
        await server.script(BROKEN)
        await fail(runtimes[0])
        for runtime in runtimes:
            await until_refused(runtime)
        await server.clear()
        asked: list[asyncio.Task[Any]] = []
        async with asyncio.timeout(BOUND):
            while not await sent(server):
                asked += [asyncio.create_task(outcome_of(each)) for each in runtimes]
                await asyncio.sleep(0.1)
        asked += [asyncio.create_task(outcome_of(each)) for each in runtimes]
        # The probe runs until all others were answered.
        async with asyncio.timeout(BOUND):
            while sum(task.done() for task in asked) < len(asked) - 1:
                await asyncio.sleep(0.01)
        await server.skip_delays()
        outcomes = await asyncio.gather(*asked)
        assert outcomes.count(None) == await sent(server) == 1, "one probe for the fleet"
        assert all(map(is_refused, filter(None, outcomes)))
        for runtime in runtimes:
            async with asyncio.timeout(BOUND):
                while await outcome_of(runtime) is not None:
                    await asyncio.sleep(0.01)


async def outcome_of(runtime: Runtime) -> Exception | None:
    try:
        await runtime.call("kit.slow", {"seconds": ASLEEP}, timeout=2 * ASLEEP)
    except ServerUnavailable as error:
        return error
    return None


# -- retries --------------------------------------------------------------------------------------


async def test_processes_have_one_budget_of_retries() -> None:
    async with ScriptedServer.local(era="legacy") as server, AsyncExitStack() as stack:
        spec = {"max_retries": 1, "retry_burst": 3, "retry_rate": 0.001, "breaker_threshold": 0}
        runtimes = await fleet(
            stack, server.url, MemoryStore(), **spec, retry_tools={"record": "always"}
        )
        await server.script(BROKEN)
        for runtime in (*runtimes, *runtimes):
            await fail(runtime)
        assert await sent(server) == 6 + 3, "six calls, and three retries for all of them"


@needs_redis
@pytest.mark.parametrize(("on_loss", "retries"), [("open", 3), ("closed", 0)])
async def test_when_the_store_is_lost_retries_are_counted_in_each_process_or_refused(
    redis: Server, on_loss: str, retries: int
) -> None:
    async with ScriptedServer.local(era="legacy") as server, AsyncExitStack() as stack:
        spec = {"max_retries": 1, "retry_burst": 3, "retry_rate": 0.001, "breaker_threshold": 0}
        spec |= {"retry_tools": {"record": "always"}, "on_store_loss": on_loss}
        (runtime,) = await fleet(stack, server.url, redis.url, 1, **spec)
        await server.script(BROKEN)
        redis.stop()
        for _ in range(4):
            await fail(runtime)
        assert await sent(server) == 4 + retries
