"""On one pipe for all, a call that fails fails alone; and when the pipe ends, each hears its own
truth."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.engine.helpers_tasks import BOUND, LONG, outcome, until
from tests.engine.helpers_transports import (
    SSE,
    STDIO,
    Kit,
    Served,
    Way,
    every_way,
    over_kit,
    over_stdio,
    serving,
)
from toolkeep import (
    CallError,
    CallNotDelivered,
    CallOutcomeUnknown,
    CallRejected,
    CallTimedOut,
    Client,
    ServerUnavailable,
)
from toolkeep.errors import Delivery, FailureKind
from toolkeep.events import Connected, Disconnected, Event
from toolkeep.testing import Behaviour, Rule

pytestmark = pytest.mark.requirement("S14")

CROWD = 20
Trouble = Callable[[Served, Client], Awaitable[None]]


async def in_flight(server: Served, client: Client, seconds: float) -> list[asyncio.Task[Any]]:
    """Many calls that the server has and has not answered."""
    before = await server.arrived("slow")
    calls = [
        asyncio.create_task(client.call_tool("slow", {"seconds": seconds, "key": f"sibling {n}"}))
        for n in range(CROWD)
    ]
    await server.arrived("slow", at_least=before + CROWD)
    return calls


# -- one of many fails --------------------------------------------------------------------------


async def is_cancelled(server: Served, client: Client) -> None:
    victim = asyncio.create_task(client.call_tool("slow", {"seconds": LONG}))
    await server.arrived("slow", at_least=CROWD + 1)
    victim.cancel()
    await asyncio.wait((victim,), timeout=BOUND)
    assert victim.cancelled()


async def runs_out_of_time(server: Served, client: Client) -> None:
    error = await outcome(client.call_tool("slow", {"seconds": LONG}, timeout=0.05))
    assert type(error) is CallTimedOut


async def fails_as_tools_fail(server: Served, client: Client) -> None:
    assert (await client.call_tool("fail", {"message": "no"})).is_error


async def is_unknown_there(server: Served, client: Client) -> None:
    error = await outcome(client.request("no/such/method"))
    assert type(error) is CallRejected


async def cannot_be_written(server: Served, client: Client) -> None:
    assert isinstance(await outcome(client.call_tool("echo", {"text": object()})), ValueError)


async def is_left_alone(server: Served, client: Client) -> None:
    async with client.stream("slow", {"seconds": LONG}) as call:
        async for _ in call:
            break


TROUBLES: list[Trouble] = [
    is_cancelled,
    runs_out_of_time,
    fails_as_tools_fail,
    is_unknown_there,
    cannot_be_written,
    is_left_alone,
]


@every_way
async def test_a_call_that_fails_leaves_its_siblings_and_its_caller_alone(way: Way):
    me = asyncio.current_task()
    assert me is not None
    async with serving(way) as (server, client):
        await client.connect()
        siblings = await in_flight(server, client, 0.5)
        for trouble in TROUBLES:
            async with asyncio.timeout(BOUND):
                await trouble(server, client)
        async with asyncio.timeout(BOUND):
            results = await asyncio.gather(*siblings)
        assert [result.text for result in results] == ["done"] * CROWD
        assert me.cancelling() == 0
        assert await server.openings() == 1


@over_kit
async def test_an_oversized_answer_over_a_pipe_of_its_own_call_is_that_calls_trouble(way: Way):
    async with serving(way, {"max_result_bytes": 100_000}) as (server, client):
        await client.connect()
        error = await outcome(client.call_tool("big", {"bytes": 300_000}))
        assert isinstance(error, CallError)
        assert error.delivery is Delivery.UNKNOWN
        assert error.failure is not None
        assert error.failure.kind is FailureKind.UNREADABLE
        assert (await client.call_tool("echo", {"text": "x"})).text == "x"
        assert await server.openings() == 1
        assert await server.executions("big") == 1


@over_kit
async def test_an_oversized_answer_among_many_fails_its_own_call_only(way: Way):
    async with serving(way, {"max_result_bytes": 100_000}) as (server, client):
        await client.connect()
        siblings = await in_flight(server, client, 0.4)
        error = await outcome(client.call_tool("big", {"bytes": 300_000}))
        assert isinstance(error, CallError)
        results = [await outcome(sibling) for sibling in siblings]
        assert [getattr(result, "text", result) for result in results] == ["done"] * CROWD
        assert await server.openings() == 1


@pytest.mark.parametrize("drop", ["after_body", "after_run"])
async def test_a_post_over_sse_that_breaks_fails_its_own_call_and_leaves_the_stream(drop: Any):
    async with serving(SSE) as (server, client):
        await client.connect()
        siblings = await in_flight(server, client, 0.4)
        broken = Behaviour(drop=drop, reset=True)
        await server.server.script(Rule(tool="record", times=1, do=broken))
        error = await outcome(client.call_tool("record"))
        assert type(error) is CallOutcomeUnknown
        async with asyncio.timeout(BOUND):
            results = await asyncio.gather(*siblings)
        assert [result.text for result in results] == ["done"] * CROWD
        assert await server.executions("record") == (1 if drop == "after_run" else 0)


# -- the pipe ends ------------------------------------------------------------------------------


@every_way
@pytest.mark.requirement("S6", "P1")
async def test_when_the_server_dies_each_call_fails_by_itself_and_one_start_serves_the_next(
    way: Way,
):
    me = asyncio.current_task()
    assert me is not None
    events: list[Event] = []
    async with serving(way, {"breaker_threshold": 0}) as (server, client):
        client.observe(events.append, listen=False)
        await client.connect()
        calls = await in_flight(server, client, LONG)
        await server.die()
        errors = [await outcome(call) for call in calls]
        assert {type(error) for error in errors} == {CallOutcomeUnknown}
        assert len({id(error) for error in errors}) == CROWD
        assert {error.failure.kind for error in errors} == {FailureKind.BROKEN}
        if way.transport == "stdio":
            assert {error.exit_code for error in errors} == {-signal.SIGKILL}
        async with asyncio.timeout(BOUND):
            again = await asyncio.gather(
                *(client.call_tool("echo", {"text": str(n)}) for n in range(CROWD))
            )
        assert [result.text for result in again] == [str(n) for n in range(CROWD)]
        assert await server.openings() == 2
        assert set((await server.ledger()).values()) <= {1, CROWD}
        assert me.cancelling() == 0
        told = [type(event) for event in events if isinstance(event, Connected | Disconnected)]
        assert told == [Connected, Disconnected, Connected]


@every_way
@pytest.mark.requirement("S6")
async def test_many_that_may_go_again_share_one_replacement(way: Way):
    spec = {"breaker_threshold": 0, "retry_tools": {"slow": "always"}}
    async with serving(way, spec) as (server, client):
        await client.connect()
        calls = await in_flight(server, client, 0.3)
        await server.die()
        results = [await outcome(call) for call in calls]
        assert {getattr(result, "text", result) for result in results} == {"done"}
        assert {result.attempts for result in results} == {2}
        assert await server.openings() == 2
        assert set((await server.ledger()).values()) == {2}


@every_way
async def test_a_caller_in_a_task_group_may_catch_the_end_and_go_on(way: Way):
    async with serving(way) as (server, client):
        await client.connect()
        texts: list[str] = []

        async def careful(n: int) -> None:
            with pytest.raises(CallOutcomeUnknown):
                await client.call_tool("slow", {"seconds": LONG})
            texts.append((await client.call_tool("echo", {"text": f"{n}"})).text)

        async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(careful(n))
            await server.arrived("slow", at_least=3)
            await server.die()
        assert sorted(texts) == ["0", "1", "2"]
        assert await server.openings() == 2


@every_way
async def test_a_server_that_dies_while_nobody_calls_is_noticed_and_replaced_on_demand(way: Way):
    events: list[Event] = []
    async with serving(way) as (server, client):
        client.observe(events.append, listen=False)
        await client.connect()
        await server.die()
        await until(lambda: not client.is_initialized, "the loss")
        assert client.session_id is None
        assert [event.kind for event in events] == ["connected", "disconnected"]
        assert await server.openings() == 1
        assert (await client.call_tool("echo", {"text": "x"})).attempts == 1
        assert await server.openings() == 2


@over_stdio
@pytest.mark.requirement("S7")
async def test_a_failed_replacement_leaves_the_client_usable(way: Way):
    async with serving(way, {"max_retries": 0}) as (server, client):
        await client.connect()
        await server.die()
        await until(lambda: not client.is_initialized, "the loss")
        step = "initialize" if way.era == "legacy" else "server/discover"
        died = Behaviour(drop="after_body", exit_code=9)
        await server.server.script(Rule(method=step, times=1, do=died))
        error = await outcome(client.call_tool("record"))
        assert isinstance(error, ServerUnavailable | CallNotDelivered)
        assert (error.delivery, error.exit_code) == (Delivery.NOT_SENT, 9)
        assert (client.is_initialized, client.session_id, client.era) == (False, None, None)
        assert (await client.call_tool("record")).text == "recorded"
        assert await server.executions("record") == 1


@pytest.mark.parametrize("way", STDIO, ids=str)
async def test_a_truth_of_its_own_for_each_call_when_the_process_exits(way: Way):
    """One is answered, one is unknown, and one had not left."""
    async with serving(way, {"max_retries": 0}, stderr="out of memory\n") as (server, client):
        assert isinstance(server, Kit)
        await client.connect()
        answered = await client.call_tool("echo", {"text": "before"})
        unknown = asyncio.create_task(client.call_tool("slow", {"seconds": LONG}))
        await server.arrived("slow", at_least=1)
        await server.server.script(Rule(tool="record", do=Behaviour(drop="after_run", exit_code=3)))
        last = await outcome(client.call_tool("record"))
        error = await outcome(unknown)
        assert answered.text == "before"
        for each in (last, error):
            assert type(each) is CallOutcomeUnknown
            assert (each.exit_code, each.stderr) == (3, "out of memory")
