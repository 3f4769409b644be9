"""A server in trouble is left alone, and a busy one is not overrun."""

import asyncio
from typing import Any

import pytest

from tests.engine.support import encodings, eras, failure_of, talking, together
from toolkeep import CallOutcomeUnknown, CallRejected, Client, Delivery, ServerUnavailable
from toolkeep.testing import Behaviour, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("P9")

LOST = Behaviour(drop="after_body")
FRAGILE = {"breaker_threshold": 3, "breaker_cooldown": 0.3, "max_replays": 0}


def record(client: Client) -> Any:
    return client.call_tool("record")


# -- the breaker ------------------------------------------------------------------------------


async def broken_open(server: ScriptedServer, client: Client, trouble: Behaviour) -> None:
    await client.connect()
    await server.script(Rule(tool="record", times=3, do=trouble))
    for _ in range(3):
        assert isinstance(await failure_of(record(client)), CallOutcomeUnknown)
    await server.clear()


@eras
@pytest.mark.parametrize("trouble", [LOST, Behaviour(status=502)], ids=["lost", "502"])
async def test_repeated_transport_faults_open_the_breaker_and_a_probe_closes_it(
    era: Any, trouble: Behaviour
):
    async with talking(FRAGILE, era=era) as (server, client):
        await broken_open(server, client, trouble)
        error = await failure_of(record(client))
        assert isinstance(error, ServerUnavailable)
        assert error.delivery is Delivery.NOT_SENT
        assert await server.requests() == []
        await asyncio.sleep(0.35)  # the cooldown itself: nothing announces its end
        probe = asyncio.create_task(client.call_tool("slow", {"seconds": 60}))
        await server.requests("tools/call", "slow", at_least=1)
        others = await together(*(record(client) for _ in range(10)))
        assert {type(other) for other in others} == {ServerUnavailable}
        await server.hurry()
        assert (await asyncio.wait_for(probe, 5.0)).text == "done"
        assert len(await server.requests("tools/call")) == 1
        results = await together(*(record(client) for _ in range(10)))
        assert [result.text for result in results] == ["recorded"] * 10


@eras
async def test_failed_openings_open_the_breaker_too(era: Any):
    step = "initialize" if era == "legacy" else "server/discover"
    async with talking({**FRAGILE, "mode": era}, era=era) as (server, client):
        await server.script(Rule(method=step, times=3, do=Behaviour(status=502)))
        for asked in (1, 2, 3, 3, 3):
            assert isinstance(await failure_of(record(client)), ServerUnavailable)
            assert len(await server.requests()) == asked


async def test_a_probe_that_fails_keeps_the_breaker_open_for_longer():
    async with talking(FRAGILE) as (server, client):
        await broken_open(server, client, LOST)
        await server.script(Rule(tool="record", times=1, do=LOST))
        await asyncio.sleep(0.35)  # the cooldown
        assert isinstance(await failure_of(record(client)), CallOutcomeUnknown)
        await asyncio.sleep(0.35)  # the first cooldown again, which is now too short
        assert isinstance(await failure_of(record(client)), ServerUnavailable)
        assert len(await server.requests("tools/call")) == 1


@eras
@encodings
@pytest.mark.parametrize(
    "answer",
    [
        Behaviour(error={"code": -32603, "message": "no"}),
        Behaviour(status=500, error={"code": -32603, "message": "no"}),
        Behaviour(status=400, body="bad"),
        Behaviour(status=429),
        Behaviour(status=403),
        Behaviour(result={"content": [], "isError": True}),
    ],
    ids=["error", "500 with an answer", "400", "429", "403", "isError"],
)
async def test_what_is_no_transport_fault_never_opens_the_breaker(
    era: Any, encoding: Any, answer: Behaviour
):
    async with talking(FRAGILE, era=era, encoding=encoding) as (server, client):
        await client.connect()
        await server.script(Rule(tool="record", times=10, do=answer))
        await together(*(record(client) for _ in range(10)))
        assert len(await server.requests("tools/call")) == 10
        assert (await record(client)).success


async def test_one_success_between_faults_keeps_the_breaker_closed():
    async with talking(FRAGILE) as (server, client):
        await client.connect()
        for _ in range(3):
            await server.script(Rule(tool="record", times=2, do=LOST))
            for _ in range(2):
                assert isinstance(await failure_of(record(client)), CallOutcomeUnknown)
            assert (await record(client)).text == "recorded"


async def test_calls_that_were_cancelled_never_open_the_breaker():
    async with talking(FRAGILE) as (server, client):
        await client.connect()
        for turn in range(5):
            call = asyncio.create_task(client.call_tool("slow", {"seconds": 30}))
            await server.requests("tools/call", "slow", at_least=turn + 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert (await record(client)).text == "recorded"


# -- a place in flight ------------------------------------------------------------------------


@eras
@encodings
async def test_no_more_calls_than_allowed_are_in_flight(era: Any, encoding: Any):
    settings = {"max_in_flight": 3}
    async with talking(settings, era=era, encoding=encoding) as (server, client):
        await client.connect()
        calls = (client.call_tool("slow", {"seconds": 0.3}) for _ in range(6))
        results = await together(*calls)
        assert [result.text for result in results] == ["done"] * 6
        seen = [request.at for request in await server.requests("tools/call")]
        assert seen[2] - seen[0] < 0.29
        for earlier, later in zip(seen, seen[3:], strict=False):
            assert later - earlier >= 0.29


async def test_a_call_that_fails_gives_its_place_back():
    async with talking({"max_in_flight": 1, "max_replays": 0}) as (server, client):
        await client.connect()
        refused = Behaviour(error={"code": -32000, "message": "no"})
        await server.script(
            Rule(tool="record", times=1, do=LOST), Rule(tool="record", times=1, do=refused)
        )
        outcomes = await together(record(client), record(client), record(client))
        kinds = {type(outcome) for outcome in outcomes[:2]}
        assert kinds == {CallOutcomeUnknown, CallRejected}
        assert outcomes[2].text == "recorded"
