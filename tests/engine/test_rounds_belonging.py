"""Whose question is it? Each call's own, where that can be told; the client's, where it cannot."""

import asyncio
import json
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

import pytest

from tests.engine.helpers_programs import program
from tests.engine.helpers_rounds import (
    ADA,
    BOUND,
    ELICIT,
    HOMES,
    LEGACY,
    MODERN,
    Ear,
    Thinker,
    Way,
    answering,
    both_eras,
    ended,
    legacy_ways,
    meeting,
)
from tests.engine.helpers_wire import when
from toolkeep import CallTimedOut, Client
from toolkeep.events import InputNeeded, Started

caller: ContextVar[str] = ContextVar("caller", default="nobody")


@both_eras
@pytest.mark.requirement("F3")
async def test_each_of_many_calls_gets_its_own_questions_in_its_own_context(way: Way) -> None:
    async def whose(needed: InputNeeded) -> Any:
        return {"action": "accept", "content": {"who": caller.get(), "call": needed.call_id}}

    async with meeting(way, elicitation=whose) as (_, client):

        async def ask(who: str) -> tuple[str, str]:
            caller.set(who)
            async with client.stream("ask", {"requests": {"name": ELICIT}}) as call:
                [started, needed, _] = [event async for event in call]
                content = (await call.result()).data["answers"][0]["name"]["content"]
            assert isinstance(started, Started)
            assert isinstance(needed, InputNeeded)
            assert started.call_id == needed.call_id == content["call"]
            return who, content["who"]

        pairs = await asyncio.gather(*(ask(f"user {number}") for number in range(12)))
    assert all(asking == asked for asking, asked in pairs)
    assert len(set(pairs)) == 12


@pytest.mark.parametrize("way", [Way("stdio", "legacy"), Way("http+sse", "legacy")], ids=str)
@pytest.mark.requirement("F3")
async def test_on_a_shared_pipe_a_question_of_one_among_many_calls_is_nobodys(way: Way) -> None:
    thinker = Thinker()
    async with meeting(way, elicitation=thinker) as (server, client):
        await client.connect()
        other = asyncio.create_task(client.call_tool("slow", {"seconds": 5}))
        await server.requests(tool="slow", at_least=1)
        asking = asyncio.create_task(client.call_tool("ask", {"requests": {"name": ELICIT}}))
        await thinker.until(asked=1)
        assert (thinker.asked[0].tool, thinker.asked[0].call_id) == ("", "")
        thinker.answer.set_result(ADA)
        assert (await asking).data["answers"] == [{"name": ADA}]
        await ended(other)


@legacy_ways
@pytest.mark.requirement("F3")
async def test_a_server_may_ask_outside_of_any_call(way: Way) -> None:
    async with meeting(way, elicitation=answering(ADA), roots=answering(HOMES)) as (server, client):
        ear = Ear(client)
        await client.connect()
        assert await server.ask_client("roots/list") == HOMES
        assert await server.ask_client(ELICIT["method"], ELICIT["params"]) == ADA
        assert (await server.ask_client("no/such"))["error"]["code"] == -32601
        needed = [event for event in ear.events if isinstance(event, InputNeeded)]
        assert [(one.method, one.tool, one.call_id) for one in needed] == [
            ("roots/list", "", ""),
            ("elicitation/create", "", ""),
        ]


@legacy_ways
@pytest.mark.requirement("F3")
async def test_a_client_that_answers_hears_questions_without_an_observer(way: Way) -> None:
    async with meeting(way, roots=answering(HOMES)) as (server, client):
        await client.connect()
        assert await server.ask_client("roots/list") == HOMES


@pytest.mark.parametrize("way", [*LEGACY, *MODERN], ids=str)
@pytest.mark.requirement("F3")
async def test_legacy_servers_are_told_that_roots_changed(way: Way) -> None:
    async with meeting(way, roots=answering(HOMES)) as (server, client):
        await client.notify_roots_changed()
        await client.call_tool("echo", {"text": "hi"})
        told = await server.requests("notifications/roots/list_changed")
        assert len(told) == (1 if way.era == "legacy" else 0), (
            "a modern one asks when it needs them"
        )


async def test_a_question_in_json_has_no_way_to_answer_it() -> None:
    async with meeting(LEGACY[0], elicitation=answering(ADA)) as (_, client):
        ear = Ear(client, listen=False)
        await client.call_tool("ask", {"requests": {"name": ELICIT}})
    [needed] = [event for event in ear.events if isinstance(event, InputNeeded)]
    told = json.loads(needed.to_json())
    keys = {"event", "server", "at", "tool", "call_id", "method", "params", "key"}
    keys.add("answer_required")
    assert told.keys() == keys
    assert told["params"].items() >= ELICIT["params"].items()


@pytest.mark.requirement("F3")
async def test_a_client_that_answers_is_open_when_it_can_be_asked() -> None:
    async with meeting(Way("json", "legacy"), roots=answering(HOMES)) as (server, client):
        await client.connect()  # what is imported then takes its time, too
        await client.aclose()
        await server.script(when(verb="GET", delay=0.3))
        began = asyncio.get_running_loop().time()
        await client.connect()
        assert asyncio.get_running_loop().time() - began >= 0.3


WAITS = """
held = []

def on_call(told, name):
    held.append(told)
    if name == "late":
        done(held[0])
    if name != "drop_table":
        ask(name)

serve(on_call, lambda answer: done(held.pop()))
"""
"""Leaves a call of `drop_table` unanswered until one of `late` comes; asks before other answers."""


@pytest.mark.requirement("F3", "S14")
async def test_a_question_after_a_call_was_given_up_may_be_of_that_one_and_is_nobodys() -> None:
    asked: list[InputNeeded] = []

    async def note(needed: InputNeeded) -> Any:
        asked.append(needed)
        return ADA

    async with aclosing(Client(program(WAITS), elicitation=note)) as client:
        with pytest.raises(CallTimedOut):
            await client.call_tool("drop_table", timeout=0.3)
        for tool in ("read_weather", "late"):
            await client.call_tool(tool, timeout=BOUND)
    assert [needed.tool for needed in asked] == ["", "late"]


ASKS_LATE = """
answers = []

def on_call(told, name):
    if name == "slow":
        threading.Timer(0.6, ask, ("late",)).start()
    else:
        done(told, json.dumps(answers))

serve(on_call, answers.append)
"""
"""Asks in the course of `slow` when its caller has long gone; `heard` tells what was answered."""


@pytest.mark.requirement("F3")
async def test_a_question_of_a_call_that_is_over_is_put_to_nobody() -> None:
    asked: list[InputNeeded] = []

    async def note(needed: InputNeeded) -> Any:
        asked.append(needed)
        return ADA

    async with aclosing(Client(program(ASKS_LATE), elicitation=note)) as client:
        with pytest.raises(CallTimedOut):
            await client.call_tool("slow", timeout=0.3)
        async with asyncio.timeout(BOUND):
            await asyncio.sleep(0.6)  # until it has asked: while it does, nothing else is under way
            while not (answers := json.loads((await client.call_tool("heard")).text)):
                await asyncio.sleep(0.05)
    assert not asked
    assert "error" in answers[0]


ASKS_BESIDE = """
answers = []

def on_call(told, name):
    if name == "glance":
        ask("beside")
        done(told)
    else:
        done(told, json.dumps(answers))

serve(on_call, answers.append)
"""
"""Asks while a call of `glance` is under way, and answers the call without waiting."""


@pytest.mark.requirement("F3")
async def test_a_call_that_is_answered_first_leaves_the_question_to_be_answered() -> None:
    thinker = Thinker()
    async with aclosing(Client(program(ASKS_BESIDE), elicitation=thinker)) as client:
        await client.call_tool("glance", timeout=BOUND)
        await thinker.until(asked=1)
        thinker.answer.set_result(ADA)
        async with asyncio.timeout(BOUND):
            while not (answers := json.loads((await client.call_tool("heard")).text)):
                await asyncio.sleep(0.01)
    assert answers[0]["result"] == ADA
