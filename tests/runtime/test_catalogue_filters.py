"""Which tools are offered: lists of patterns, and functions, which fail closed."""

import asyncio
import copy
import logging
import pickle
from typing import Any

import pytest

from tests.runtime._catalogue import (
    TOOLS_CHANGED,
    Era,
    both_eras,
    listings,
    names,
    opened,
    server,
    tool,
)
from toolkeep import CallContext, InvalidArguments, Tool, UnknownTool
from toolkeep.testing import ScriptedServer

ALICE = CallContext(principal="alice", user_id="7")
BOB = CallContext(principal="bob")
ECHO = {"text": "hi"}


@both_eras
@pytest.mark.requirement("T4")
async def test_included_and_excluded_tools_are_patterns_of_own_names(era: Era) -> None:
    settings: dict[str, Any] = {
        "include_tools": ["record*", "a.*", "echo"],
        "exclude_tools": ["*_idempotent"],
    }
    async with (
        ScriptedServer.local(era=era, tools=[tool("a.b"), tool("b.a")]) as kit,
        opened(server(kit, **settings)) as (run, diary),
    ):
        shown = ["kit.echo", "kit.record", "kit.record_read_only", "kit.a.b"]
        assert names(run.catalogue) == shown
        assert run.summary() == "1/1 servers healthy, 4 tools"
        for name in ("kit.add", "kit.record_idempotent", "b.a"):
            with pytest.raises(UnknownTool):
                await run.call(name, {"a": 1, "b": 2})
        assert (await run.call("kit.record")).text == "recorded"
        assert [one.tool for one in await kit.requests("tools/call")] == ["record"]
        told = len(diary.changes)
        await kit.set_tools([tool("a.c"), tool("hidden")])
        await kit.notify(TOOLS_CHANGED)
        await diary.until(lambda: len(diary.changes) > told)
        delta = diary.changes[told].changes.tools
        assert (delta.added, delta.removed) == (("kit.a.c",), ("kit.a.b",))


def only_read(one: Tool, context: CallContext) -> bool:
    return one.read_only and context.user_id == "7"


async def slowly_only_read(one: Tool, context: CallContext) -> bool:
    await asyncio.sleep(0)
    return only_read(one, context)


@both_eras
@pytest.mark.parametrize("function", [only_read, slowly_only_read])
@pytest.mark.requirement("T4")
async def test_a_filter_judges_by_tool_and_context(era: Era, function: Any) -> None:
    async with (
        ScriptedServer.local(era=era) as kit,
        opened(server(kit), filter=function) as (run, _),
    ):
        assert names(await run.catalogue_for(ALICE)) == ["kit.record_read_only"]
        assert names(await run.catalogue_for(BOB)) == names(await run.catalogue_for()) == []
        assert (await run.call("record_read_only", context=ALICE)).text == "recorded"
        for name, context in (("kit.echo", ALICE), ("kit.record_read_only", BOB), ("echo", None)):
            with pytest.raises(UnknownTool) as caught:
                await run.call(name, ECHO, context=context)
            assert "kit.echo" not in caught.value.suggestions
        assert await kit.executions("echo") == 0
        # What is cached is the whole list: nothing was listed again, and nothing is missing.
        assert len(run.catalogue) == 14


@both_eras
@pytest.mark.requirement("T4")
async def test_the_whole_list_is_what_is_cached(era: Era) -> None:
    shown: set[str] = {"echo"}
    async with (
        ScriptedServer.local(era=era) as kit,
        opened(server(kit), filter=lambda one, context: one.tool in shown) as (run, _),
    ):
        assert names(await run.catalogue_for()) == ["kit.echo"]
        asked = await listings(kit)
        shown.add("add")
        assert names(await run.catalogue_for()) == ["kit.echo", "kit.add"]
        assert (await run.call("add", {"a": 1, "b": 2})).data == {"sum": 3}
        shown.clear()
        with pytest.raises(UnknownTool):
            await run.call("add", {"a": 1, "b": 2})
        assert await listings(kit) == asked


def raising(one: Tool, context: CallContext) -> bool:
    if one.tool == "echo":
        raise RuntimeError(f"secret of {context.principal}")
    return True


async def raising_slowly(one: Tool, context: CallContext) -> bool:
    await asyncio.sleep(0)
    return raising(one, context)


@pytest.mark.parametrize("function", [raising, raising_slowly])
@pytest.mark.requirement("T4")
async def test_a_filter_that_raises_excludes_that_tool_and_is_logged(
    function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        ScriptedServer.local() as kit,
        opened(server(kit), filter=function) as (run, _),
    ):
        with caplog.at_level(logging.WARNING, "toolkeep"):
            view = await run.catalogue_for(ALICE)
        assert "kit.echo" not in view
        assert len(view) == 13
        assert any("RuntimeError" in one.getMessage() for one in caplog.records)
        assert "secret" not in caplog.text
        with pytest.raises(UnknownTool):
            await run.call("kit.echo", ECHO, context=ALICE)
        assert await kit.executions("echo") == 0


@pytest.mark.parametrize("answer", [1, "yes", None, [True]])
@pytest.mark.requirement("T4", "T7")
async def test_only_true_is_yes(answer: Any) -> None:
    async with (
        ScriptedServer.local() as kit,
        opened(server(kit), filter=lambda one, context: answer) as (run, _),
    ):
        assert names(await run.catalogue_for(ALICE)) == []


@pytest.mark.requirement("T4")
async def test_a_call_by_any_name_asks_about_that_tool_alone() -> None:
    asked: list[str] = []

    def remember(one: Tool, context: CallContext) -> bool:
        asked.append(one.tool)
        return True

    async with (
        ScriptedServer.local() as kit,
        opened(server(kit), filter=remember) as (run, _),
    ):
        for name in ("kit.echo", "echo", run.catalogue.tool("echo").model_name):
            await run.call(name, ECHO)
        await run.resolve(["echo"])
        assert set(asked) == {"echo"}


# -- whoever sees a tool cannot alter it for others ----------------------------------------------


def spoil(one: Tool) -> None:
    """Whatever a filter can do to a tool, and may: what it gets at is frozen, or a copy."""
    found: Any = one.definition
    one.input_schema.clear()
    for alter in (
        lambda: found.input_schema.clear(),
        lambda: found.input_schema["properties"].update(text={"type": "integer"}),
        lambda: found.input_schema["required"].append("nothing"),
        lambda: setattr(found, "description", "spoilt"),
        lambda: setattr(found, "input_schema", {}),
        lambda: setattr(found.annotations, "read_only_hint", False),
    ):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            alter()


@both_eras
@pytest.mark.requirement("T4")
async def test_nobody_can_alter_the_tools_that_others_are_shown(era: Era) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    own = {"name": "own", "inputSchema": schema, "annotations": {"readOnlyHint": True}}
    spoilt: list[str] = []

    def spoiling(one: Tool, context: CallContext) -> bool:
        if one.tool == "own":
            spoil(one)
            spoilt.append(one.name)
        return True

    async with (
        ScriptedServer.local(era=era, tools=[own]) as kit,
        opened(server(kit), filter=spoiling) as (run, _),
    ):
        spoil(run.catalogue.tool("kit.own"))
        spoil(next(one for one in (await run.catalogue_for(ALICE)).tools if one.tool == "own"))
        assert spoilt
        seen = (await run.catalogue_for(BOB)).tool("kit.own")
        assert (seen.input_schema, seen.description, seen.read_only) == (schema, "", True)
        with pytest.raises(InvalidArguments):
            await run.call("kit.own", {"text": 5}, context=BOB)
        assert not (await run.call("kit.own", {"text": "hi"}, context=BOB)).needs_input


@pytest.mark.requirement("T4")
async def test_a_copy_of_a_frozen_definition_is_plain_and_whole() -> None:
    own = {"name": "own", "inputSchema": {"type": "object", "required": ["a"]}}
    async with ScriptedServer.local(tools=[own]) as kit, opened(server(kit)) as (run, _):
        definition = run.catalogue.tool("kit.own").definition
        copied = copy.deepcopy(definition.input_schema)
        copied["required"].append("b")
        assert (type(copied), copied["required"]) == (dict, ["a", "b"])
        assert copy.deepcopy(definition.input_schema["required"]) == ["a"]
        again = pickle.loads(pickle.dumps(definition))
        assert again == definition
        assert pickle.loads(pickle.dumps(definition.input_schema)) == own["inputSchema"]
        assert pickle.loads(pickle.dumps(definition.input_schema["required"])) == ["a"]
        assert definition.model_dump(by_alias=True, exclude_none=True) == own
