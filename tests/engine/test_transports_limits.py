"""What bounds the calls over stdio, HTTP+SSE and in-process: breaker, places, one line."""

import asyncio
import itertools
from typing import Any

import pytest

from tests.engine.helpers_tasks import BOUND, LONG, closing, outcome
from tests.engine.helpers_transports import Served, Way, every_way, serving
from toolkeep import CallNotSentInTime, CallOutcomeUnknown, CallRejected, Client, ServerUnavailable
from toolkeep.errors import Delivery
from toolkeep.testing import ScriptedServer

FRAGILE = {"breaker_threshold": 3, "breaker_cooldown": 0.3, "max_retries": 0}
HOLD = 0.06
"""Seconds that a tool keeps its answer back."""


async def break_open(server: Served, client: Client) -> None:
    await client.connect()
    await server.doom("record", "on reading", times=3)
    for _ in range(3):
        assert type(await outcome(client.call_tool("record"))) is CallOutcomeUnknown


@pytest.mark.requirement("P9")
@every_way
async def test_repeated_deaths_open_the_breaker_and_a_probe_closes_it(way: Way):
    async with serving(way, FRAGILE) as (server, client):
        await break_open(server, client)
        openings, calls = await server.openings(), await server.arrived("record")
        for _ in range(5):
            error = await outcome(client.call_tool("record"))
            assert type(error) is ServerUnavailable
            assert error.delivery is Delivery.NOT_SENT
        assert (await server.openings(), await server.arrived("record")) == (openings, calls)
        await asyncio.sleep(0.35)  # the cooldown itself: nothing announces its end
        probe = asyncio.create_task(client.call_tool("slow", {"seconds": 0.2}))
        await server.arrived("slow", at_least=1)
        assert type(await outcome(client.call_tool("record"))) is ServerUnavailable
        assert (await outcome(probe)).text == "done"
        assert (await outcome(client.call_tool("record"))).text == "recorded"
        assert await server.executions("record") == 1


@pytest.mark.requirement("P9", "S16")
@pytest.mark.parametrize("mode", ["legacy", "modern"])
async def test_failed_starts_open_the_breaker_too(mode: Any):
    async with (
        ScriptedServer.stdio(exit_at_start=1) as server,
        closing(Client({"name": "kit", **server.spec, **FRAGILE, "mode": mode})) as client,
    ):
        for starts in (1, 2, 3, 3, 3):
            assert type(await outcome(client.call_tool("record"))) is ServerUnavailable
            assert await server.starts() == starts


@pytest.mark.requirement("P9")
@every_way
async def test_what_tools_and_servers_answer_never_opens_the_breaker(way: Way):
    async with serving(way, FRAGILE) as (server, client):
        for _ in range(4):
            assert (await client.call_tool("fail", {"message": "no"})).is_error
            assert type(await outcome(client.request("no/such/method"))) is CallRejected
            slow = client.call_tool("slow", {"seconds": LONG}, timeout=0.02)
            assert isinstance(await outcome(slow), TimeoutError)
        assert (await client.call_tool("record")).text == "recorded"
        assert await server.openings() == 1


@pytest.mark.requirement("P9", "P1")
@every_way
async def test_no_more_calls_are_in_flight_than_allowed(way: Way):
    async with serving(way, {"max_in_flight": 2}) as (server, client):
        await client.connect()
        first, _ = calls = [
            asyncio.create_task(client.call_tool("slow", {"seconds": LONG})) for _ in range(2)
        ]
        await server.arrived("slow", at_least=2)
        error = await outcome(client.call_tool("record", timeout=0.1))
        assert type(error) is CallNotSentInTime
        waiting = asyncio.create_task(client.call_tool("record", {"key": "waited"}))
        first.cancel()
        assert (await outcome(waiting)).text == "recorded"
        assert await server.ledger() == {"slow": 2, "waited": 1}
        await client.aclose()
        await asyncio.wait(calls, timeout=BOUND)
        assert all(call.done() for call in calls)
        assert isinstance(calls[1].exception(), CallOutcomeUnknown)


@pytest.mark.requirement("P10")
@pytest.mark.parametrize("serialize", [True, False])
@every_way
async def test_calls_go_one_at_a_time_if_and_only_if_asked(way: Way, serialize: bool):
    async with serving(way, {"serialize": serialize}) as (server, client):
        calls = [asyncio.create_task(client.call_tool("slow", {"seconds": HOLD})) for _ in range(4)]
        assert [(await outcome(call)).text for call in calls] == ["done"] * 4
        gaps = [late - early for early, late in itertools.pairwise(await server.moments("slow"))]
        assert len(gaps) == 3
        assert all(gap >= HOLD * 0.9 for gap in gaps) == serialize


@pytest.mark.requirement("P10", "S14")
@every_way
async def test_who_fails_or_leaves_frees_the_line(way: Way):
    async with serving(way, {"serialize": True}) as (server, client):
        await client.connect()
        await server.doom("record", "after the run")
        first = asyncio.create_task(client.call_tool("slow", {"seconds": LONG}))
        await server.arrived("slow", at_least=1)
        second = asyncio.create_task(client.call_tool("record"))
        third = asyncio.create_task(client.call_tool("echo", {"text": "third"}))
        first.cancel()
        assert type(await outcome(second)) is CallOutcomeUnknown
        assert (await outcome(third)).text == "third"
