"""Agents of four frameworks that see thousands of tools through two, and large results in parts."""

import asyncio
import json
from typing import Any

import pytest
from langchain.agents import create_agent

from tests.adapters import _adk as ga
from tests.adapters import _langchain as lc
from tests.adapters import _openai_agents as oa
from tests.adapters import _pydantic_ai as pa
from tests.adapters._servers import house
from toolkeep import CallOutcomeUnknown, Runtime
from toolkeep.adapters import adk, langchain, openai_agents
from toolkeep.adapters._common import error_message
from toolkeep.adapters.pydantic_ai import RuntimeToolset
from toolkeep.errors import Delivery
from toolkeep.runtime import result_reader, tool_search
from toolkeep.testing import Behaviour, Rule

SEARCH, CALL, READ = "toolkeep__search_tools", "toolkeep__call_tool", "toolkeep__read_result"
SPILLS = {"max_result_chars": 1_000, "oversized": "spool"}
FIND = (SEARCH, {"query": "add two numbers", "limit": 3})
ADD = (CALL, {"name": "kit.add", "arguments": {"a": 2, "b": 3}})
WRONG = (CALL, {"name": "kit.ad", "arguments": {}})
RECORD = (CALL, {"name": "kit.record", "arguments": {"key": "one"}})
BIG = (CALL, {"name": "kit.big", "arguments": {"bytes": 3_000}})


def given(runtime: Runtime) -> list[Any]:
    return [*tool_search(runtime), *result_reader(runtime)]


def unknown() -> CallOutcomeUnknown:
    error = CallOutcomeUnknown("", server="kit", delivery=Delivery.UNKNOWN)
    error.called = "kit.record"
    return error


@pytest.mark.requirement("T11", "A3")
async def test_an_openai_agent_finds_and_calls_through_two_tools() -> None:
    async with house("modern", spec=SPILLS) as (kit, runtime):
        await kit.script(Rule(tool="record", do=Behaviour(drop="after_run")))
        model = oa.scripted([FIND], [ADD, WRONG], [RECORD], [BIG], "Done.")
        result = await oa.run(model, {"tools": await openai_agents.tools(given(runtime))})
        assert result.final_output == "Done."
        said = oa.outputs(model)
        assert sorted(oa.offered_to(model)) == sorted([SEARCH, CALL, READ])
        assert json.loads(_text(said["1"]))["tools"][0]["name"] == "kit.add"
        assert "5" in _text(said["2"])
        assert "kit.add" in _text(said["3"])
        assert _text(said["4"]) == error_message(unknown(), CALL)
        assert READ in _text(said["5"])
        assert await kit.executions("one") == 1


@pytest.mark.requirement("T11", "A1")
async def test_a_langchain_agent_finds_calls_and_reads_through_three_tools() -> None:
    async with house("legacy", spec=SPILLS) as (kit, runtime), asyncio.timeout(lc.BOUND):
        tools = await langchain.tools(given(runtime))
        model = lc.model_of(lc.calling(FIND), lc.calling(ADD), lc.calling(BIG))
        agent: Any = create_agent(model, tools)
        state = await agent.ainvoke(lc.HELLO)
        found, added, big = lc.told(state)
        assert json.loads(_text(found.content))["tools"][0]["name"] == "kit.add"
        assert added.artifact == {"sum": 5}
        handle = _text(big.content).split(" minutes as ")[1].split(".")[0]
        reads = lc.calling((READ, {"handle": handle, "length": 2_000}))
        agent = create_agent(lc.model_of(reads), tools)
        state = await agent.ainvoke(lc.HELLO)
        (part,) = lc.told(state)
        assert "start=2000" in _text(part.content)
        assert await kit.executions("add") == 1


@pytest.mark.requirement("T11", "A2")
async def test_an_agent_of_adk_finds_and_calls_through_two_tools() -> None:
    async with house("modern", spec=SPILLS) as (kit, runtime):
        model = ga.ScriptedModel.saying([FIND], [ADD], [BIG], "Done.")
        async with ga.conversation(model, await adk.tools(given(runtime))) as talk:
            await talk.say()
        found, added, big = model.answers
        assert "kit.add" in json.dumps(found)
        assert added["status"] == "success"
        assert READ in json.dumps(big)
        assert await kit.executions("add") == 1


@pytest.mark.requirement("T11", "A4")
async def test_an_agent_of_pydantic_ai_finds_and_calls_through_two_tools() -> None:
    async with house("legacy", spec=SPILLS) as (kit, runtime):
        script = pa.Script([FIND], [ADD], [BIG], "Done.")
        assert await pa.run(script, RuntimeToolset(given(runtime))) == "Done."
        said = {number: one.content for number, one in script.returns.items()}
        assert "kit.add" in str(said["1"])
        assert "5" in str(said["2"])
        assert READ in str(said["3"])
        assert await kit.executions("add") == 1


def _text(content: Any) -> str:
    """What a model reads, however its framework wraps it."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return str(content.get("text", ""))
    return "".join(_text(block) for block in content)
