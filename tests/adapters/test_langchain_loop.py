"""An agent of LangChain with our tools: the whole loop, with trouble on the way."""

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from tests.adapters._langchain import (
    BOUND,
    DONE,
    HELLO,
    LONG,
    agent_of,
    calling,
    every_era,
    every_way,
    house,
    model_of,
    thread,
    told,
)
from toolkeep import Runtime
from toolkeep.adapters.langchain import tools
from toolkeep.testing import Behaviour, Rule

ADD = ("kit__add", {"a": 2, "b": 3})


async def run(agent: Any, **more: Any) -> dict[str, Any]:
    async with asyncio.timeout(BOUND):
        return await agent.ainvoke(HELLO, thread(**more))


@every_way
@pytest.mark.requirement("A1", "A5")
async def test_an_agent_calls_a_tool_that_was_found_by_name(way: str) -> None:
    async with house(way) as (kit, runtime):
        model = model_of(calling(ADD))
        agent = create_agent(model, await tools(runtime, ["add"]))
        [answer] = told(await run(agent))
        assert model.offered == [["kit__add"], ["kit__add"]]
        assert (answer.name, answer.status, answer.tool_call_id) == ("kit__add", "success", "c0")
        assert answer.artifact == {"sum": 5}
        assert await kit.executions("add") == 1


@pytest.mark.requirement("A1", "A5")
async def test_an_agent_calls_a_function_of_this_process() -> None:
    def area(width: float, height: float) -> float:
        """The area of a rectangle."""
        return width * height

    async with Runtime({}, functions=[area]) as runtime:
        step = calling(("builtin__area", {"width": 3, "height": 4}))
        [answer] = told(await run(await agent_of(runtime, step)))
    assert (answer.content, answer.status) == ("12.0", "success")


@every_era
@pytest.mark.requirement("A1", "A5")
async def test_two_tools_are_called_at_the_same_time(era: str) -> None:
    async with house(f"http {era}", server={"encoding": "sse"}) as (kit, runtime):
        slow = calling(("kit__slow", {"seconds": LONG}), ("kit__slow", {"seconds": LONG}))
        running = asyncio.create_task(run(await agent_of(runtime, slow)))
        await kit.requests("tools/call", at_least=2)
        running.cancel()
        await asyncio.wait((running,))
        both = await agent_of(runtime, calling(ADD, ("kit__echo", {"text": "hi"})))
        answers = told(await run(both))
    assert [(one.tool_call_id, one.status) for one in answers] == [
        ("c0", "success"),
        ("c1", "success"),
    ]
    assert answers[1].content == "hi"


@pytest.mark.requirement("A5")
async def test_a_session_that_is_lost_between_two_calls_is_not_noticed() -> None:
    async with house("http legacy") as (kit, runtime):
        agent = await agent_of(runtime, calling(ADD), calling(ADD))
        answers: list[Any] = []
        async with asyncio.timeout(BOUND):
            async for chunk in agent.astream(HELLO, thread(), stream_mode="updates"):
                answers += chunk.get("tools", {}).get("messages", ())
                await kit.forget_sessions()
        assert [one.artifact for one in answers] == [{"sum": 5}] * 2
        sessions = [one.session_id for one in await kit.requests("tools/call")]
        assert len(set(sessions)) > 1
        assert await kit.executions("add") == 2


@every_era
@pytest.mark.requirement("A5")
async def test_a_server_that_is_restarted_between_two_turns_is_used_again(era: str) -> None:
    async with house(f"http {era}") as (kit, runtime):
        agent = await agent_of(runtime, calling(ADD), DONE, calling(ADD))
        await run(agent)
        await kit.restart()
        answers = told(await run(agent))
        assert [one.artifact for one in answers] == [{"sum": 5}] * 2
        assert await kit.executions("add") == 2


@every_way
@pytest.mark.requirement("A1", "A5")
async def test_a_run_that_is_cancelled_cancels_its_call_and_tells_the_model_nothing(
    way: str,
) -> None:
    options = {} if way.startswith("stdio") else {"encoding": "sse"}
    async with house(way, server=options) as (kit, runtime):
        saver = InMemorySaver()
        agent = await agent_of(runtime, calling(("kit__slow", {"seconds": LONG})), saver=saver)
        running = asyncio.create_task(agent.ainvoke(HELLO, thread()))
        await kit.requests("tools/call", at_least=1)
        running.cancel()
        async with asyncio.timeout(BOUND):
            with pytest.raises(asyncio.CancelledError):
                await running
        assert {one.tool for one in await kit.cancelled(at_least=1)} == {"slow"}
        state = await agent.aget_state(thread())
        assert told(state.values) == []


@every_era
@pytest.mark.requirement("A1", "A5")
async def test_a_tool_s_own_error_is_told_in_its_own_words(era: str) -> None:
    async with house(f"http {era}") as (_, runtime):
        step = calling(("kit__fail", {"message": "the disk is full"}))
        [answer] = told(await run(await agent_of(runtime, step)))
    assert (answer.status, answer.content) == ("error", "the disk is full")


@pytest.mark.requirement("A1", "A5")
async def test_wrong_arguments_are_told_and_not_sent() -> None:
    async with house() as (kit, runtime):
        wrong, right = calling(("kit__add", {"a": "two", "b": 3})), calling(ADD)
        first, second = told(await run(await agent_of(runtime, wrong, right)))
        assert (first.status, second.status) == ("error", "success")
        assert "was not called" in str(first.content)
        assert len(await kit.requests("tools/call")) == 1


@pytest.mark.requirement("A1", "A5")
async def test_a_server_out_of_reach_is_told_as_one() -> None:
    async with house("stdio modern") as (kit, runtime):
        agent = await agent_of(runtime, calling(ADD), timeout=1.0)
        await kit.script(Rule(do=Behaviour(drop="before_body", exit_code=3)))
        kit.kill()
        [answer] = told(await run(agent))
        assert answer.status == "error"
        assert "did not run" in str(answer.content)
        assert await kit.executions("add") == 0


@every_era
@pytest.mark.requirement("A1", "A5")
async def test_an_unknown_outcome_is_told_and_the_tool_ran_once(era: str) -> None:
    async with house(f"http {era}") as (kit, runtime):
        await kit.script(Rule(tool="record", do=Behaviour(drop="after_run"), times=1))
        agent = await agent_of(runtime, calling(("kit__record", {"key": "k"})))
        [answer] = told(await run(agent))
        assert answer.status == "error"
        assert "Do not call it again" in str(answer.content)
        assert await kit.executions("k") == 1


@every_way
@pytest.mark.requirement("A1", "A5")
async def test_progress_is_in_the_graph_s_stream_and_in_the_callbacks(way: str) -> None:
    options = {} if way.startswith("stdio") else {"encoding": "sse"}
    async with house(way, server=options) as (_, runtime):
        step = calling(("kit__steps", {"count": 3}))
        streamed = [
            event
            async for event in (await agent_of(runtime, step)).astream(
                HELLO, thread(), stream_mode="custom"
            )
        ]
        agent = await agent_of(runtime, step)
        called_back = [
            event["data"]
            async for event in agent.astream_events(HELLO, thread(), version="v2")
            if (event["event"], event["name"]) == ("on_custom_event", "toolkeep.progress")
        ]
    for events in (streamed, called_back):
        assert [event["fraction"] for event in events] == [1 / 3, 2 / 3, 1.0]
        assert {(event["tool"], event["call_id"]) for event in events} == {("steps", "c0")}


@every_era
@pytest.mark.requirement("A1", "A5")
async def test_two_users_of_one_agent_speak_with_their_own_tokens(era: str) -> None:
    async with house(f"http {era}") as (kit, runtime):
        call = calling(("kit__headers", {}))
        agent = await agent_of(runtime, call, call, DONE)

        async def speak(user: str) -> str:
            headers = {"authorization": f"Bearer {user}"}
            [answer] = told(await run(agent, name=user, principal=user, headers=headers))
            return answer.artifact["authorization"]

        said = await asyncio.gather(speak("ada"), speak("grace"))
        assert said == ["Bearer ada", "Bearer grace"]
        calls = await kit.requests("tools/call")
        assert {one.headers["authorization"] for one in calls} == {"Bearer ada", "Bearer grace"}
        if era == "legacy":
            assert len({one.session_id for one in calls}) == 2
