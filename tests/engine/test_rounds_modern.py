"""The rounds of the modern era: what is sent again, how often, and with what."""

import asyncio
from typing import Any

import pytest

from tests.engine.helpers_rounds import (
    ADA,
    BOUND,
    ELICIT,
    HOMES,
    ROOTS,
    Thinker,
    Way,
    answering,
    client_of,
    meeting,
    modern_ways,
)
from tests.engine.helpers_wire import when
from toolkeep import CallOutcomeUnknown, CallTimedOut, InputNotGiven, InvalidResult
from toolkeep._client.deadline import RequestDeadline
from toolkeep._client.server_requests import InputRounds
from toolkeep.errors import Delivery
from toolkeep.events import InputNeeded
from toolkeep.testing import ScriptedServer

HTTP = Way("json", "modern")
ASK = {"requests": {"name": ELICIT}, "key": "k"}
CONTINUING = {"inputResponses", "requestState"}


class Asked:
    """Answers, and counts."""

    def __init__(self) -> None:
        self.times = 0

    async def __call__(self, needed: InputNeeded) -> Any:
        self.times += 1
        return ADA


@modern_ways
@pytest.mark.requirement("F3")
async def test_a_state_goes_back_byte_for_byte_and_on_that_one_request_alone(way: Way) -> None:
    async with meeting(way, elicitation=answering(ADA)) as (server, client):
        for _ in range(2):
            result = await client.call_tool("ask", {**ASK, "rounds": 3})
            assert result.data["answers"] == [{"name": ADA}] * 3
        sent = [seen.body["params"] for seen in await server.requests(tool="ask")]
    states = [params.get("requestState") for params in sent]
    assert [CONTINUING & params.keys() for params in sent] == [set(), *[CONTINUING] * 3] * 2
    assert len(set(states)) == 7, "each state is used once"
    assert len({seen["arguments"]["key"] for seen in sent}) == 1
    assert all(params["arguments"] == sent[0]["arguments"] for params in sent)


@modern_ways
@pytest.mark.requirement("F3")
async def test_every_leg_is_a_request_of_its_own(way: Way) -> None:
    async with meeting(way, elicitation=answering(ADA)) as (server, client):
        own = None if way.transport == "stdio" else {"x-own": "1"}
        await client.call_tool("ask", ASK, meta={"own": 1}, headers=own)
        first, second = await server.requests(tool="ask")
    assert first.body["id"] != second.body["id"]
    assert first.body["params"]["_meta"] == second.body["params"]["_meta"]
    assert first.headers.get("x-own") == second.headers.get("x-own")


@pytest.mark.requirement("F3")
async def test_ten_rounds_are_played_and_no_more() -> None:
    asked = Asked()
    async with meeting(HTTP, elicitation=asked) as (server, client):
        result = await client.call_tool("ask", {**ASK, "rounds": 10})
        assert len(result.data["answers"]) == asked.times == 10
        with pytest.raises(InputNotGiven) as caught:
            await client.call_tool("ask", {**ASK, "rounds": 11, "key": "more"})
        assert caught.value.requests == {"name": ELICIT}
        assert caught.value.delivery is Delivery.ANSWERED
        assert await server.executions("more") == 0
        assert await server.executions("more:legs") == 11


@modern_ways
@pytest.mark.requirement("F3")
async def test_a_state_without_questions_is_sent_back(way: Way) -> None:
    async with meeting(way) as (server, client):
        result = await client.call_tool("ask", {"requests": {}, "state_only": True})
        assert result.data == {"answers": []}
        second = (await server.requests(tool="ask"))[1].body["params"]
    assert CONTINUING & second.keys() == {"requestState"}


EMPTY = {"resultType": "input_required", "requestState": ""}


async def test_a_server_that_only_sends_a_state_is_asked_less_and_less_often() -> None:
    pauses: list[float] = []
    left = iter([*[EMPTY] * 6, {"resultType": "complete"}])

    async def send(more: dict[str, Any]) -> dict[str, Any]:
        return next(left)

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def ask(*asked: Any) -> Any:
        raise AssertionError

    rounds = InputRounds("kit", "echo", RequestDeadline(10.0), max_rounds=10)
    await rounds.complete(next(left), send=send, ask=ask, pause=pause)
    assert pauses == [0.05, 0.1, 0.2, 0.25, 0.25, 0.25]


@modern_ways
@pytest.mark.requirement("P3")
async def test_what_there_is_no_time_left_for_is_not_sent(way: Way) -> None:
    async with meeting(way) as (server, client):
        await client.connect()
        await server.script(when(tool="echo", delay=0.28, result={**EMPTY, "requestState": "s"}))
        with pytest.raises(CallTimedOut):
            await client.call_tool("echo", {"text": "hi"}, timeout=0.32)
        assert (await client.call_tool("steps", {"count": 1})).text
        assert len(await server.requests(tool="echo")) == 1


@pytest.mark.requirement("F3")
async def test_an_empty_state_is_a_state() -> None:
    async with meeting(HTTP) as (server, client):
        await server.script(when(tool="echo", times=1, result=EMPTY))
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert (await server.requests(tool="echo"))[1].body["params"]["requestState"] == ""


@pytest.mark.requirement("P3")
async def test_pauses_between_legs_count_against_the_deadline() -> None:
    async with meeting(HTTP) as (server, client):
        await server.script(when(tool="echo", result=EMPTY))
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await client.call_tool("echo", {"text": "hi"}, timeout=0.4)
        assert asyncio.get_running_loop().time() - began < 1.2


@pytest.mark.parametrize(
    "requests",
    [
        {"q": {"method": "no/such"}},
        {"q": "what?"},
        {"q": None},
        {"q": {"method": 7, "params": []}},
    ],
)
@pytest.mark.requirement("F3")
async def test_a_question_that_is_none_is_a_result_that_is_none(requests: Any) -> None:
    async with meeting(HTTP, elicitation=answering(ADA)) as (server, client):
        result = {"resultType": "input_required", "inputRequests": requests, "requestState": "s"}
        await server.script(when(tool="echo", times=1, result=result))
        with pytest.raises(InvalidResult):
            await client.call_tool("echo", {"text": "hi"})
        assert len(await server.requests(tool="echo")) == 1


@modern_ways
@pytest.mark.requirement("F3")
async def test_a_question_can_be_returned_and_answered_by_another_client(way: Way) -> None:
    async with meeting(way, elicitation="caller") as (server, client):
        asked = await client.call_tool("ask", ASK, input="return")
        assert asked.needs_input
        assert not asked.success
        assert asked.input_requests == {"name": ELICIT}
        await client.aclose()
        async with client_of(server, way, elicitation="caller") as other:
            result = await other.call_tool(
                "ask", ASK, input_responses={"name": ADA}, request_state=asked.request_state
            )
        assert result.success
        assert result.data["answers"] == [{"name": ADA}]
        assert await server.ledger() == {"k": 1, "k:legs": 2}


@pytest.mark.requirement("F3")
async def test_a_round_goes_on_at_a_server_that_has_restarted() -> None:
    async with (
        ScriptedServer.spawn(era="modern") as server,
        client_of(server, HTTP, elicitation="caller") as client,
    ):
        asked = await client.call_tool("ask", {**ASK, "rounds": 2}, input="return")
        await server.restart()
        more: Any = {"input_responses": {"name": ADA}, "request_state": asked.request_state}
        again = await client.call_tool("ask", {**ASK, "rounds": 2}, input="return", **more)
        assert again.needs_input
        more["request_state"] = again.request_state
        result = await client.call_tool("ask", {**ASK, "rounds": 2}, **more)
    assert result.data["answers"] == [{"name": ADA}] * 2


@modern_ways
@pytest.mark.requirement("F3")
async def test_a_server_may_restart_while_a_human_thinks(way: Way) -> None:
    thinker = Thinker()
    async with meeting(way, elicitation=thinker) as (server, client):
        asking = asyncio.create_task(client.call_tool("ask", ASK))
        await thinker.until(asked=1)
        await server.restart()
        thinker.answer.set_result(ADA)
        assert (await asking).data["answers"] == [{"name": ADA}]
        assert len(thinker.asked) == 1
        assert await server.ledger() == {"k": 1, "k:legs": 2}


@pytest.mark.requirement("L1")
async def test_a_returned_question_completes_its_watched_call() -> None:
    async with (
        meeting(HTTP, elicitation="caller") as (_, client),
        client.stream("ask", ASK, input="return") as call,
    ):
        events = [event async for event in call]
        assert [event.kind for event in events] == ["started", "completed"]
        assert (await call.result()).needs_input


LOST = {"drop": "after_run"}


@pytest.mark.parametrize("lost_leg", [0, 1, 2])
@pytest.mark.requirement("P2")
async def test_a_lost_leg_is_not_sent_again(lost_leg: int) -> None:
    asked = Asked()
    async with meeting(HTTP, elicitation=asked) as (server, client):
        await server.script(when(tool="ask", skip=lost_leg, times=1, **LOST))
        with pytest.raises(CallOutcomeUnknown):
            await client.call_tool("ask", {**ASK, "rounds": 2})
        assert await server.executions("k:legs") == lost_leg + 1
    assert asked.times == lost_leg


@pytest.mark.parametrize(
    ("settings", "behaviour", "attempts"),
    [
        ({}, {"status": 429, "headers": {"retry-after": "0"}}, 3),
        ({}, {"status": 503, "headers": {"retry-after": "0"}}, 3),
        ({"retry_tools": {"ask": "always"}}, LOST, 3),
    ],
    ids=["throttled", "unavailable", "allowed"],
)
@pytest.mark.requirement("P2")
async def test_a_leg_that_may_be_sent_again_brings_the_same_answers(
    settings: Any, behaviour: Any, attempts: int
) -> None:
    asked = Asked()
    async with meeting(HTTP, elicitation=asked, **settings) as (server, client):
        await server.script(when(tool="ask", skip=1, times=1, **behaviour))
        result = await client.call_tool("ask", ASK)
        assert result.data["answers"] == [{"name": ADA}]
        assert result.attempts == attempts
        _, second, third = [seen.body["params"] for seen in await server.requests(tool="ask")]
    assert second == third
    assert asked.times == 1, "who has answered is not asked again"


def needs(**requests: Any) -> dict[str, Any]:
    return {"resultType": "input_required", "inputRequests": requests, "requestState": "s"}


@modern_ways
@pytest.mark.requirement("F3")
async def test_prompts_and_resources_can_ask_too(way: Way) -> None:
    async with meeting(way, roots=answering(HOMES)) as (server, client):
        for method in ("prompts/get", "resources/read"):
            await server.script(when(method, times=1, result=needs(r=ROOTS)))
        prompt = await client.get_prompt("greet", {"name": "Ada"})
        resource = await client.read_resource("kit://notes")
        assert len(prompt.messages) == len(resource.contents) == 1
        for method in ("prompts/get", "resources/read"):
            first, second = [seen.body["params"] for seen in await server.requests(method)]
            more = {"inputResponses": {"r": HOMES}, "requestState": "s"}
            assert second == {**first, **more}


@pytest.mark.parametrize("method", ["prompts/get", "resources/read"])
@pytest.mark.requirement("F3")
async def test_a_prompt_or_resource_that_nobody_answers_fails(method: str) -> None:
    async with meeting(HTTP, timeouts={"call": 1.0}) as (server, client):
        await server.script(when(method, result=needs(r=ROOTS)))
        asking = (
            client.get_prompt("greet")
            if method == "prompts/get"
            else client.read_resource("kit://notes")
        )
        async with asyncio.timeout(BOUND):
            with pytest.raises(InputNotGiven) as caught:
                await asking
        assert caught.value.requests == {"r": ROOTS}


@pytest.mark.requirement("P3")
async def test_all_rounds_of_a_read_share_one_deadline() -> None:
    async with meeting(HTTP, roots=answering(HOMES), timeouts={"call": 0.5}) as (server, client):
        await server.script(when("resources/read", delay=0.2, result=needs(r=ROOTS)))
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await client.read_resource("kit://notes")
        assert asyncio.get_running_loop().time() - began < 1.2
