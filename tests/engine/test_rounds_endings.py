"""A question ends with what it belongs to: the call, the caller, the connection, the client."""

import asyncio
from typing import Any

import pytest

from tests.engine.helpers_rounds import (
    ADA,
    ELICIT,
    LEGACY,
    Ear,
    Thinker,
    Way,
    both_eras,
    ended,
    eventually,
    every_way,
    legacy_ways,
    meeting,
)
from tests.engine.helpers_wire import when
from toolkeep import CallOutcomeUnknown, ToolkeepError
from toolkeep.events import InputNeeded

PROMPTLY = 0.8
"""Seconds, on a busy machine: nobody waits for a question when a client is closed."""
ASK = {"requests": {"q": ELICIT}, "key": "k"}


@every_way
@pytest.mark.requirement("P5", "F3")
async def test_cancelling_the_caller_ends_the_question_and_tells_the_server(way: Way) -> None:
    thinker = Thinker()
    async with meeting(way, elicitation=thinker) as (server, client):
        asking = asyncio.create_task(client.call_tool("ask", ASK))
        await thinker.until(asked=1)
        await ended(asking)
        assert asking.cancelled()
        await thinker.until(cancelled=1)
        if way.era == "legacy":
            [told] = await eventually(lambda: notified(server))
            assert told.tool == "ask"
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert len(await server.requests(tool="ask")) == 1, "a modern round has nothing to cancel"
        assert not [seen for seen in await server.requests() if is_answer(seen.body)]
        assert await server.executions("k") == 0


async def notified(server: Any) -> list[Any]:
    return [one for one in await server.cancelled() if one.how == "notification"]


def is_answer(body: Any) -> bool:
    return isinstance(body, dict) and "method" not in body


@both_eras
@pytest.mark.requirement("P5", "L3")
async def test_leaving_a_watched_call_ends_its_question(way: Way) -> None:
    thinker = Thinker()
    async with meeting(way, elicitation=thinker) as (server, client):
        async with client.stream("ask", ASK) as call:
            async for event in call:
                if isinstance(event, InputNeeded):
                    await thinker.until(asked=1)
                    break
        await thinker.until(cancelled=1)
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert await server.executions("k") == 0


@both_eras
@pytest.mark.requirement("P5")
async def test_a_deadline_of_the_callers_own_ends_the_question(way: Way) -> None:
    thinker = Thinker()
    async with meeting(way, elicitation=thinker) as (_, client):
        await client.connect()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.call_tool("ask", ASK)
        await thinker.until(asked=1, cancelled=1)


@legacy_ways
@pytest.mark.requirement("P5")
async def test_a_server_may_withdraw_its_question(way: Way) -> None:
    thinker = Thinker()
    async with meeting(way, elicitation=thinker) as (server, client):
        Ear(client)
        await client.connect()
        asking = asyncio.create_task(client.call_tool("ask", ASK))
        await thinker.until(asked=1)
        await server.notify(
            "notifications/cancelled", {"requestId": "kit-1", "reason": "never mind"}
        )
        await thinker.until(cancelled=1)
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert not asking.done(), "a withdrawn question says nothing about the call"
        assert not [seen for seen in await server.requests() if is_answer(seen.body)]
        await ended(asking)


@legacy_ways
@pytest.mark.requirement("P5")
async def test_a_server_may_withdraw_a_question_outside_of_calls(way: Way) -> None:
    thinker = Thinker()
    async with meeting(way, elicitation=thinker) as (server, client):
        Ear(client)
        await client.connect()
        asking = asyncio.create_task(server.ask_client(ELICIT["method"], ELICIT["params"]))
        await thinker.until(asked=1)
        await server.notify("notifications/cancelled", {"requestId": "kit-1"})
        await thinker.until(cancelled=1)
        await ended(asking)


@pytest.mark.parametrize("way", [*LEGACY, Way("json", "modern")], ids=str)
@pytest.mark.requirement("F3")
async def test_a_call_that_breaks_off_ends_its_question(way: Way) -> None:
    thinker = Thinker()
    async with meeting(way, elicitation=thinker) as (server, client):
        if way.era == "modern":
            await server.script(when(tool="ask", skip=1, drop="after_run"))
        asking = asyncio.create_task(client.call_tool("ask", ASK))
        await thinker.until(asked=1)
        if way.era == "modern":
            thinker.answer.set_result(ADA)
        else:
            await server.restart()
        with pytest.raises(CallOutcomeUnknown):
            await asking
        if way.era == "legacy":
            await thinker.until(cancelled=1)


SSE = Way("sse-answers", "legacy")
QUESTION = (
    'data: {"jsonrpc": "2.0", "id": "late", "method": "elicitation/create", "params": '
    '{"mode": "form", "message": "?", "requestedSchema": {"type": "object", "properties": {}}}}\n\n'
)


@pytest.mark.requirement("F3")
async def test_a_question_that_comes_with_the_answer_outlives_no_call() -> None:
    thinker = Thinker()
    async with meeting(SSE, elicitation=thinker) as (server, client):
        ear = Ear(client, listen=False)
        await server.script(when(tool="echo", sse_prefix=QUESTION))
        for _ in range(5):
            assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        await client.ping()
        assert len(thinker.asked) == thinker.cancelled
        final = max(place for place, event in enumerate(ear.events) if event.kind == "completed")
        assert not [event for event in ear.events[final:] if isinstance(event, InputNeeded)]


@every_way
@pytest.mark.requirement("F3")
async def test_closing_the_client_ends_its_questions(way: Way) -> None:
    thinker = Thinker()
    async with meeting(way, elicitation=thinker) as (server, client):
        asking = asyncio.create_task(client.call_tool("ask", ASK))
        await thinker.until(asked=1)
        async with asyncio.timeout(PROMPTLY):
            await client.aclose()
        if way.era == "modern":
            thinker.answer.set_result(ADA)
        with pytest.raises(ToolkeepError):
            await asking
        if way.era == "legacy":
            await thinker.until(cancelled=1)
        assert await server.executions("k") == 0


@legacy_ways
@pytest.mark.requirement("F3")
async def test_closing_the_client_ends_questions_outside_of_calls(way: Way) -> None:
    thinker = Thinker()
    async with meeting(way, elicitation=thinker) as (server, client):
        Ear(client)
        await client.connect()
        asking = asyncio.create_task(server.ask_client(ELICIT["method"], ELICIT["params"]))
        await thinker.until(asked=1)
        async with asyncio.timeout(PROMPTLY):
            await client.aclose()
        await thinker.until(cancelled=1)
        await ended(asking)
