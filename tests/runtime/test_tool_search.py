"""Two tools in place of all: what a model finds with them, and what comes back from a call."""

import asyncio
import json
from typing import Any

import pytest

from tests.runtime._identity import BOUND, house, named
from toolkeep import (
    CallContext,
    CallNotSentInTime,
    CallOutcomeUnknown,
    InvalidArguments,
    Runtime,
    Tool,
)
from toolkeep.events import Completed, Failed, Progress, Started
from toolkeep.runtime import result_reader, tool_search
from toolkeep.testing import Behaviour, Rule


def two(runtime: Runtime, context: CallContext | None = None) -> tuple[Tool, Tool]:
    search, call = tool_search(runtime, context)
    return search, call


async def names(search: Tool, query: str, **more: Any) -> list[str]:
    found = await search.call({"query": query, **more})
    return [tool["name"] for tool in found.data["tools"]]


@pytest.mark.requirement("T11")
async def test_a_model_finds_a_tool_and_calls_it_by_the_name_that_it_was_shown() -> None:
    async with house("modern") as (server, runtime):
        search, call = two(runtime)
        found = await search.call({"query": "add numbers"})
        best = found.data["tools"][0]
        assert best["name"] == "kit.add"
        assert set(best["input_schema"]["required"]) == {"a", "b"}
        assert json.loads(found.text) == found.data
        result = await call.call({"name": best["name"], "arguments": {"a": 2, "b": 3}})
        assert result.data == {"sum": 5}
        assert (result.server, result.tool) == ("kit", "add")
        assert await server.executions("add") == 1


async def test_the_two_look_like_any_other_tools() -> None:
    async with house("modern") as (_, runtime):
        search, call = two(runtime)
        assert [search.model_name, call.model_name] == [
            "toolkeep__search_tools",
            "toolkeep__call_tool",
        ]
        assert search.read_only
        assert not call.read_only
        assert call.destructive, "whatever it calls may be"
        assert call.model_name in search.description, "by the name that the model knows"


@pytest.mark.requirement("T7", "T11")
async def test_a_search_shows_what_its_caller_may_see_and_nothing_else() -> None:
    permissions = {"ada": ["kit.*"], "bob": ["kit.echo"], "*": []}
    async with house("modern", permissions=permissions) as (_, runtime):
        (search, call), query = two(runtime), "echo add record"
        assert "kit.add" in await names(two(runtime, named("ada"))[0], query)
        assert await names(two(runtime, named("bob"))[0], query) == ["kit.echo"]
        assert await names(search, query) == []
        found = await search.call({"query": query}, context=named("bob"))
        assert [tool["name"] for tool in found.data["tools"]] == ["kit.echo"]
        refused = await call.call({"name": "kit.add"}, context=named("bob"))
        assert refused.is_error
        assert "kit.echo" not in refused.text or "kit.add" not in refused.text.split("Nearest")[-1]


async def test_a_search_that_has_to_look_further_shows_each_tool_once() -> None:
    tools = [{"name": f"find_{n}", "inputSchema": {"type": "object"}} for n in range(12)]
    even = {f"find_{n}" for n in range(0, 12, 2)}
    async with house("modern", filter=lambda tool, context: tool.tool in even) as (server, runtime):
        await server.set_tools(tools)
        await runtime.refresh("kit")
        found = [tool.tool for tool in await runtime.search("find", limit=3)]
        assert len(found) == len(set(found)) == 3
        assert set(found) < even


async def test_nothing_found_is_an_answer_that_says_so() -> None:
    async with house("modern") as (_, runtime):
        found = await two(runtime)[0].call({"query": "zeppelin"})
        assert found.data["tools"] == []
        assert found.data["note"]


async def test_the_same_query_has_the_same_answer() -> None:
    async with house("modern") as (_, runtime):
        search, _ = two(runtime)
        answers = [await names(search, "record say", limit=5) for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize(
    ("which", "arguments"),
    [
        (0, {}),
        (0, {"query": ""}),
        (0, {"query": "x", "limit": 0}),
        (0, {"query": "x", "limit": 1_000}),
        (0, {"query": "x", "other": 1}),
        (1, {}),
        (1, {"name": ""}),
        (1, {"name": "kit.echo", "arguments": "text"}),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_before_anything_is_asked(
    which: int, arguments: Any
) -> None:
    async with house("modern") as (_, runtime):
        with pytest.raises(InvalidArguments):
            await two(runtime)[which].call(arguments)


async def test_what_a_model_says_to_be_null_is_missing() -> None:
    async with house("modern") as (_, runtime):
        search, call = two(runtime)
        assert (await search.call({"query": "echo", "limit": None})).success
        assert (await call.call({"name": "kit.record", "arguments": None})).success


async def test_a_name_that_no_tool_has_is_an_answer_with_the_nearest() -> None:
    async with house("modern") as (server, runtime):
        result = await two(runtime)[1].call({"name": "kit.ecko"})
        assert result.is_error
        assert "kit.echo" in result.text
        assert await server.requests("tools/call") == []


async def test_an_error_of_a_call_is_the_called_tools_own() -> None:
    async with house("modern") as (server, runtime):
        await server.script(Rule(tool="record", do=Behaviour(drop="after_run")))
        with pytest.raises(CallOutcomeUnknown) as caught:
            await two(runtime)[1].call({"name": "kit.record", "arguments": {"key": "x"}})
        assert caught.value.called == "kit.record"
        assert caught.value.tool == "record"
        with pytest.raises(InvalidArguments) as wrong:
            await two(runtime)[1].call({"name": "kit.add", "arguments": {"a": "x"}})
        assert wrong.value.called == "kit.add"


async def test_a_watched_call_shows_the_events_of_the_called_tool() -> None:
    async with house("modern", server={"encoding": "sse"}) as (_, runtime):
        arguments = {"name": "kit.steps", "arguments": {"count": 3, "gap": 0}}
        async with two(runtime)[1].stream(arguments) as call:
            events = [event async for event in call]
            assert (await call.result()).success
        kinds = [type(event) for event in events]
        assert kinds == [Started, Progress, Progress, Progress, Completed]
        assert {(event.server, event.tool) for event in events} == {("kit", "steps")}


async def test_a_watched_search_has_its_two_events() -> None:
    async with house("modern") as (_, runtime):
        async with two(runtime)[0].stream({"query": "echo"}) as call:
            events = [event async for event in call]
        assert [type(event) for event in events] == [Started, Completed]
        assert len({event.call_id for event in events}) == 1
        assert events[0].call_id
        async with two(runtime)[0].stream({"query": ""}) as call:
            events = [event async for event in call]
            with pytest.raises(InvalidArguments):
                await call.result()
        assert [type(event) for event in events] == [Started, Failed]


async def test_a_watched_call_of_nothing_ends_with_the_answer() -> None:
    async with house("modern") as (_, runtime):
        async with two(runtime)[1].stream({"name": "kit.ecko"}) as call:
            events = [event async for event in call]
            result = await call.result()
        assert result.is_error
        assert isinstance(events[-1], Completed)
        assert sum(event.is_final for event in events) == 1


async def test_a_search_has_a_deadline() -> None:
    async def never(tool: Any, context: Any) -> bool:
        await asyncio.Event().wait()
        return True

    async with house("modern", filter=never) as (_, runtime), asyncio.timeout(BOUND):
        with pytest.raises(CallNotSentInTime):
            await two(runtime)[0].call({"query": "echo"}, timeout=0.05)


async def test_a_schema_that_would_fill_a_models_context_is_shown_in_outline() -> None:
    properties = {f"p{n}": {"type": "string", "description": "x" * 200} for n in range(60)}
    schema = {"type": "object", "properties": properties, "required": ["p1"]}
    tool = {"name": "wide", "description": "y" * 2_000, "inputSchema": schema}
    async with house("modern", server={"tools": [tool]}) as (_, runtime):
        found = (await two(runtime)[0].call({"query": "wide"})).data["tools"][0]
        assert len(json.dumps(found)) < 4_000
        assert found["input_schema"]["properties"]["p59"] == {"type": "string"}
        assert found["input_schema"]["required"] == ["p1"]


async def test_the_two_see_what_is_offered_now() -> None:
    async with house("modern") as (server, runtime):
        search, call = two(runtime)
        assert await names(search, "zeppelin") == []
        await server.set_tools([{"name": "zeppelin", "inputSchema": {"type": "object"}}])
        await runtime.refresh("kit")
        assert await names(search, "zeppelin") == ["kit.zeppelin"]
        assert (await call.call({"name": "kit.zeppelin"})).success


# -- reading what was set aside ----------------------------------------------------------------

SPILLS = {"max_result_chars": 1_000, "oversized": "spool"}


async def test_a_model_reads_in_parts_what_was_too_large() -> None:
    async with house("modern", SPILLS) as (_, runtime):
        (read,) = result_reader(runtime)
        result = await two(runtime)[1].call({"name": "kit.big", "arguments": {"bytes": 5_000}})
        handle = result.meta["toolkeep/oversized"]["handle"]
        assert read.model_name in result.text, "by the name that the model knows"
        text, start = "", 0
        while start is not None:
            part = await read.call({"handle": handle, "start": start, "length": 2_000})
            text, start = text + part.data["text"], part.data["next"]
            assert part.data["text"] in part.text
        assert len(text) == 5_000
        assert read.read_only


async def test_what_is_gone_is_an_answer_and_nobody_elses_is_gone() -> None:
    async with house("modern", SPILLS) as (_, runtime):
        (read,) = result_reader(runtime, named("bob"))
        result = await runtime.call("kit.big", {"bytes": 5_000}, context=named("ada"))
        handle = result.meta["toolkeep/oversized"]["handle"]
        for given in (handle, "result-nonsense"):
            gone = await read.call({"handle": given})
            assert gone.is_error
            assert "xxx" not in gone.text
        assert (await read.call({"handle": handle}, context=named("ada"))).success


async def test_a_model_cannot_ask_for_everything_at_once() -> None:
    async with house("modern", SPILLS) as (_, runtime):
        (read,) = result_reader(runtime)
        with pytest.raises(InvalidArguments):
            await read.call({"handle": "x", "length": 10**9})
        async with read.stream({"handle": "x"}) as call:
            events = [event async for event in call]
        assert [type(event) for event in events] == [Started, Completed]
