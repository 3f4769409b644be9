"""A broken legacy answer stream is read on from its last event id, before anything is replayed."""

import asyncio
from typing import Any

import pytest

from tests.engine.support import failure_of, methods, talking
from toolkeep import CallOutcomeUnknown, CallTimedOut, Client
from toolkeep.errors import Delivery
from toolkeep.testing import Behaviour, Recorded, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("P8")

KEY = "the one run"
NUMBERED: dict[str, Any] = {"encoding": "sse", "event_ids": True, "retry_ms": 10}
CUT = Behaviour(**NUMBERED, prime=True, cut_stream_after_events=0)
"""Ends right after the event that only carries an id."""


def record(client: Client, tool: str = "record") -> Any:
    return client.call_tool(tool, {"key": KEY})


async def gets(server: ScriptedServer) -> list[Recorded]:
    return [request for request in await server.requests() if request.http_method == "GET"]


async def calls(server: ScriptedServer) -> list[Recorded]:
    return await server.requests("tools/call")


@pytest.mark.parametrize(
    "broken",
    [
        CUT,
        Behaviour(**NUMBERED, prime=True, cut_stream_after_events=0, reset=True),
        Behaviour(**NUMBERED, prime=True, drop="mid_answer"),
        Behaviour(**NUMBERED, prime=True, drop="mid_answer", reset=True),
        Behaviour(**NUMBERED, prime=True, cut_after=70, crlf=True),
    ],
    ids=["ended", "reset", "cut in the answer", "reset in the answer", "cut after an id"],
)
async def test_a_broken_answer_is_read_on_and_the_tool_runs_once(broken: Behaviour):
    async with talking(era="legacy") as (server, client):
        await server.script(Rule(tool="record", do=broken))
        result = await record(client)
        assert (result.text, result.attempts) == ("recorded", 1)
        assert await server.executions(KEY) == 1
        (call,) = await calls(server)
        (resumed,) = await gets(server)
        assert resumed.headers["last-event-id"].endswith(".0")
        assert resumed.session_id == call.session_id == client.session_id
        assert resumed.headers["mcp-protocol-version"] == call.headers["mcp-protocol-version"]


@pytest.mark.parametrize("seen", [1, 2, 4])
@pytest.mark.parametrize("reset", [False, True])
async def test_progress_goes_on_where_it_broke_off_without_loss_or_repetition(
    seen: int, reset: bool
):
    steps: list[float] = []
    async with talking(era="legacy") as (server, client):
        broken = Behaviour(**NUMBERED, cut_stream_after_events=seen, reset=reset)
        await server.script(Rule(tool="steps", do=broken))
        result = await client.call_tool(
            "steps",
            {"count": 5, "gap": 0.02, "key": KEY},
            on_progress=lambda progress, total, message: steps.append(progress),
        )
        assert result.text == "5 steps"
        assert steps == [1, 2, 3, 4, 5]
        assert await server.executions(KEY) == 1
        (resumed,) = await gets(server)
        assert resumed.headers["last-event-id"].endswith(f".{seen}")


async def test_a_stream_may_break_as_often_as_it_brings_something_new():
    async with talking(era="legacy") as (server, client):
        once_more = Behaviour(**NUMBERED, cut_stream_after_events=1)
        await server.script(
            Rule(tool="steps", do=once_more), Rule(http="GET", times=5, do=once_more)
        )
        result = await client.call_tool(
            "steps", {"count": 6, "key": KEY}, on_progress=lambda *_: None
        )
        assert result.text == "6 steps"
        assert await server.executions(KEY) == 1
        positions = [get.headers["last-event-id"].partition(".")[2] for get in await gets(server)]
        assert positions == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.requirement("P2")
@pytest.mark.parametrize("tool", ["record", "record_read_only"])
async def test_when_the_server_refuses_to_resume_the_outcome_is_unknown(tool: str):
    async with talking(era="legacy", get_stream=False) as (server, client):
        await client.list_tools()
        await server.script(Rule(tool=tool, times=1, do=CUT))
        if tool == "record":
            error = await failure_of(record(client, tool))
            assert isinstance(error, CallOutcomeUnknown)
            assert (error.delivery, error.attempts) == (Delivery.UNKNOWN, 1)
        else:
            assert (await record(client, tool)).attempts == 2
        assert len(await gets(server)) == 1
        assert await server.executions(KEY) == (1 if tool == "record" else 2)


@pytest.mark.parametrize(
    "trouble",
    [
        Behaviour(status=503),
        Behaviour(drop="after_body", reset=True),
        Behaviour(**NUMBERED, cut_stream_after_events=0),
    ],
    ids=["503", "reset", "nothing new"],
)
async def test_a_stream_that_brings_nothing_new_is_given_up(trouble: Behaviour):
    async with talking(era="legacy") as (server, client):
        await server.script(Rule(tool="record", do=CUT), Rule(http="GET", do=trouble))
        error = await failure_of(record(client))
        assert isinstance(error, CallOutcomeUnknown)
        assert 1 <= len(await gets(server)) <= 5
        assert len(await calls(server)) == await server.executions(KEY) == 1


async def test_a_moment_of_trouble_while_resuming_is_overcome():
    async with talking(era="legacy") as (server, client):
        trouble = Rule(http="GET", times=1, do=Behaviour(status=502))
        await server.script(Rule(tool="record", do=CUT), trouble)
        assert (await record(client)).attempts == 1
        assert await server.executions(KEY) == 1
        assert len(await gets(server)) == 2


@pytest.mark.requirement("P1")
@pytest.mark.parametrize(
    ("era", "how"),
    [
        ("legacy", Behaviour(encoding="sse", retry_ms=10, cut_stream_after_events=0)),
        ("legacy", Behaviour(encoding="sse", retry_ms=10, drop="mid_answer")),
        ("modern", CUT),
        ("modern", Behaviour(**NUMBERED, prime=True, drop="mid_answer")),
    ],
    ids=["no id", "no id before the cut", "modern", "modern, cut"],
)
async def test_without_a_legacy_event_id_there_is_nothing_to_resume(era: Any, how: Behaviour):
    async with talking(era=era) as (server, client):
        await server.script(Rule(tool="record", do=how))
        assert isinstance(await failure_of(record(client)), CallOutcomeUnknown)
        assert await gets(server) == []
        assert len(await calls(server)) == await server.executions(KEY) == 1


@pytest.mark.requirement("P3")
async def test_the_deadline_covers_resuming_whatever_the_server_asks_for():
    async with talking(era="legacy") as (server, client):
        later = Behaviour(encoding="sse", prime=True, retry_ms=60_000, cut_stream_after_events=0)
        await client.connect()
        await server.script(Rule(tool="record", do=later))
        async with asyncio.timeout(2.0):
            error = await failure_of(client.call_tool("record", {"key": KEY}, timeout=0.3))
        assert isinstance(error, CallTimedOut)
        assert error.delivery is Delivery.UNKNOWN
        assert await gets(server) == []


@pytest.mark.requirement("S6")
async def test_a_session_lost_while_resuming_leaves_the_outcome_unknown_and_the_client_usable():
    async with talking(era="legacy") as (server, client):
        await server.script(Rule(tool="record", times=1, do=pausing(0.3)))
        broken = asyncio.create_task(record(client))
        await server.requests("tools/call", at_least=1)
        await server.forget_sessions()
        assert isinstance(await failure_of(broken), CallOutcomeUnknown)
        assert await server.executions(KEY) == 1
        assert (await client.call_tool("record", {"key": "next"})).attempts <= 2
        assert len(await server.requests("initialize")) == 2


@pytest.mark.requirement("S6")
async def test_resuming_on_a_session_that_was_replaced_does_not_replace_it_again():
    async with talking(era="legacy") as (server, client):
        await server.script(Rule(tool="record", times=1, do=pausing(0.5)))
        broken = asyncio.create_task(record(client))
        await server.requests("tools/call", at_least=1)
        await server.forget_sessions()
        await client.call_tool("echo", {"text": "on the next session"})
        new = client.session_id
        assert not broken.done()
        assert isinstance(await failure_of(broken), CallOutcomeUnknown)
        assert client.session_id == new
        await client.call_tool("echo", {"text": "still there"})
        assert methods(await server.requests()).count("initialize") == 2


def pausing(seconds: float) -> Behaviour:
    """A stream that breaks, from a server that wants to be asked again after so long."""
    retry = int(seconds * 1000)
    return Behaviour(encoding="sse", prime=True, retry_ms=retry, cut_stream_after_events=0)
