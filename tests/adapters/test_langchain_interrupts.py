"""A server's questions interrupt the graph; resumed, the call goes on, and no tool runs twice."""

import asyncio
import gc
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from pydantic import ValidationError

from tests.adapters._langchain import (
    BOUND,
    HELLO,
    WAYS,
    agent_of,
    calling,
    every_era,
    every_way,
    house,
    runtime_for,
    thread,
    told,
)
from toolkeep import CallOutcomeUnknown, Runtime
from toolkeep.adapters.langchain import tools
from toolkeep.testing import Behaviour, Rule

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
ELICIT = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "Who?", "requestedSchema": SCHEMA},
}
ADA: dict[str, Any] = {"action": "accept", "content": {"name": "Ada"}}


def asking(rounds: int = 1, key: str = "k", **requests: Any) -> tuple[str, dict[str, Any]]:
    wanted = requests or {"name": ELICIT}
    return "kit__ask", {"requests": wanted, "rounds": rounds, "key": key}


async def step(agent: Any, given: Any, **more: Any) -> dict[str, Any]:
    async with asyncio.timeout(BOUND):
        return await agent.ainvoke(given, thread(**more))


def house_that_asks(way: str, **options: Any) -> Any:
    server = {} if way.startswith("stdio") else {"encoding": "sse"}
    return house(way, server=server, elicitation="caller", **options)


@every_way
@pytest.mark.requirement("A1")
async def test_a_question_interrupts_and_its_answer_goes_on_with_the_same_call(way: str) -> None:
    async with house_that_asks(way) as (kit, runtime):
        agent = await agent_of(runtime, calling(asking()), interrupts=True)
        [stop] = (await step(agent, HELLO))["__interrupt__"]
        assert (stop.value["tool"], stop.value["tool_call_id"]) == ("kit__ask", "c0")
        [question] = stop.value["questions"].values()
        assert question["method"] == "elicitation/create"
        assert question["params"]["message"] == "Who?"
        assert await kit.executions("k") == 0
        [answer] = told(await step(agent, Command(resume=ADA)))
        assert answer.status == "success"
        assert answer.artifact == {"answers": [{"name": ADA}]}
        assert await kit.executions("k") == 1
        assert await kit.executions("k:legs") == (1 if way.endswith("legacy") else 2)


@every_era
@pytest.mark.requirement("A1")
async def test_a_server_may_ask_again(era: str) -> None:
    async with house_that_asks(f"http {era}") as (kit, runtime):
        agent = await agent_of(runtime, calling(asking(rounds=3)), interrupts=True)
        state = await step(agent, HELLO)
        for name in ("Ada", "Grace", "Edsger"):
            assert len(state["__interrupt__"]) == 1
            content = {"action": "accept", "content": {"name": name}}
            state = await step(agent, Command(resume=content))
        [answer] = told(state)
        said = [one["name"]["content"]["name"] for one in answer.artifact["answers"]]
        assert said == ["Ada", "Grace", "Edsger"]
        assert await kit.executions("k") == 1
        assert await kit.executions("k:legs") == (1 if era == "legacy" else 4)


@every_era
@pytest.mark.requirement("A1")
async def test_a_user_may_decline(era: str) -> None:
    async with house_that_asks(f"http {era}") as (kit, runtime):
        agent = await agent_of(runtime, calling(asking()), interrupts=True)
        await step(agent, HELLO)
        [answer] = told(await step(agent, Command(resume={"action": "decline"})))
        assert answer.artifact == {"answers": [{"name": {"action": "decline"}}]}
        assert await kit.executions("k") == 1


@every_era
@pytest.mark.requirement("A1")
async def test_what_is_no_answer_is_refused_and_the_question_stays_open(era: str) -> None:
    async with house_that_asks(f"http {era}") as (kit, runtime):
        agent = await agent_of(runtime, calling(asking()), interrupts=True)
        await step(agent, HELLO)
        with pytest.raises(ValidationError):
            await step(agent, Command(resume="maybe"))
        [answer] = told(await step(agent, Command(resume=ADA)))
        assert answer.artifact == {"answers": [{"name": ADA}]}
        assert await kit.executions("k") == 1


@pytest.mark.requirement("A1")
async def test_several_questions_of_one_round_are_answered_by_their_keys() -> None:
    async with house_that_asks("http modern") as (_, runtime):
        call = asking(first=ELICIT, second=ELICIT)
        agent = await agent_of(runtime, calling(call), interrupts=True)
        [stop] = (await step(agent, HELLO))["__interrupt__"]
        assert stop.value["questions"].keys() == {"first", "second"}
        answers = {"first": ADA, "second": {"action": "decline"}}
        [answer] = told(await step(agent, Command(resume=answers)))
        assert answer.artifact == {"answers": [answers]}


@every_era
@pytest.mark.requirement("A1")
async def test_two_calls_that_ask_at_once_are_answered_one_by_one(era: str) -> None:
    async with house_that_asks(f"http {era}") as (kit, runtime):
        calls = calling(asking(key="one"), ("kit__record", {"key": "r"}), asking(key="two"))
        agent = await agent_of(runtime, calls, interrupts=True)
        state = await step(agent, HELLO)
        for stop in state["__interrupt__"]:
            name = {"action": "accept", "content": {"name": stop.value["tool_call_id"]}}
            state = await step(agent, Command(resume={stop.id: name}))
        answers = {one.tool_call_id: one for one in told(state)}
        for call in ("c0", "c2"):
            said = answers[call].artifact["answers"][0]["name"]["content"]
            assert said == {"name": call}
        ran = [await kit.executions(key) for key in ("one", "two", "r")]
        assert ran == [1, 1, 1]


@every_era
@pytest.mark.requirement("A1")
async def test_what_ran_beside_a_question_in_one_node_does_not_run_again(era: str) -> None:
    async with house_that_asks(f"http {era}") as (kit, runtime):
        node = ToolNode(await tools(runtime, interrupts=True))
        graph: Any = StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools")
        agent = graph.compile(checkpointer=InMemorySaver())
        made = calling(("kit__record", {"key": "r"}), asking())
        for number, call in enumerate(made.tool_calls):
            call["id"] = f"c{number}"
        await step(agent, {"messages": [AIMessage("", tool_calls=made.tool_calls)]})
        await kit.requests(tool="record", at_least=1)
        first, second = told(await step(agent, Command(resume=ADA)))
        assert (first.content, second.artifact) == ("recorded", {"answers": [{"name": ADA}]})
        assert [await kit.executions(key) for key in ("r", "k")] == [1, 1]


@pytest.mark.parametrize("way", [way for way in WAYS if "http" in way])
@pytest.mark.requirement("A1")
async def test_another_process_goes_on_or_says_that_it_cannot_know(way: str) -> None:
    async with house_that_asks(way) as (kit, runtime):
        saver = InMemorySaver()
        agent = await agent_of(runtime, calling(asking()), interrupts=True, saver=saver)
        await step(agent, HELLO)
        async with runtime_for(kit, elicitation="caller") as another:  # shares the checkpoints only
            resumed = await agent_of(another, interrupts=True, saver=saver)
            [answer] = told(await step(resumed, Command(resume=ADA)))
            calls = len(await kit.requests("tools/call"))
        if way.endswith("modern"):
            assert answer.artifact == {"answers": [{"name": ADA}]}
            assert (calls, await kit.executions("k")) == (2, 1)
        else:
            assert answer.status == "error"
            assert "Do not call it again" in str(answer.content)
            assert (calls, await kit.executions("k")) == (1, 0)


@pytest.mark.requirement("A1")
async def test_an_open_call_is_not_handed_to_another_user() -> None:
    async with house_that_asks("http legacy") as (kit, runtime):
        agent = await agent_of(runtime, calling(asking()), interrupts=True, errors="raise")
        await step(agent, HELLO, principal="ada")
        with pytest.raises(CallOutcomeUnknown):
            await step(agent, Command(resume=ADA), principal="grace")
        assert await kit.executions("k") == 0


@pytest.mark.requirement("A1")
async def test_an_answer_that_comes_too_late_brings_what_the_tool_did_without_it() -> None:
    async with house_that_asks("http legacy") as (kit, _):
        spec = {**kit.spec, "timeouts": {"input": 0.2}}
        async with Runtime({"kit": spec}, elicitation="caller") as runtime:
            agent = await agent_of(runtime, calling(asking()), interrupts=True)
            await step(agent, HELLO)
            async with asyncio.timeout(BOUND):
                while not await kit.executions("k"):
                    await asyncio.sleep(0.01)
            [answer] = told(await step(agent, Command(resume=ADA)))
            assert answer.artifact == {"answers": [{"name": {"action": "decline"}}]}
            assert await kit.executions("k") == 1


async def test_a_runtime_that_is_closed_ends_its_open_calls(caplog: Any) -> None:
    async with house_that_asks("http legacy") as (kit, runtime):
        agent = await agent_of(runtime, calling(asking()), interrupts=True)
        await step(agent, HELLO)
        await runtime.aclose()
        assert await kit.executions("k") == 0
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []


@every_era
@pytest.mark.requirement("A1")
async def test_a_run_that_is_cancelled_after_the_answer_cancels_the_call(era: str) -> None:
    async with house_that_asks(f"http {era}") as (kit, runtime):
        agent = await agent_of(runtime, calling(asking(rounds=2)), interrupts=True)
        await step(agent, HELLO)
        await kit.script(Rule(do=Behaviour(hang=True, run=False), times=1))  # stuck
        before = len(await kit.requests())
        running = asyncio.create_task(agent.ainvoke(Command(resume=ADA), thread()))
        async with asyncio.timeout(BOUND):
            while len(await kit.requests()) == before:
                await asyncio.sleep(0.005)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            while "ask" not in {one.tool for one in await kit.cancelled(at_least=1)}:
                await asyncio.sleep(0.005)
        assert await kit.executions("k") == 0


@every_era
async def test_without_a_graph_the_runtime_answers(era: str) -> None:
    async def accept(needed: Any) -> Any:
        return ADA

    async with house(f"http {era}", server={"encoding": "sse"}, elicitation=accept) as (_, runtime):
        [tool] = await tools(runtime, ["ask"], interrupts=True)
        name, arguments = asking()
        call = {"name": name, "args": arguments, "id": "x", "type": "tool_call"}
        assert (await tool.ainvoke(call)).artifact == {"answers": [{"name": ADA}]}


@every_era
@pytest.mark.requirement("A1")
async def test_progress_beside_a_question_is_told_once(era: str) -> None:
    async with house_that_asks(f"http {era}") as (_, runtime):
        calls = calling(asking(), ("kit__steps", {"count": 2}))
        agent = await agent_of(runtime, calls, interrupts=True)
        seen = [event async for event in agent.astream(HELLO, thread(), stream_mode="custom")]
        assert [event["progress"] for event in seen] == [1, 2]
        rest = agent.astream(Command(resume=ADA), thread(), stream_mode="custom")
        assert [event async for event in rest] == []
