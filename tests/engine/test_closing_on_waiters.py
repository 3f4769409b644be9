"""A call that waits for something when its client closes fails at once, and opens nothing."""

import asyncio
from collections.abc import Mapping

import anyio
import pytest

from tests.engine.helpers_tasks import (
    HANDSHAKE,
    LONG,
    PROMPT,
    Era,
    Took,
    assert_stays_closed,
    every_era,
    outcome,
    serving,
    until,
)
from toolkeep import (
    CallError,
    CallNotDelivered,
    CallOutcomeUnknown,
    Client,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.events import Event, Retrying
from toolkeep.testing import Behaviour, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("S9")


async def test_a_call_that_waits_to_resume_its_answer_fails_at_once_when_the_client_closes():
    async with serving("legacy", "sse") as (server, client):
        how = Behaviour(event_ids=True, prime=True, retry_ms=3000, cut_stream_after_events=1)
        await server.script(Rule(tool="steps", do=how))
        told: list[float] = []
        caller = asyncio.create_task(
            client.call_tool(
                "steps", {"count": 3, "gap": 0.01}, on_progress=lambda *step: told.append(step[0])
            )
        )
        await until(lambda: bool(told), "the beginning of the answer")
        await anyio.wait_all_tasks_blocked()
        with Took() as took:
            await client.aclose()
            error = await outcome(caller)
        assert took.seconds < PROMPT
        assert type(error) is CallOutcomeUnknown
        assert await server.executions("steps") == 1
        await assert_stays_closed(server, client)


@every_era
async def test_a_call_that_waits_for_its_turn_does_not_open_a_closed_client(era: Era):
    async with serving(era, spec={"max_in_flight": 1}) as (server, client):
        await client.connect()
        first = asyncio.create_task(client.call_tool("slow", {"seconds": LONG}))
        await server.requests(tool="slow", at_least=1)
        waiting = [asyncio.create_task(client.call_tool("record")) for _ in range(3)]
        await anyio.wait_all_tasks_blocked()
        await client.aclose()
        assert type(await outcome(first)) is CallOutcomeUnknown
        for caller in waiting:
            error = await outcome(caller)
            assert isinstance(error, CallNotDelivered | ServerUnavailable)
        assert await server.executions("record") == 0
        assert len(await server.requests(HANDSHAKE[era])) == 1
        await assert_stays_closed(server, client)


@every_era
async def test_a_call_that_waits_to_be_replayed_does_not_open_a_closed_client(era: Era):
    async with serving(era) as (server, client):
        wait = Behaviour(status=429, headers={"retry-after": "0.3"})
        await server.script(Rule(tool="record", do=wait, times=1))
        events: list[Event] = []
        client.observe(events.append, listen=False)
        caller = asyncio.create_task(client.call_tool("record"))
        await until(lambda: any(isinstance(e, Retrying) for e in events), "the backoff")
        await client.aclose()
        error = await outcome(caller)
        assert isinstance(error, CallError | ServerUnavailable)
        assert await server.executions("record") == 0
        assert len(await server.requests(HANDSHAKE[era])) == 1
        await assert_stays_closed(server, client)


@every_era
async def test_an_opening_that_waits_to_be_tried_again_says_that_the_client_was_closed(era: Era):
    async with serving(era) as (server, client):
        wait = Behaviour(status=503, headers={"retry-after": "0.3"})
        await server.script(Rule(method=HANDSHAKE[era], do=wait))
        caller = asyncio.create_task(client.connect())
        assert len(await server.requests(HANDSHAKE[era], at_least=1)) == 1
        await anyio.wait_all_tasks_blocked()
        await client.aclose()
        error = await outcome(caller)
        assert type(error) is ServerUnavailable
        assert "the client was closed while" in str(error)
        await assert_stays_closed(server, client)


class Pensive:
    """An authorizer that takes its time, once it is told to."""

    def __init__(self) -> None:
        self.thinking, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        if not self.go_on.is_set():
            self.thinking.set()
            await self.go_on.wait()
        return {}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        return False


@every_era
async def test_a_call_whose_authorizer_still_thinks_fails_honestly_when_the_client_closes(era: Era):
    auth = Pensive()
    async with ScriptedServer.local(era=era) as server:
        spec = {"name": "kit", "url": server.url, "mode": era}
        client = Client(spec, auth=auth, terminate_on_close=False)
        await client.connect()
        auth.go_on.clear()
        caller = asyncio.create_task(client.call_tool("record"))
        await auth.thinking.wait()
        with Took() as took:
            await client.aclose()
        assert took.seconds < PROMPT
        auth.go_on.set()
        error = await outcome(caller)
        assert isinstance(error, ToolkeepError)
        assert await server.executions("record") == 0
        await assert_stays_closed(server, client)
