"""`x-mcp-header`: what the catalogue knows of a tool decides which headers its calls carry."""

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
    when,
)
from toolkeep import CallContext, CallRejected
from toolkeep.testing import Recorded, ScriptedServer

ALICE = CallContext(principal="alice", headers={"x-user": "alice"})
MISMATCH = {"code": -32020, "message": "header mismatch"}
ARGUMENTS = {"region": "eu-west", "text": "hi"}


def query(**region: Any) -> dict[str, Any]:
    """A tool with a parameter `region`, marked or not."""
    properties = {"region": {"type": "string", **region}, "text": {"type": "string"}}
    return tool("query", inputSchema={"type": "object", "properties": properties})


MARKED = query(**{"x-mcp-header": "Region"})
callers = pytest.mark.parametrize("context", [None, ALICE], ids=["nobody", "alice"])


def sent(calls: list[Recorded]) -> list[str | None]:
    return [call.headers.get("mcp-param-region") for call in calls]


@both_eras
@callers
@pytest.mark.requirement("T13")
async def test_marked_parameters_travel_as_headers(era: Era, context: CallContext | None) -> None:
    async with (
        ScriptedServer.local(era=era, tools=[MARKED]) as kit,
        opened(server(kit)) as (run, _),
    ):
        await run.call("query", ARGUMENTS, context=context)
        await run.call("query", {"text": "hi"}, context=context)
        expected = "eu-west" if era == "modern" else None
        assert sent(await kit.requests("tools/call")) == [expected, None]


@callers
@pytest.mark.requirement("T13")
async def test_they_do_so_on_every_connection_s_generation(context: CallContext | None) -> None:
    async with (
        ScriptedServer.local(era="modern", tools=[MARKED]) as kit,
        opened(server(kit)) as (run, _),
    ):
        for _ in range(3):
            await run.call("query", ARGUMENTS, context=context)
            await kit.restart()
        await run.call("query", ARGUMENTS, context=context)
        await run.reconnect(failed_only=False)
        await run.call("query", ARGUMENTS, context=context)
        assert sent(await kit.requests("tools/call")) == ["eu-west"] * 5


@callers
@pytest.mark.requirement("T13", "T5")
async def test_a_mismatch_lists_again_sends_once_more_and_the_catalogue_learns_it(
    context: CallContext | None,
) -> None:
    async with (
        ScriptedServer.local(era="modern", tools=[query()]) as kit,
        opened(server(kit), listen=False) as (run, diary),
    ):
        await run.call("query", ARGUMENTS, context=context)
        await kit.set_tools([MARKED, tool("new")])
        await kit.script(when("tools/call", times=1, status=400, error=MISMATCH))
        told, asked = len(diary.changes), await listings(kit)
        result = await run.call("query", ARGUMENTS, context=context)
        assert (result.attempts, await listings(kit)) == (2, asked + 1)
        await run.call("query", ARGUMENTS, context=context)
        assert sent(await kit.requests("tools/call")) == [None, None, "eu-west", "eu-west"]
        assert await kit.executions("query") == 3
        assert await listings(kit) == asked + 1
        view = await run.catalogue_for(context)
        assert "kit.new" in view
        assert view.tool("query").input_schema == MARKED["inputSchema"]
        if context is None:
            assert [one.changes.tools.added for one in diary.changes[told:]] == [("kit.new",)]


@callers
@pytest.mark.requirement("T13")
async def test_a_second_mismatch_is_the_caller_s_to_see(context: CallContext | None) -> None:
    async with (
        ScriptedServer.local(era="modern", tools=[MARKED]) as kit,
        opened(server(kit)) as (run, _),
    ):
        await kit.script(when("tools/call", status=400, error=MISMATCH))
        with pytest.raises(CallRejected) as caught:
            await run.call("query", ARGUMENTS, context=context)
        assert caught.value.code == -32020
        assert await kit.executions("query") == 0
        assert len(await kit.requests("tools/call")) == 2


@pytest.mark.requirement("T13", "T5")
async def test_what_list_changed_brings_is_used_by_everybody() -> None:
    async with (
        ScriptedServer.local(era="modern", tools=[query()]) as kit,
        opened(server(kit)) as (run, diary),
    ):
        for context in (None, ALICE):
            await run.call("query", ARGUMENTS, context=context)
        told = len(diary.changes)
        await kit.set_tools([MARKED])
        await kit.notify(TOOLS_CHANGED)
        await diary.until(lambda: len(diary.changes) > told)
        for context in (None, ALICE):
            await run.call("query", ARGUMENTS, context=context)
        assert sent(await kit.requests("tools/call")) == [None, None, "eu-west", "eu-west"]


@both_eras
@pytest.mark.requirement("T13")
async def test_a_tool_with_an_invalid_mark_is_dropped_from_a_modern_list(era: Era) -> None:
    bad = query(**{"x-mcp-header": "bad header!"})
    async with (
        ScriptedServer.local(era=era, tools=[bad, tool("good")]) as kit,
        opened(server(kit)) as (run, _),
    ):
        found = names(run.catalogue)
        assert "kit.good" in found
        assert ("kit.query" in found) is (era == "legacy")
