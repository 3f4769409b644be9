"""What a call may take: its one deadline, its replays, and its server's patience."""

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from itertools import pairwise
from typing import Any

import pytest

from tests.engine.support import (
    client_for,
    eras,
    failure_of,
    talking,
    together,
)
from toolkeep import (
    CallNotDelivered,
    CallNotSentInTime,
    CallOutcomeUnknown,
    CallTimedOut,
    Client,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep._rules.backoff import MIN_PAUSE
from toolkeep.errors import Delivery
from toolkeep.events import Event, Retrying
from toolkeep.testing import Behaviour, FaultProxy, Rule, ScriptedServer

KEY = "the one call"
LOST = Behaviour(drop="after_body")


def record(client: Client, tool: str = "record", **more: Any) -> Any:
    return client.call_tool(tool, {"key": KEY}, **more)


def busy(retry_after: str, status: int = 429) -> Rule:
    wait = Behaviour(status=status, headers={"retry-after": retry_after})
    return Rule(method="tools/call", times=1, do=wait)


def waits_of(client: Client) -> list[float]:
    """What the client's calls will wait between attempts."""
    waits: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, Retrying):
            waits.append(event.delay)

    client.observe(note, listen=False)
    return waits


# -- one deadline -----------------------------------------------------------------------------


@pytest.mark.requirement("P3")
async def test_one_deadline_covers_connecting_and_backing_off():
    async with ScriptedServer.local() as server, FaultProxy.to("127.0.0.1", server.port) as proxy:
        proxy.refuse()
        client = client_for(proxy.url(), {"max_retries": 100, "breaker_threshold": 0})
        started = time.monotonic()
        error = await failure_of(record(client, timeout=0.8))
        took = time.monotonic() - started
        await client.aclose()
    assert isinstance(error, ServerUnavailable | CallNotDelivered)
    assert error.delivery is Delivery.NOT_SENT
    assert 0.2 <= took < 1.3


@pytest.mark.requirement("P3", "P1")
async def test_a_deadline_that_passes_while_a_session_is_replaced_is_not_delivered():
    async with talking(era="legacy") as (server, client):
        await client.connect()
        await server.forget_sessions()
        await server.script(Rule(method="initialize", times=1, do=Behaviour(delay=0.8)))
        error = await failure_of(record(client, timeout=0.3))
        assert isinstance(error, CallNotSentInTime)
        assert error.delivery in (Delivery.NOT_SENT, Delivery.REFUSED)
        assert await server.executions(KEY) == 0
        assert (await record(client)).attempts == 1
        assert len(await server.requests("initialize")) == 2


@pytest.mark.requirement("P3")
@pytest.mark.parametrize("mode", ["auto", "legacy", "modern"])
async def test_each_opening_is_bounded_by_the_connect_timeout(mode: str):
    settings = {"mode": mode, "timeouts": {"connect": 0.3}, "max_retries": 1}
    async with talking(settings) as (server, client):
        for step in ("initialize", "server/discover"):
            await server.script(Rule(method=step, do=Behaviour(hang=True)))
        started = time.monotonic()
        error = await failure_of(record(client))
        assert isinstance(error, ServerUnavailable)
        assert error.delivery is Delivery.NOT_SENT
        assert 0.6 <= time.monotonic() - started < 2.0
        assert await server.requests("tools/call") == []


@pytest.mark.requirement("P3")
@eras
async def test_one_deadline_covers_all_attempts_of_a_call(era: Any):
    async with talking({"max_retries": 100, "breaker_threshold": 0}, era=era) as (server, client):
        await client.list_tools()
        slow = Behaviour(drop="after_run", delay=0.2)
        await server.script(Rule(tool="record_read_only", do=slow))
        started = time.monotonic()
        error = await failure_of(record(client, "record_read_only", timeout=0.9))
        assert time.monotonic() - started < 1.4
        assert isinstance(error, CallOutcomeUnknown)
        assert 2 <= await server.executions(KEY) <= 4


@pytest.mark.requirement("P3")
async def test_the_configured_deadline_counts_when_the_call_names_none():
    async with talking({"timeouts": {"call": 0.3}}) as (server, client):
        await server.script(Rule(tool="record", do=Behaviour(hang=True)))
        async with asyncio.timeout(2.0):
            assert isinstance(await failure_of(record(client)), CallTimedOut)


def steps(client: Client, count: int, timeout: float) -> Any:
    return client.call_tool("steps", {"count": count, "gap": 0.2, "key": KEY}, timeout=timeout)


@pytest.mark.requirement("P3")
@eras
@pytest.mark.parametrize("extend", [True, False])
async def test_progress_extends_the_deadline_only_when_asked_to(era: Any, extend: bool):
    settings = {"timeouts": {"extend_on_progress": extend}}
    async with talking(settings, era=era, encoding="sse") as (server, client):
        await client.connect()
        (outcome,) = await together(steps(client, count=6, timeout=0.6))
        assert isinstance(outcome, CallTimedOut) != extend
        assert await server.executions(KEY) == 1


@pytest.mark.requirement("P3")
@eras
async def test_progress_extends_the_deadline_no_further_than_the_cap(era: Any):
    settings = {"timeouts": {"extend_on_progress": True, "max_call": 1.0}}
    async with talking(settings, era=era, encoding="sse") as (_, client):
        await client.connect()
        started = time.monotonic()
        error = await failure_of(steps(client, count=60, timeout=0.6))
        assert isinstance(error, CallTimedOut)
        assert 0.8 <= time.monotonic() - started < 1.5


# -- Retry-After ------------------------------------------------------------------------------


@pytest.mark.requirement("P4")
@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_wins_over_our_own_backoff(status: int):
    async with talking() as (server, client):
        await server.script(busy("0.7", status))
        assert (await record(client)).attempts == 2
        first, second = await server.requests("tools/call")
        assert 0.65 <= second.at - first.at < 1.5
        assert await server.executions(KEY) == 1


@pytest.mark.requirement("P4")
async def test_a_server_that_asks_for_no_wait_is_given_the_shortest_there_is():
    async with talking() as (server, client):
        waits = waits_of(client)
        await server.script(busy("0"))
        assert (await record(client)).attempts == 2
        assert waits == [MIN_PAUSE]


@pytest.mark.requirement("P4")
@eras
async def test_retry_after_counts_for_the_handshake_too(era: Any):
    step = "initialize" if era == "legacy" else "server/discover"
    async with talking({"mode": era}, era=era) as (server, client):
        wait = Behaviour(status=503, headers={"retry-after": "0.6"})
        await server.script(Rule(method=step, times=1, do=wait))
        assert (await record(client)).attempts == 2
        first, second = await server.requests(step)
        assert 0.55 <= second.at - first.at < 1.5


@pytest.mark.requirement("P4")
async def test_retry_after_may_be_a_date():
    async with talking() as (server, client):
        await client.connect()
        await server.script(busy(formatdate(time.time() + 2.0, usegmt=True)))
        assert (await record(client)).attempts == 2
        first, second = await server.requests("tools/call")
        assert 0.5 <= second.at - first.at < 2.5  # dates are in whole seconds


@pytest.mark.requirement("P4")
@pytest.mark.parametrize(
    "asked",
    [lambda: "3600", lambda: formatdate(time.time() + 3600, usegmt=True)],
    ids=["seconds", "date"],
)
async def test_a_wait_beyond_the_deadline_is_told_at_once(asked: Callable[[], str]):
    async with talking() as (server, client):
        await client.connect()
        await server.script(busy(asked()))
        async with asyncio.timeout(1.0):
            error = await failure_of(record(client, timeout=5.0))
        assert isinstance(error, CallNotDelivered)
        assert (error.status, error.attempts) == (429, 1)
        assert error.retry_after is not None
        assert 3500 < error.retry_after <= 3600
        assert await server.executions(KEY) == 0


# -- budgets ----------------------------------------------------------------------------------


@pytest.mark.requirement("P4")
async def test_backoff_grows_from_attempt_to_attempt():
    async with talking({"breaker_threshold": 0}) as (server, client):
        waits = waits_of(client)
        await client.list_tools()
        await server.script(Rule(tool="record_read_only", do=LOST))
        error = await failure_of(record(client, "record_read_only"))
        seen = [request.at for request in await server.requests("tools/call")]
    assert isinstance(error, CallOutcomeUnknown)
    assert error.attempts == len(seen) == 4
    gaps = [later - earlier for earlier, later in pairwise(seen)]
    assert all(gap >= wait * 0.99 for gap, wait in zip(gaps, waits, strict=True))
    for wait, full in zip(waits, (0.2, 0.4, 0.8), strict=True):
        assert full / 2 <= wait <= full


@pytest.mark.requirement("P4")
@pytest.mark.parametrize(
    "trouble", [LOST, Behaviour(status=429, headers={"retry-after": "0"})], ids=["lost", "429"]
)
async def test_an_outage_costs_the_server_no_more_replays_than_its_bucket_holds(
    trouble: Behaviour,
):
    settings = {"retry_burst": 5, "retry_rate": 0.0, "breaker_threshold": 0}
    async with talking(settings) as (server, client):
        await client.list_tools()
        await server.script(Rule(tool="record_read_only", do=trouble))
        outcomes = await together(*(record(client, "record_read_only") for _ in range(20)))
        assert all(isinstance(outcome, ToolkeepError) for outcome in outcomes)
        assert len(await server.requests("tools/call")) == 20 + 5


@pytest.mark.requirement("P4")
async def test_an_outage_at_the_handshake_causes_no_storm():
    settings = {"retry_burst": 5, "retry_rate": 0.0, "breaker_threshold": 0, "mode": "legacy"}
    async with talking(settings, era="legacy") as (server, client):
        await server.script(Rule(method="initialize", do=Behaviour(status=503)))
        outcomes = await together(*(record(client) for _ in range(50)))
        assert {type(outcome) for outcome in outcomes} == {ServerUnavailable}
        assert 2 <= len(await server.requests("initialize")) <= 1 + 5


@pytest.mark.requirement("P4")
async def test_a_bucket_fills_again_at_its_rate():
    settings = {"retry_burst": 1, "retry_rate": 2.0, "max_retries": 1}
    async with talking(settings) as (server, client):
        await server.script(busy("0"))
        assert (await record(client)).attempts == 2
        await server.script(busy("0"))
        assert isinstance(await failure_of(record(client)), CallNotDelivered)
        async with asyncio.timeout(3.0):
            await client.call_tool("slow", {"seconds": 0.6})
        await server.script(busy("0"))
        assert (await record(client)).attempts == 2


@pytest.mark.requirement("P4", "S4")
async def test_a_lost_session_draws_on_no_budget_of_the_server():
    async with talking({"retry_burst": 0, "retry_rate": 0.0}, era="legacy") as (server, client):
        await client.connect()
        await server.forget_sessions()
        assert (await record(client)).attempts == 2
        assert await server.executions(KEY) == 1


@pytest.mark.requirement("P3")
async def test_all_pages_of_a_list_share_one_deadline():
    async with talking({"timeouts": {"call": 0.5}}, era="legacy") as (server, client):
        await client.connect()
        for number in range(6):
            page = {"prompts": [], **({"nextCursor": f"{number}"} if number < 5 else {})}
            slow = Behaviour(delay=0.2, result=page)
            await server.script(Rule(method="prompts/list", times=1, do=slow))
        assert isinstance(await failure_of(client.list_prompts()), TimeoutError)
        assert len(await server.requests("prompts/list")) <= 3
