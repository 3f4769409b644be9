"""Cancelling a caller over stdio, HTTP+SSE and in-process always works, and reaches the server."""

import asyncio
import signal
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from tests.engine.helpers_tasks import (
    BOUND,
    HANDSHAKE,
    LONG,
    PROMPT,
    WAYS_TO_CANCEL,
    Cancellable,
    Took,
    closing,
    outcome,
    until,
)
from tests.engine.helpers_transports import (
    SSE,
    Way,
    every_way,
    over_kit,
    over_stdio,
    served,
    serving,
)
from toolkeep import CallTimedOut, Client
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.testing import Behaviour, Cancelled, Rule

pytestmark = pytest.mark.requirement("P5")

in_every_manner = pytest.mark.parametrize("how", WAYS_TO_CANCEL)


async def assert_told(server: Any, way: Way, tool: str) -> None:
    """The server heard of it once, about the right request; in this process the tool itself did."""
    assert await server.given_up(at_least=1) == [tool]
    if way.transport != "in-process":
        (request,) = await server.server.requests(tool=tool)
        (told,) = await server.server.requests("notifications/cancelled", at_least=1)
        assert told.body["params"]["requestId"] == request.body["id"]
        assert await server.server.cancelled() == [
            Cancelled(request.body["id"], tool, "notification")
        ]


@in_every_manner
@every_way
async def test_a_call_that_waits_for_its_answer_is_cancelled_here_and_there(way: Way, how: str):
    async with serving(way, {"retry": "always"}) as (server, client):
        await client.connect()
        caller = Cancellable(how, lambda: client.call_tool("slow", {"seconds": LONG}))
        await server.arrived("slow", at_least=1)
        caller.cancel()
        assert await caller.surfaced() == "cancelled"
        await assert_told(server, way, "slow")
        assert (await client.call_tool("echo", {"text": "next"})).text == "next"
        assert await server.ledger() == {"slow": 1, "echo": 1}
        assert await server.openings() == 1


@every_way
@pytest.mark.requirement("P1", "P3")
async def test_a_deadline_is_told_to_the_server_and_nothing_is_replayed(way: Way):
    async with serving(way, {"retry": "always"}) as (server, client):
        await client.connect()
        error = await outcome(client.call_tool("slow", {"seconds": LONG}, timeout=0.1))
        assert type(error) is CallTimedOut
        await assert_told(server, way, "slow")
        assert (await client.call_tool("echo", {"text": "next"})).text == "next"
        assert await server.ledger() == {"slow": 1, "echo": 1}


@every_way
async def test_a_call_is_cancelled_while_its_progress_comes(way: Way):
    steps: list[float] = []

    def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async with serving(way) as (server, client):
        work = {"count": 999, "gap": 0.01}
        caller = asyncio.create_task(client.call_tool("steps", work, on_progress=on_progress))
        await until(lambda: len(steps) > 1, "progress")
        caller.cancel()
        await asyncio.wait((caller,), timeout=PROMPT)
        assert caller.cancelled()
        seen = len(steps)
        await assert_told(server, way, "steps")
        assert len(steps) == seen


@every_way
async def test_a_call_that_was_answered_is_not_cancelled_there(way: Way):
    async with serving(way) as (server, client):
        for _ in range(5):
            await client.call_tool("echo", {"text": "x"})
        task = asyncio.create_task(client.call_tool("slow", {"seconds": LONG}))
        await server.arrived("slow", at_least=1)
        task.cancel()
        assert await server.given_up(at_least=1) == ["slow"]


@every_way
async def test_closing_flushes_the_cancellation_of_a_caller_who_just_left(way: Way):
    async with serving(way) as (server, client):
        caller = asyncio.create_task(client.call_tool("slow", {"seconds": LONG}))
        await server.arrived("slow", at_least=1)
        caller.cancel()
        await asyncio.wait((caller,), timeout=PROMPT)
        await client.aclose()
        assert set(await server.given_up(at_least=1)) == {"slow"}
        if way.transport != "in-process":
            assert len(await server.server.requests("notifications/cancelled", at_least=1)) == 1


class Pensive:
    """An authorizer that thinks before each message."""

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        await asyncio.sleep(0.1)
        return {}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        return False


async def test_closing_gives_a_cancellation_that_has_not_left_yet_a_moment():
    async with (
        served(SSE) as server,
        closing(Client({"name": "kit", "mode": "legacy", **server.spec}, auth=Pensive())) as client,
    ):
        caller = asyncio.create_task(client.call_tool("slow", {"seconds": LONG}))
        await server.arrived("slow", at_least=1)
        caller.cancel()
        await asyncio.wait((caller,), timeout=PROMPT)
        await client.aclose()
        assert len(await server.server.requests("notifications/cancelled", at_least=1)) == 1


# -- before anything was sent -------------------------------------------------------------------


@in_every_manner
@over_kit
@pytest.mark.requirement("S2")
async def test_a_caller_who_leaves_during_the_handshake_leaves_it_to_the_others(way: Way, how: str):
    async with serving(way) as (server, client):
        slow = Rule(method=HANDSHAKE[way.era], do=Behaviour(delay=0.2), times=1)
        await server.server.script(slow)
        caller = Cancellable(how, lambda: client.call_tool("record", {"key": "left"}))
        other = asyncio.create_task(client.call_tool("record", {"key": "stayed"}))
        await server.server.requests(HANDSHAKE[way.era], at_least=1)
        caller.cancel()
        assert await caller.surfaced() == "cancelled"
        assert (await outcome(other)).text == "recorded"
        assert await server.ledger() == {"stayed": 1}
        assert await server.openings() == 1
        assert await server.server.requests("notifications/cancelled") == []


@over_stdio
async def test_a_caller_who_leaves_while_the_process_starts_leaves_no_trace_of_his_call(way: Way):
    async with serving(way) as (server, client):
        caller = asyncio.create_task(client.call_tool("record", {"key": "left"}))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait((caller,), timeout=PROMPT)
        assert caller.cancelled()
        assert (await client.call_tool("record", {"key": "next"})).text == "recorded"
        assert await server.ledger() == {"next": 1}
        assert await server.server.starts() == 1


@in_every_manner
@over_stdio
async def test_a_caller_who_waits_for_a_full_pipe_leaves_without_a_byte(way: Way, how: str):
    async with serving(way, {"timeouts": {"close": 0.6}}) as (server, client):
        await client.connect()
        (process,) = await server.server.processes(at_least=1)
        server.server.kill(process, signal.SIGSTOP)
        big = {"key": "large", "text": "x" * 500_000}
        large = asyncio.create_task(client.call_tool("record", big))
        await anyio.wait_all_tasks_blocked()
        caller = Cancellable(how, lambda: client.call_tool("record", {"key": "left"}))
        await anyio.wait_all_tasks_blocked()
        caller.cancel()
        assert await caller.surfaced() == "cancelled"
        server.server.kill(process, signal.SIGCONT)
        assert (await outcome(large)).text == "recorded"
        assert (await client.call_tool("echo", {"text": "x"})).text == "x"
        assert await server.ledger() == {"large": 1, "echo": 1}
        assert await server.server.requests("notifications/cancelled") == []


@over_stdio
async def test_a_caller_who_leaves_a_line_half_in_the_pipe_harms_no_other_line(way: Way):
    async with serving(way, {"timeouts": {"close": 0.6}}) as (server, client):
        await client.connect()
        (process,) = await server.server.processes(at_least=1)
        server.server.kill(process, signal.SIGSTOP)
        big = {"key": "large", "text": "x" * 500_000}
        caller = asyncio.create_task(client.call_tool("record", big))
        await anyio.wait_all_tasks_blocked()
        caller.cancel()
        await asyncio.wait((caller,), timeout=PROMPT)
        assert caller.cancelled()
        server.server.kill(process, signal.SIGCONT)
        assert (await client.call_tool("echo", {"text": "x"})).text == "x"
        assert await server.executions("large") <= 1
        (told,) = await server.server.requests("notifications/cancelled", at_least=1)
        (request,) = await server.server.requests(tool="record")
        assert told.body["params"]["requestId"] == request.body["id"]


async def test_a_caller_who_leaves_while_his_post_over_sse_hangs_leaves_at_once():
    async with serving(SSE) as (server, client):
        await client.connect()
        hangs = Behaviour(hang=True, run=False)
        await server.server.script(Rule(tool="record", times=1, do=hangs))
        caller = asyncio.create_task(client.call_tool("record"))
        await server.arrived("record", at_least=1)
        with Took() as took:
            caller.cancel()
            await asyncio.wait((caller,), timeout=BOUND)
        assert caller.cancelled()
        assert took.seconds < PROMPT
        assert (await client.call_tool("echo", {"text": "x"})).text == "x"
        assert await server.openings() == 1
