"""A crowd in trouble: sessions are lost, callers give up, the server restarts, and still nobody
speaks in another's session and no place is lost."""

import asyncio
import random

import pytest

from tests.runtime._identity import (
    BOUND,
    Era,
    ended,
    every_era,
    house,
    kinds,
    most_alive,
    named,
    runtime_for,
    seen,
    together,
    until,
    users,
)
from toolkeep import Health, Runtime
from toolkeep.testing import Behaviour, Rule, ScriptedServer

PLACES = 3
SEEDS = pytest.mark.parametrize("seed", range(3))


async def loyal(runtime: Runtime, who: str, calls: int) -> None:
    """Calls one after the other, which must all succeed."""
    for number in range(calls):
        mine = f"{who}/{number}"
        found = await seen(runtime, named(who, who), headers={"x-call": mine})
        assert (found["authorization"], found["x-call"]) == (who, mine)


async def fickle(runtime: Runtime, who: str, chance: random.Random) -> None:
    """Calls that are given up sooner or later, whatever they are waiting for."""
    for _ in range(6):
        call = asyncio.create_task(
            runtime.call("kit.slow", {"seconds": 0.01}, context=named(who, who))
        )
        await asyncio.wait((call,), timeout=chance.choice([0, 0.001, 0.005, 0.01, 0.03]))
        call.cancel()
        await asyncio.wait((call,))


async def assert_order(server: ScriptedServer, runtime: Runtime) -> None:
    """All places can be had again, and none was anybody's but its own."""
    await until(lambda: runtime.servers[0].in_flight == 0, "everybody has gone")
    crowd = [f"late-{number}" for number in range(2 * PLACES)]
    await together(*(loyal(runtime, who, 1) for who in crowd))
    assert runtime.servers[0].sessions <= PLACES
    assert all(len(found) == 1 for found in users(await server.requests()).values())


@pytest.mark.requirement("H4")
@SEEDS
async def test_callers_who_give_up_at_any_moment_lose_no_place_and_disturb_nobody(seed: int):
    chance = random.Random(seed)
    async with house("legacy", {"max_sessions": PLACES}) as (server, runtime):
        await together(
            *(loyal(runtime, f"loyal-{number}", 5) for number in range(5)),
            *(fickle(runtime, f"fickle-{number}", chance) for number in range(10)),
        )
        await assert_order(server, runtime)
        assert most_alive(await server.requests()) <= PLACES + 1
    records = await server.requests()
    assert set(users(records)) == ended(records)
    assert kinds(records).count("initialize") == kinds(records).count("DELETE")


@pytest.mark.requirement("H4")
@SEEDS
async def test_lost_sessions_are_replaced_for_each_and_mixed_up_for_nobody(seed: int):
    chance = random.Random(seed)
    async with house("legacy", {"max_sessions": PLACES}) as (server, runtime):
        crowd = [asyncio.create_task(loyal(runtime, f"user-{n}", 10)) for n in range(10)]
        while not all(task.done() for task in crowd):
            await server.forget_sessions()
            await asyncio.sleep(chance.choice([0.02, 0.05]))
        await together(*crowd)
        await assert_order(server, runtime)


@pytest.mark.requirement("H4")
@every_era
async def test_a_server_that_restarts_serves_everybody_again(era: Era):
    async with house(era, {"max_sessions": PLACES}, health_interval=0.1) as (server, runtime):
        await together(*(loyal(runtime, f"user-{n}", 1) for n in range(6)))
        await server.restart()
        await together(*(loyal(runtime, f"user-{n}", 2) for n in range(6)))
        await until(lambda: runtime.servers[0].health is Health.HEALTHY)
        await assert_order(server, runtime)


@pytest.mark.requirement("H4")
async def test_handshakes_that_fail_now_and_then_lose_no_place():
    async with house("legacy", {"max_sessions": PLACES}) as (server, runtime):
        fault = Behaviour(status=503, headers={"retry-after": "0"})
        for skip in range(0, 20, 3):
            await server.script(Rule(method="initialize", do=fault, times=1, skip=skip))
        await together(*(loyal(runtime, f"user-{n}", 3) for n in range(12)))
        await assert_order(server, runtime)


@pytest.mark.requirement("H4")
async def test_a_crowd_that_is_cut_off_by_closing_leaves_nothing_at_the_server():
    async with ScriptedServer.local(era="legacy") as server:
        runtime = runtime_for(server, {"max_sessions": PLACES})
        await runtime.connect()
        crowd = [
            asyncio.create_task(
                runtime.call("kit.slow", {"seconds": 20}, context=named(f"user-{n}"))
            )
            for n in range(10)
        ]
        await server.requests(tool="slow", at_least=PLACES)
        async with asyncio.timeout(BOUND):
            await runtime.aclose()
            await asyncio.wait(crowd)
        assert all(task.exception() is not None for task in crowd)
        records = await server.requests()
        assert set(users(records)) == ended(records)
        assert len(await server.requests(tool="slow")) == PLACES


# -- HTTP+SSE -----------------------------------------------------------------------------------


@pytest.mark.requirement("H3", "H4")
async def test_a_crowd_on_an_older_server_has_a_stream_each_within_the_bound():
    older = {"transport": "sse"}
    async with house("legacy", {"max_sessions": PLACES}, server=older) as (server, runtime):
        await together(*(loyal(runtime, f"user-{n}", 3) for n in range(10)))
        records = await server.requests()
        calls = [record for record in records if record.rpc_method == "tools/call"]
        assert len(calls) == 30
        for call in calls:
            assert call.headers["x-call"].split("/")[0] == call.headers["authorization"]
        streams: dict[str, set[str | None]] = users(calls)
        assert len(streams) >= 10
        assert all(len(found) == 1 for found in streams.values())
        opened = [r.headers.get("authorization") for r in records if r.http_method == "GET"]
        assert set(opened) == {None, *(f"user-{n}" for n in range(10))}
        assert runtime.servers[0].sessions <= PLACES
