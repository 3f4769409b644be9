"""Agents of five frameworks that search tools, and call them in a program of their own."""

import asyncio
import json
from typing import Any

import pytest
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from tests.adapters import _adk as ga
from tests.adapters import _langchain as lc
from tests.adapters import _openai_agents as oa
from tests.adapters import _pydantic_ai as pa
from tests.adapters._servers import house
from tests.adapters._uipath import ADD as ADD_TOOL
from tests.adapters._uipath import resource
from toolkeep import CallContext, InvalidArguments, Runtime
from toolkeep.adapters import adk, langchain, openai_agents
from toolkeep.adapters.pydantic_ai import RuntimeToolset
from toolkeep.adapters.uipath import McpClient
from toolkeep.auth import StaticKey
from toolkeep.code_mode import code_tools
from toolkeep.events import Completed, Failed, Progress, Started
from toolkeep.testing import Behaviour, Rule, ScriptedServer

pytestmark = [pytest.mark.requirement("X4"), pytest.mark.usefixtures("sandbox")]

SEARCH, RUN = "toolkeep__search_tools", "toolkeep__run_code"
FIND = (SEARCH, {"query": "add two numbers", "limit": 2})
SUM = (RUN, {"code": "first = await kit__add(a=2, b=3)\nawait kit__add(a=first['sum'], b=10)"})
WRONG = (RUN, {"code": "await kit__add(a='2', b=3)"})
LOSE = (RUN, {"code": "await kit__add(a=1, b=1)\nawait kit__record(key='one')"})
TURNS = ([FIND], [SUM], [WRONG], [LOSE])
SIGNATURE = "async def kit__add(*, a: float, b: float, key: str = ...) -> KitAddResult:"


def given(runtime: Runtime) -> list[Any]:
    return code_tools(runtime, allow=["kit.*"])


def judge(found: str, summed: str, refused: str, lost: str) -> None:
    """What a model reads, the same in every framework."""
    assert SIGNATURE in found
    assert json.loads(summed) == {"sum": 15}
    assert "was not started, and nothing was called" in refused
    assert "line 1" in refused
    assert "line 2" in lost
    assert "kit.add(a=1, b=1), line 1: ran" in lost
    assert "Find out whether it ran before you repeat it: kit.record." in lost


@pytest.mark.requirement("A3")
async def test_an_openai_agent_runs_programs() -> None:
    async with house("modern") as (kit, runtime):
        await kit.script(Rule(tool="record", do=Behaviour(drop="after_run")))
        model = oa.scripted(*TURNS, "Done.")
        result = await oa.run(model, {"tools": await openai_agents.tools(given(runtime))})
        assert result.final_output == "Done."
        said = oa.outputs(model)
        assert sorted(oa.offered_to(model)) == sorted([SEARCH, RUN])
        judge(*(_text(said[str(n)]) for n in range(1, 5)))
        assert await kit.ledger() == {"add": 3, "one": 1}


@pytest.mark.requirement("A1")
@pytest.mark.parametrize("interrupts", [False, True])
async def test_a_langchain_agent_runs_programs(interrupts: bool) -> None:
    async with house("legacy") as (kit, runtime), asyncio.timeout(lc.BOUND):
        await kit.script(Rule(tool="record", do=Behaviour(drop="after_run")))
        tools = await langchain.tools(given(runtime), interrupts=interrupts)
        model = lc.model_of(*(lc.calling(*turn) for turn in TURNS))
        agent: Any = create_agent(model, tools, checkpointer=InMemorySaver())
        state = await agent.ainvoke(lc.HELLO, lc.thread())
        judge(*(_text(message.content) for message in lc.told(state)))
        assert await kit.ledger() == {"add": 3, "one": 1}


@pytest.mark.requirement("A2")
async def test_an_agent_of_adk_runs_programs() -> None:
    async with house("modern") as (kit, runtime):
        await kit.script(Rule(tool="record", do=Behaviour(drop="after_run")))
        model = ga.ScriptedModel.saying(*TURNS, "Done.")
        async with ga.conversation(model, await adk.tools(given(runtime))) as talk:
            await talk.say()
        found, summed, refused, lost = model.answers
        assert [one["status"] for one in model.answers] == ["success", "success", "error", "error"]
        judge(found["result"], json.dumps(_data(summed)), refused["error"], lost["error"])
        assert await kit.ledger() == {"add": 3, "one": 1}


@pytest.mark.requirement("A4")
async def test_an_agent_of_pydantic_ai_runs_programs() -> None:
    async with house("legacy") as (kit, runtime):
        await kit.script(Rule(tool="record", do=Behaviour(drop="after_run")))
        script = pa.Script(*TURNS, "Done.")
        assert await pa.run(script, RuntimeToolset(given(runtime))) == "Done."
        said = [str(content) for _, content in script.outcomes.values()]
        judge(*said)
        assert await kit.ledger() == {"add": 3, "one": 1}


@pytest.mark.requirement("A1")
async def test_an_agent_of_uipath_runs_programs() -> None:
    async with (
        ScriptedServer.local(api_key="token") as kit,
        McpClient(resource("kit", ADD_TOOL), url=kit.url, auth=StaticKey("token")) as client,
        asyncio.timeout(lc.BOUND),
    ):
        await kit.script(Rule(tool="record", do=Behaviour(drop="after_run")))
        tools = await langchain.tools(given(await client.connect()))
        agent: Any = create_agent(lc.model_of(*(lc.calling(*turn) for turn in TURNS)), tools)
        judge(*(_text(one.content) for one in lc.told(await agent.ainvoke(lc.HELLO))))
        assert await kit.ledger() == {"add": 3, "one": 1}


# -- the two tools themselves ---------------------------------------------------------------------


async def test_the_two_tools_speak_for_whoever_calls_them() -> None:
    ada = CallContext(principal="ada", headers={"x-user": "ada"})
    bob = CallContext(principal="bob", headers={"x-user": "bob"})
    async with house("legacy") as (_, runtime):
        _, run = code_tools(runtime, ada, allow=["*"])
        code = {"code": "(await kit__headers())['x-user']"}
        assert (await run.call(code)).text == '"ada"'
        assert (await run.call(code, context=bob)).text == '"bob"'
        assert (await run.call(code, headers={"x-user": "carl"})).text == '"carl"'


async def test_a_search_shows_signatures_of_what_a_program_may_call() -> None:
    async with house("legacy") as (_, runtime):
        search, run = code_tools(runtime)
        found = (await search.call({"query": "record side effect changes", "limit": 3})).text
        assert "async def kit__record_read_only(*, key: str = ...) -> Any:" in found
        assert '    """Changes nothing."""' in found
        assert "async def kit__record(" not in found
        assert "Not allowed here, because they may change something: kit.record" in found
        assert "Nothing was found" in (await search.call({"query": "zebra"})).text
        assert (search.read_only, run.read_only) == (True, True)
        assert not code_tools(runtime, allow=["*"])[1].read_only
        with pytest.raises(InvalidArguments):
            await search.call({})
        with pytest.raises(InvalidArguments):
            await run.call({"code": ""})


async def test_many_long_signatures_are_cut_to_a_bound() -> None:
    properties = {f"p{n}": {"type": "string", "description": "d" * 90} for n in range(30)}
    tools: list[Any] = [
        {
            "name": f"find_{n}",
            "description": "Finds a thing.",
            "inputSchema": {"type": "object", "properties": properties},
            "annotations": {"readOnlyHint": True},
        }
        for n in range(20)
    ]
    async with (
        ScriptedServer.local(tools=tools) as kit,
        Runtime({"kit": kit.spec}) as runtime,
    ):
        search, _ = code_tools(runtime)
        found = (await search.call({"query": "find thing", "limit": 20})).text
    assert len(found) < 41_000
    assert "more are not shown" in found


async def test_a_watched_program_tells_of_its_calls_progress() -> None:
    async with house("modern") as (_, runtime):
        search, run = code_tools(runtime, allow=["*"])
        async with run.stream({"code": "await kit__steps(count=2)"}) as call:
            events = [event async for event in call]
            assert (await call.result()).text == '"2 steps"'
        assert [type(event) for event in events] == [Started, Progress, Progress, Completed]
        async with search.stream({"query": "add"}) as call:
            assert SIGNATURE in (await call.result()).text
        async with run.stream({"code": 5}) as call:
            events = [event async for event in call]
        assert isinstance(events[-1], Failed)


async def test_a_timeout_of_the_call_is_the_programs() -> None:
    async with house("modern") as (_, runtime):
        _, run = code_tools(runtime, allow=["*"])
        result = await run.call({"code": "await kit__slow(seconds=30)"}, timeout=1)
    assert result.is_error
    assert "stopped after 1 s" in result.text


def _data(response: dict[str, Any]) -> Any:
    found = response["result"]
    return json.loads(found) if isinstance(found, str) else found


def _text(content: Any) -> str:
    """What a model reads, however its framework wraps it."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return str(content.get("text", ""))
    return "".join(_text(block) for block in content)
