"""Cancelling a caller always works, tells the server, and is never mistaken for anything else."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import anyio
import pytest

from tests.engine.helpers_tasks import (
    BOUND,
    HANDSHAKE,
    LONG,
    PROMPT,
    WAYS_TO_CANCEL,
    Cancellable,
    Encoding,
    Era,
    Took,
    black_hole,
    client_of,
    closing,
    every_encoding,
    every_era,
    outcome,
    serving,
    through_proxy,
    until,
)
from toolkeep import CallTimedOut, Client
from toolkeep.events import Event, Progress, Retrying
from toolkeep.testing import Behaviour, Cancelled, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("P5")
every_way = pytest.mark.parametrize("how", WAYS_TO_CANCEL)


async def cancel_slow_call(how: str, server: ScriptedServer, client: Client) -> None:
    calls = len(await server.requests(tool="slow"))
    caller = Cancellable(how, lambda: client.call_tool("slow", {"seconds": LONG, "key": "slow"}))
    await server.requests(tool="slow", at_least=calls + 1)
    caller.cancel()
    assert await caller.surfaced() == "cancelled"


async def assert_told(server: ScriptedServer, era: Era, tool: str) -> None:
    """The server heard of the cancellation, in the era's own way, about the right request."""
    request = (await server.requests(tool=tool))[-1].body["id"]
    expected = Cancelled(request, tool, "notification" if era == "legacy" else "disconnect")
    async with asyncio.timeout(BOUND):
        while expected not in (await server.cancelled()):
            await asyncio.sleep(0.005)
    told = await server.requests("notifications/cancelled")
    if era == "modern":
        assert told == []
    else:
        assert [record.body["params"]["requestId"] for record in told] == [request]


@every_way
@every_encoding
@every_era
async def test_a_call_that_waits_for_its_answer_is_cancelled_here_and_there(
    era: Era, encoding: Encoding, how: str
):
    async with serving(era, encoding) as (server, client):
        await cancel_slow_call(how, server, client)
        await assert_told(server, era, "slow")
        assert (await client.call_tool("echo", {"text": "next"})).text == "next"
        assert await server.executions("slow") == 1
        assert len(await server.requests(tool="slow")) == 1
        assert len(await server.requests(HANDSHAKE[era])) == 1


@every_way
@every_era
async def test_a_call_is_cancelled_while_its_event_stream_is_read(era: Era, how: str):
    async with serving(era, "sse") as (server, client):
        steps: list[float] = []

        def on_progress(progress: float, total: float | None, message: str | None) -> None:
            steps.append(progress)

        caller = Cancellable(
            how,
            lambda: client.call_tool("steps", {"count": 99, "gap": 0.02}, on_progress=on_progress),
        )
        await until(lambda: len(steps) > 1, "progress")
        caller.cancel()
        assert await caller.surfaced() == "cancelled"
        seen = len(steps)
        await assert_told(server, era, "steps")
        assert len(steps) == seen
        assert await server.executions("steps") == 1


@every_way
@every_era
async def test_a_call_is_cancelled_while_its_body_is_read(era: Era, how: str):
    async with through_proxy(era) as (server, proxy, client):
        await client.connect()
        proxy.throttle(40_000)
        before = proxy.bytes_down
        caller = Cancellable(how, lambda: client.call_tool("big", {"bytes": 400_000}))
        await until(lambda: proxy.bytes_down > before + 4_000, "half an answer")
        caller.cancel()
        assert await caller.surfaced() == "cancelled"
        await proxy.heal()
        assert (await client.call_tool("echo", {"text": "next"})).text == "next"
        assert await server.executions("big") == 1
        assert len(await server.requests(tool="big")) == 1


@every_way
@every_era
async def test_a_call_is_cancelled_while_it_waits_for_the_handshake(era: Era, how: str):
    async with serving(era) as (server, client):
        await server.script(Rule(method=HANDSHAKE[era], do=Behaviour(delay=0.6), times=1))
        caller = Cancellable(how, lambda: client.call_tool("record"))
        await server.requests(HANDSHAKE[era], at_least=1)
        caller.cancel()
        with Took() as took:
            assert await caller.surfaced() == "cancelled"
        assert took.seconds < 0.5
        assert (await client.call_tool("echo", {"text": "next"})).text == "next"
        assert await server.executions("record") == 0
        assert len(await server.requests(HANDSHAKE[era])) == 1
        assert await server.cancelled() == []


@every_way
@every_era
async def test_a_call_is_cancelled_while_it_waits_for_tcp(era: Era, how: str):
    with black_hole() as url:
        async with closing(client_of(url, era)) as client:
            caller = Cancellable(how, lambda: client.call_tool("record"))
            await anyio.wait_all_tasks_blocked()
            caller.cancel()
            assert await caller.surfaced() == "cancelled"
            with Took() as took:
                await client.aclose()
            assert took.seconds < PROMPT


@every_way
@every_era
async def test_a_call_is_cancelled_while_it_waits_for_its_turn(era: Era, how: str):
    async with serving(era, spec={"max_in_flight": 1}) as (server, client):
        first = asyncio.create_task(client.call_tool("slow", {"seconds": 60}))
        await server.requests(tool="slow", at_least=1)
        caller = Cancellable(how, lambda: client.call_tool("record"))
        await anyio.wait_all_tasks_blocked()
        caller.cancel()
        assert await caller.surfaced() == "cancelled"
        assert not first.done()
        await server.skip_delays()
        assert (await first).text == "done"
        assert (await client.call_tool("echo", {"text": "next"})).text == "next"
        assert await server.requests(tool="record") == []
        assert await server.cancelled() == []


@every_way
@every_era
async def test_a_call_is_cancelled_while_it_waits_to_be_replayed(era: Era, how: str):
    async with serving(era) as (server, client):
        wait = Behaviour(status=429, headers={"retry-after": "10"})
        await server.script(Rule(tool="record", do=wait, times=1))
        events: list[Event] = []
        client.observe(events.append, listen=False)
        caller = Cancellable(how, lambda: client.call_tool("record"))
        await until(lambda: any(isinstance(e, Retrying) for e in events), "the backoff")
        caller.cancel()
        assert await caller.surfaced() == "cancelled"
        assert len(await server.requests(tool="record")) == 1
        assert await server.executions("record") == 0


@every_way
async def test_a_call_is_cancelled_while_it_waits_to_resume_its_answer(how: str):
    async with serving("legacy", "sse") as (server, client):
        cut = Behaviour(event_ids=True, prime=True, retry_ms=9000, cut_stream_after_events=1)
        await server.script(Rule(tool="steps", do=cut))
        told: list[float] = []
        arguments = {"count": 2, "gap": LONG}
        caller = Cancellable(
            how,
            lambda: client.call_tool(
                "steps", arguments, on_progress=lambda *step: told.append(step[0])
            ),
        )
        await until(lambda: bool(told), "the beginning of the answer")
        await anyio.wait_all_tasks_blocked()
        caller.cancel()
        assert await caller.surfaced() == "cancelled"
        await assert_told(server, "legacy", "steps")
        assert await server.executions("steps") == 1


@every_way
@every_era
async def test_a_cancellation_that_is_there_before_the_call_wins(era: Era, how: str):
    async with serving(era) as (server, client):
        await client.connect()
        caller = Cancellable(how, lambda: cancelled_beforehand())

        async def cancelled_beforehand() -> None:
            caller.cancel()
            if how == "asyncio.timeout":
                await asyncio.sleep(0)  # a timeout strikes in the next round of the loop only
            await client.call_tool("slow", {"seconds": LONG})

        assert await caller.surfaced() == "cancelled"
        assert await server.executions("slow") <= 1
        assert (await client.call_tool("echo", {"text": "next"})).text == "next"


@every_era
async def test_one_cancelled_waiter_of_many_harms_no_other(era: Era):
    async with serving(era) as (server, client):
        await server.script(Rule(method=HANDSHAKE[era], do=Behaviour(delay=0.2), times=1))
        opener = asyncio.create_task(client.call_tool("echo", {"text": "opener"}))
        await server.requests(HANDSHAKE[era], at_least=1)
        others = [
            asyncio.create_task(client.call_tool("echo", {"text": str(n)})) for n in range(10)
        ]
        await anyio.wait_all_tasks_blocked()
        opener.cancel()
        others[3].cancel()
        async with asyncio.timeout(BOUND):
            results = await asyncio.gather(opener, *others, return_exceptions=True)
        lost = [n for n, r in enumerate(results) if isinstance(r, asyncio.CancelledError)]
        assert lost == [0, 4]
        assert not any(isinstance(r, Exception) for r in results)
        assert len(await server.requests(HANDSHAKE[era])) == 1


@pytest.mark.parametrize("answer", [Behaviour(hang=True), Behaviour(status=500)])
async def test_a_server_that_mishandles_cancellations_delays_nobody(answer: Behaviour):
    async with serving("legacy") as (server, client):
        await server.script(Rule(method="notifications/cancelled", do=answer))
        await cancel_slow_call("task", server, client)
        await server.requests("notifications/cancelled", at_least=1)
        with Took() as next_call:
            await client.call_tool("echo", {"text": "next"})
        with Took() as close:
            await client.aclose()
        assert next_call.seconds < PROMPT
        assert close.seconds < 1.0 + PROMPT


@pytest.mark.parametrize("how", ["task", "cancel scope"])
@every_era
async def test_a_cancelled_caller_may_call_in_its_cleanup(era: Era, how: str):
    async with serving(era) as (server, client):
        await client.connect()
        said: list[object] = []

        async def caller() -> None:
            try:
                await client.call_tool("slow", {"seconds": LONG})
            finally:
                with anyio.CancelScope(shield=True):
                    said.append((await client.call_tool("echo", {"text": "bye"})).text)
                    late = client.call_tool("slow", {"seconds": LONG}, timeout=0.1)
                    said.append(type(await outcome(late)))

        work = Cancellable(how, caller)
        await server.requests(tool="slow", at_least=1)
        work.cancel()
        assert await work.surfaced() == "cancelled"
        assert said == ["bye", CallTimedOut]


@every_encoding
@every_era
async def test_cancelling_at_any_moment_surfaces_and_repeats_nothing(era: Era, encoding: Encoding):
    async with serving(era, encoding) as (server, client):
        await client.connect()
        moments = random.Random(7)
        surfaced: list[str] = []

        async def caller(number: int) -> None:
            how = WAYS_TO_CANCEL[number % len(WAYS_TO_CANCEL)]
            arguments = {"seconds": 0.02, "key": str(number)}
            work = Cancellable(how, lambda: client.call_tool("slow", arguments))
            if number % 5 == 0:  # left alone
                surfaced.append(f"left alone: {await asyncio.wait_for(work.task, BOUND)}")
                return
            await asyncio.sleep(moments.uniform(0, 0.4))
            if not work.task.done():
                work.cancel()
            surfaced.append(await work.surfaced())

        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for number in range(150):
                group.create_task(caller(number))
        assert surfaced.count("left alone: answered") == 30
        assert set(surfaced) <= {"left alone: answered", "cancelled", "answered"}
        assert "cancelled" in surfaced
        assert max((await server.ledger()).values()) == 1
        assert (await client.call_tool("echo", {"text": "next"})).text == "next"
        assert len(await server.requests(HANDSHAKE[era])) == 1


# -- leaving a stream early ---------------------------------------------------------------------


class Leave(Exception):
    pass


@contextlib.asynccontextmanager
async def leaving(how: str) -> AsyncIterator[anyio.CancelScope]:
    with contextlib.suppress(Leave), anyio.CancelScope() as scope:
        yield scope
    assert scope.cancelled_caught == (how == "cancelled")


@pytest.mark.requirement("L3")
@pytest.mark.parametrize("how", ["broken off", "raised", "cancelled"])
@every_era
async def test_leaving_a_stream_early_cancels_the_call(era: Era, how: str):
    async with serving(era, "sse") as (server, client):
        events: list[Event] = []
        async with leaving(how) as scope, client.stream("steps", {"count": 99, "gap": 0.05}) as c:
            async for event in c:
                events.append(event)
                if isinstance(event, Progress):
                    if how == "raised":
                        raise Leave
                    if how == "broken off":
                        break
                    scope.cancel()
        await assert_told(server, era, "steps")
        assert sum(isinstance(event, Progress) for event in events) == 1
        assert await server.executions("steps") == 1
        assert (await client.call_tool("echo", {"text": "next"})).text == "next"


@pytest.mark.requirement("L3")
@every_era
async def test_leaving_a_silent_stream_at_once_cancels_the_call(era: Era):
    async with serving(era) as (server, client):
        await client.connect()
        async with client.stream("slow", {"seconds": LONG}):
            await server.requests(tool="slow", at_least=1)
        await assert_told(server, era, "slow")
