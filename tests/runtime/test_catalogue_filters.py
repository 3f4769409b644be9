"""Which tools are offered: lists of patterns, and functions, which fail closed."""

import asyncio
import logging
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
from toolkeep import CallContext, Tool, UnknownTool
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
