"""An agent with the tools of a UiPath definition: the whole loop, with trouble on the way.

A question interrupts the graph as with any other of our LangChain tools: `McpClient` hands on the
stream of its runtime, questions included.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from uipath.platform import UiPath

from tests.adapters._langchain import (
    BOUND,
    DONE,
    HELLO,
    LONG,
    calling,
    every_era,
    model_of,
    thread,
    told,
)
from tests.adapters._uipath import ADD, Platform, agent, platform, resource, settle
from toolkeep.adapters.uipath import create_mcp_tools_from_agent
from toolkeep.testing import Behaviour, Rule, ScriptedServer

SUM = ("add", {"a": 2, "b": 3})
LISTED = (
    ADD,
    *(
        {"name": name, "description": "", "inputSchema": {"type": "object"}}
        for name in ("ask", "fail", "headers", "record", "slow", "steps")
    ),
)
"""In a definition; `add` alone says what its arguments are."""
WHO = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Who?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
}
ADA: dict[str, Any] = {"action": "accept", "content": {"name": "Ada"}}

pytestmark = pytest.mark.requirement("A1", "A5")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    with platform() as played:
        settle(played, monkeypatch)
        yield played


@asynccontextmanager
async def house(home: Platform, era: Any) -> AsyncIterator[ScriptedServer]:
    """A server named `kit`, which the platform knows."""
    async with ScriptedServer.local(era=era, encoding="sse") as kit:
        home.servers["kit"] = kit.url
        yield kit


@asynccontextmanager
async def running(*steps: AIMessage, **options: Any) -> AsyncIterator[Any]:
    """An agent as its definition has it, with a model that takes these steps."""
    made, clients = await create_mcp_tools_from_agent(agent(resource("kit", *LISTED)), **options)
    try:
        yield create_agent(model_of(*steps), made, checkpointer=InMemorySaver())
    finally:
        for client in clients:
            await client.aclose()


async def run(agent: Any, given: Any = HELLO) -> dict[str, Any]:
    async with asyncio.timeout(BOUND):
        return await agent.ainvoke(given, thread())


@every_era
async def test_two_tools_are_called_at_the_same_time(home: Platform, era: Any) -> None:
    long = ("slow", {"seconds": LONG})
    async with house(home, era) as kit, running(calling(long, long)) as loop:
        both = asyncio.create_task(run(loop))
        await kit.requests("tools/call", at_least=2)  # neither has been answered
        both.cancel()
        await asyncio.wait((both,), timeout=BOUND)
        async with running(calling(SUM, ("record", {"key": "k"}))) as another:
            first, second = told(await run(another))
    assert (first.artifact, second.content) == ({"sum": 5}, "recorded")


async def test_a_session_that_is_lost_between_two_calls_is_not_noticed(home: Platform) -> None:
    async with house(home, "legacy") as kit, running(calling(SUM), calling(SUM)) as loop:
        answers: list[Any] = []
        async with asyncio.timeout(BOUND):
            async for chunk in loop.astream(HELLO, thread(), stream_mode="updates"):
                answers += chunk.get("tools", {}).get("messages", ())
                await kit.forget_sessions()
        assert [one.artifact for one in answers] == [{"sum": 5}] * 2
        assert len({one.session_id for one in await kit.requests("tools/call")}) > 1
        assert await kit.executions("add") == 2


@every_era
async def test_a_server_that_is_restarted_between_two_turns_is_used_again(
    home: Platform, era: Any
) -> None:
    async with house(home, era) as kit, running(calling(SUM), DONE, calling(SUM)) as loop:
        await run(loop)
        await kit.restart()
        answers = told(await run(loop))
        assert [one.artifact for one in answers] == [{"sum": 5}] * 2
        assert await kit.executions("add") == 2


@every_era
async def test_a_run_that_is_cancelled_cancels_its_call_and_tells_the_model_nothing(
    home: Platform, era: Any
) -> None:
    async with (
        house(home, era) as kit,
        running(calling(("slow", {"seconds": LONG}))) as loop,
    ):
        given_up = asyncio.create_task(run(loop))
        await kit.requests("tools/call", at_least=1)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert {one.tool for one in await kit.cancelled(at_least=1)} == {"slow"}
        assert told((await loop.aget_state(thread())).values) == []


@every_era
async def test_a_tool_s_own_error_is_told_in_its_own_words(home: Platform, era: Any) -> None:
    failing = calling(("fail", {"message": "the disk is full"}))
    async with house(home, era), running(failing) as loop:
        [answer] = told(await run(loop))
    assert (answer.status, answer.content) == ("error", "the disk is full")


@every_era
async def test_wrong_arguments_are_told_and_not_sent(home: Platform, era: Any) -> None:
    wrong = calling(("add", {"a": "two", "b": 3}))
    async with house(home, era) as kit, running(wrong, calling(SUM)) as loop:
        first, second = told(await run(loop))
        assert (first.status, second.status) == ("error", "success")
        assert "was not called" in str(first.content)
        assert len(await kit.requests("tools/call")) == 1


@every_era
async def test_an_unknown_outcome_is_told_and_the_tool_ran_once(home: Platform, era: Any) -> None:
    async with house(home, era) as kit, running(calling(("record", {"key": "k"}))) as loop:
        await kit.script(Rule(tool="record", do=Behaviour(drop="after_run"), times=1))
        [answer] = told(await run(loop))
        assert answer.status == "error"
        assert "Do not call it again" in str(answer.content)
        assert await kit.executions("k") == 1


@every_era
async def test_progress_is_in_the_graph_s_stream(home: Platform, era: Any) -> None:
    async with house(home, era), running(calling(("steps", {"count": 3}))) as loop:
        async with asyncio.timeout(BOUND):
            stream = loop.astream(HELLO, thread(), stream_mode="custom")
            events = [event async for event in stream]
    assert [event["fraction"] for event in events] == [1 / 3, 2 / 3, 1.0]
    assert {(event["tool"], event["call_id"]) for event in events} == {("steps", "c0")}


@every_era
async def test_two_users_speak_with_their_own_tokens(home: Platform, era: Any) -> None:
    async def speak(user: str) -> str:
        def sdk() -> UiPath:
            return UiPath(base_url=home.url, secret=user)

        async with running(calling(("headers", {})), sdk=sdk) as loop:
            [answer] = told(await run(loop))
            return answer.artifact["authorization"]

    async with house(home, era) as kit:
        assert await asyncio.gather(speak("ada"), speak("bob")) == ["Bearer ada", "Bearer bob"]
        calls = await kit.requests("tools/call")
        assert {one.headers["authorization"] for one in calls} == {"Bearer ada", "Bearer bob"}
        assert home.tokens == {"Bearer ada", "Bearer bob"}
        if era == "legacy":
            assert len({one.session_id for one in calls}) == 2


@every_era
async def test_a_question_interrupts_and_its_answer_goes_on_with_the_same_call(
    home: Platform, era: Any
) -> None:
    asking = calling(("ask", {"requests": {"name": WHO}, "rounds": 1, "key": "k"}))
    terms: dict[str, Any] = {"interrupts": True, "elicitation": "caller"}
    async with house(home, era) as kit, running(asking, **terms) as loop:
        [stop] = (await run(loop))["__interrupt__"]
        [question] = stop.value["questions"].values()
        assert question["params"]["message"] == "Who?"
        assert await kit.executions("k") == 0
        [answer] = told(await run(loop, Command(resume=ADA)))
        assert answer.artifact == {"answers": [{"name": ADA}]}
        assert await kit.executions("k") == 1
