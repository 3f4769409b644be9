"""No question holds up a call for ever: functions that fail, hang or talk nonsense, and the clock.

What a server learns of a failure is that there was one.
"""

import asyncio
import json
import sys
import time
from contextlib import aclosing
from typing import Any

import pytest
from mcp_types import CreateMessageResult, ElicitResult, TextContent

from tests.engine.helpers_programs import program
from tests.engine.helpers_rounds import (
    ADA,
    BOUND,
    ELICIT,
    ONE_EACH,
    ROOTS,
    SAID,
    SAMPLE,
    Thinker,
    Way,
    answering,
    both_eras,
    every_way,
    meeting,
    modern_ways,
)
from tests.engine.helpers_wire import when
from toolkeep import CallTimedOut, Client, InputNotGiven
from toolkeep.events import InputNeeded

DECLINED = {"action": "decline"}
SECRET = "hunter2"


async def outcome(client: Client, request: Any, **options: Any) -> Any:
    """What the server was answered: a result or an error; or that it was answered nothing."""
    try:
        result = await client.call_tool("ask", {"requests": {"q": request}}, **options)
    except InputNotGiven as error:
        return error
    return result.data["answers"][0]["q"]


def is_refusal(found: Any) -> bool:
    return isinstance(found, InputNotGiven) or "error" in found


async def fail(needed: InputNeeded) -> Any:
    raise RuntimeError(SECRET)


async def time_out(needed: InputNeeded) -> Any:
    raise TimeoutError(SECRET)


async def cancel_itself(needed: InputNeeded) -> Any:
    raise asyncio.CancelledError(SECRET)


@every_way
@pytest.mark.parametrize("function", [fail, time_out, cancel_itself])
@pytest.mark.requirement("F3")
async def test_a_function_that_fails_declines(way: Way, function: Any) -> None:
    async with meeting(way, elicitation=function, sampling=function) as (server, client):
        assert await outcome(client, ELICIT) == DECLINED
        refusal = await outcome(client, SAMPLE)
        assert is_refusal(refusal)
        assert SECRET not in str(refusal)
        said = json.dumps([seen.body for seen in await server.requests()])
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
    assert SECRET not in said
    assert "Traceback" not in said


@pytest.mark.parametrize("way", ONE_EACH, ids=str)
@pytest.mark.requirement("P5")
async def test_a_cancellation_inside_of_a_function_is_not_the_callers(way: Way) -> None:
    async with meeting(way, elicitation=cancel_itself) as (_, client):
        asking = asyncio.create_task(client.call_tool("ask", {"requests": {"q": ELICIT}}))
        await asyncio.wait((asking,))
        assert not asking.cancelled()


NONSENSE = [
    42,
    SECRET,
    {"action": SECRET},
    {},
    SAID,
    [ADA],
    ElicitResult,
    CreateMessageResult(role="assistant", content=TextContent(type="text", text=""), model="x"),
]


@both_eras
@pytest.mark.parametrize("nonsense", NONSENSE, ids=range(len(NONSENSE)))
@pytest.mark.requirement("F3")
async def test_nonsense_is_never_sent(way: Way, nonsense: Any) -> None:
    async with meeting(way, elicitation=answering(nonsense)) as (server, client):
        assert is_refusal(await outcome(client, ELICIT))
        assert SECRET not in json.dumps([seen.body for seen in await server.requests()])


@both_eras
@pytest.mark.parametrize("content", [{"name": object()}, {"name": {1, 2}}, {"n": float("nan")}])
@pytest.mark.requirement("F3")
async def test_what_json_cannot_say_is_never_sent(way: Way, content: Any) -> None:
    answer = {"action": "accept", "content": content}
    async with meeting(way, elicitation=answering(answer)) as (_, client):
        assert is_refusal(await outcome(client, ELICIT))


@every_way
@pytest.mark.requirement("F3", "P3")
async def test_a_function_that_hangs_is_given_up(way: Way) -> None:
    thinker = Thinker()
    timeouts = {"input": 0.1}
    async with meeting(way, elicitation=thinker, roots=thinker, timeouts=timeouts) as (_, client):
        assert await outcome(client, ELICIT) == DECLINED
        assert is_refusal(await outcome(client, ROOTS))
        await thinker.until(asked=2, cancelled=2)


@both_eras
@pytest.mark.requirement("F3")
async def test_a_function_that_will_not_be_cancelled_holds_up_nobody(way: Way) -> None:
    release = asyncio.Event()

    async def stubborn(needed: InputNeeded) -> Any:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with meeting(way, elicitation=stubborn, timeouts={"input": 0.1}) as (_, client):
        assert await outcome(client, ELICIT) == DECLINED
    release.set()


@both_eras
@pytest.mark.requirement("F3", "P3")
async def test_a_watcher_who_never_answers_is_given_up(way: Way) -> None:
    async with (
        meeting(way, elicitation="caller", timeouts={"input": 0.1}) as (_, client),
        client.stream("ask", {"requests": {"q": ELICIT}}) as call,
    ):
        needed = [event async for event in call if isinstance(event, InputNeeded)]
        assert (await call.result()).data["answers"] == [{"q": DECLINED}]
        needed[0].accept({"too": "late"})


def thinking(seconds: float) -> Any:
    async def think(needed: InputNeeded) -> Any:
        await asyncio.sleep(seconds)
        return ADA

    return think


@every_way
@pytest.mark.requirement("P3")
async def test_a_calls_time_stands_still_while_a_human_thinks(way: Way) -> None:
    async with meeting(way, elicitation=thinking(0.7)) as (_, client):
        await client.connect()
        assert await outcome(client, ELICIT, timeout=0.5) == ADA


@both_eras
@pytest.mark.requirement("P3")
async def test_a_calls_time_stands_still_until_the_last_of_several_questions(way: Way) -> None:
    slow = iter((0.1, 0.7, 0.3))

    async def think(needed: InputNeeded) -> Any:
        await asyncio.sleep(next(slow))
        return ADA

    async with meeting(way, elicitation=think) as (_, client):
        await client.connect()
        requests = dict.fromkeys(("one", "two", "three"), ELICIT)
        result = await client.call_tool("ask", {"requests": requests}, timeout=0.5)
    assert result.data["answers"] == [dict.fromkeys(requests, ADA)]


SLOW_AFTER_THE_QUESTION = {
    Way("json", "legacy"): when(skip=1, status=202, run=False),  # our answer is not heard
    Way("json", "modern"): when(tool="ask", skip=1, delay=5.0),
    Way("stdio", "legacy"): when(tool="ask", delay=5.0),
}


@pytest.mark.parametrize("way", SLOW_AFTER_THE_QUESTION, ids=str)
@pytest.mark.requirement("P3")
async def test_a_calls_time_goes_on_after_the_answer(way: Way) -> None:
    async with meeting(way, elicitation=thinking(0.3)) as (server, client):
        await client.connect()
        await server.script(SLOW_AFTER_THE_QUESTION[way])
        began = time.monotonic()
        with pytest.raises(CallTimedOut):
            await outcome(client, ELICIT, timeout=0.4)
        assert 0.65 < time.monotonic() - began < 1.5


@pytest.mark.requirement("P3")
async def test_all_legs_share_one_deadline() -> None:
    async with meeting(Way("json", "modern"), elicitation=answering(ADA)) as (server, client):
        await client.connect()
        await server.script(when(tool="ask", delay=0.3))
        began = time.monotonic()
        with pytest.raises(CallTimedOut):
            await client.call_tool("ask", {"requests": {"q": ELICIT}, "rounds": 5}, timeout=0.5)
        assert time.monotonic() - began < 0.9


@pytest.mark.requirement("P3")
async def test_a_server_that_never_stops_asking_is_bounded_by_the_time_for_each_answer() -> None:
    thinker = Thinker()
    way = Way("json", "legacy")
    async with meeting(way, elicitation=thinker, timeouts={"input": 0.05}) as (server, client):
        result = await client.call_tool("ask", {"requests": {"q": ELICIT}, "rounds": 3})
        assert result.data["answers"] == [{"q": DECLINED}] * 3
        assert await server.executions("ask") == 1


REPORTING = """
import json, sys
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        about = {"capabilities": {}, "serverInfo": {"name": "asks", "version": "1"}}
        say(id=asked["id"], result={"protocolVersion": "2025-11-25", **about})
    elif asked.get("method") == "tools/call":
        call = asked
        say(id="q", method="roots/list")
        token = asked["params"]["_meta"]["progressToken"]
        say(method="notifications/progress", params={"progressToken": token, "progress": 1})
    elif asked.get("id") == "q":
        say(id=call["id"], result={"content": []})
"""


@pytest.mark.requirement("P3")
async def test_a_report_while_a_human_thinks_does_not_start_the_clock() -> None:
    reported = asyncio.Event()

    async def think(needed: InputNeeded) -> Any:
        await reported.wait()
        await asyncio.sleep(0.5)
        return {"roots": []}

    args = ["-I", "-S", "-c", REPORTING]
    timeouts = {"call": 0.3, "extend_on_progress": True}
    spec: Any = {"command": sys.executable, "args": args, "mode": "legacy", "timeouts": timeouts}
    async with aclosing(Client(spec, roots=think)) as client:
        await client.connect()
        result = await client.call_tool("any", on_progress=lambda *told: reported.set())
        assert result.success


ENDLESS = """
SAMPLE = "sampling/createMessage"
serve(lambda told, name: ask("q", SAMPLE), lambda answer: ask("q", SAMPLE))
"""


@pytest.mark.requirement("P3")
async def test_a_server_that_asks_again_at_once_does_not_hold_a_call_for_ever() -> None:
    asked: list[str] = []

    async def say(needed: InputNeeded) -> Any:
        asked.append(needed.tool)
        return SAID

    async with aclosing(Client(program(ENDLESS), sampling=say)) as client:
        async with asyncio.timeout(BOUND):
            with pytest.raises(CallTimedOut):
                await client.call_tool("any", timeout=0.5)
    assert asked.count("any") == 100


@pytest.mark.requirement("P3")
async def test_even_a_question_holds_no_call_for_longer_than_the_longest() -> None:
    thinker = Thinker()
    timeouts = {"max_call": 0.5}
    async with aclosing(Client(program(ENDLESS, timeouts=timeouts), sampling=thinker)) as client:
        async with asyncio.timeout(BOUND):
            with pytest.raises(CallTimedOut):
                await client.call_tool("any", timeout=0.2)
        await thinker.until(asked=1, cancelled=1)


# -- how much a modern server may ask ------------------------------------------------------------


class Counter:
    """Counts how many of its answers are under way at a time."""

    def __init__(self) -> None:
        self.asked = self.now = self.most = 0

    async def __call__(self, needed: InputNeeded) -> Any:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(5):
            await asyncio.sleep(0)
        self.now -= 1
        return ADA


@modern_ways
@pytest.mark.requirement("F5")
async def test_a_round_of_many_questions_is_answered_a_few_at_a_time(way: Way) -> None:
    counter = Counter()
    async with meeting(way, elicitation=counter) as (_, client):
        asked = {f"q{number}": ELICIT for number in range(60)}
        result = await client.call_tool("ask", {"requests": asked})
    assert len(result.data["answers"][0]) == 60
    assert counter.asked == 60
    assert 1 < counter.most <= 8


@modern_ways
@pytest.mark.requirement("F5")
async def test_a_round_of_too_many_questions_is_not_answered_at_all(way: Way) -> None:
    counter = Counter()
    async with meeting(way, elicitation=counter) as (_, client):
        asked = {f"q{number}": ELICIT for number in range(20_000)}
        with pytest.raises(InputNotGiven, match="more than 100 requests"):
            await client.call_tool("ask", {"requests": asked})
    assert counter.asked == 0


@pytest.mark.requirement("F5")
async def test_the_questions_of_all_rounds_count_together() -> None:
    counter = Counter()
    async with meeting(Way("json", "modern"), elicitation=counter) as (_, client):
        asked = {f"q{number}": ELICIT for number in range(30)}
        with pytest.raises(InputNotGiven, match="more than 100 requests"):
            await client.call_tool("ask", {"requests": asked, "rounds": 8})
    assert counter.asked == 90


@pytest.mark.parametrize(("rounds", "ends_well"), [(12, True), (3, False)])
@pytest.mark.requirement("F5")
async def test_the_number_of_rounds_can_be_set(rounds: int, ends_well: bool) -> None:
    way = Way("json", "modern")
    async with meeting(way, elicitation=answering(ADA), max_input_rounds=rounds) as (_, client):
        call = client.call_tool("ask", {"requests": {"q": ELICIT}, "rounds": 11})
        if ends_well:
            assert len((await call).data["answers"]) == 11
            return
        with pytest.raises(InputNotGiven, match="after 3 rounds"):
            await call


@pytest.mark.requirement("F5")
async def test_the_longest_call_bounds_a_modern_call_with_all_its_questions() -> None:
    timeouts = {"call": 1.5, "max_call": 1.5}
    thinker = Thinker()
    async with meeting(Way("json", "modern"), elicitation=thinker, timeouts=timeouts) as (
        _,
        client,
    ):
        with pytest.raises(InputNotGiven, match="max_call"):
            await client.call_tool("ask", {"requests": {"q": ELICIT}})
        assert thinker.cancelled == 1
