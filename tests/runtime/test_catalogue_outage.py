"""During an outage the last known tools stay, marked stale, and come back unmarked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.runtime._catalogue import (
    PROMPTS_CHANGED,
    Era,
    both_eras,
    names,
    opened,
    server,
    tool,
    when,
)
from toolkeep import CallContext, Runtime, ServerUnavailable, ToolkeepError
from toolkeep.testing import Behaviour, Rule, ScriptedServer

ALICE = CallContext(principal="alice")
CHECKED = {"health_interval": 0.2}
"""How soon an outage is seen."""
QUICK = {"timeouts": {"connect": 1.0, "call": 1.0}, "breaker_threshold": 0}


class Place:
    """A port on which a server runs, or none."""

    def __init__(self, era: Era) -> None:
        self._era: Era = era
        self._stack, self.port = AsyncExitStack(), 0
        self.kit: ScriptedServer

    async def start(self, *tools: Any) -> None:
        made = ScriptedServer.local(era=self._era, port=self.port, tools=tools)
        self.kit = await self._stack.enter_async_context(made)
        self.port = self.kit.port

    async def stop(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def place(era: Era, *tools: Any) -> AsyncIterator[Place]:
    made = Place(era)
    await made.start(*tools)
    try:
        yield made
    finally:
        await made.stop()


@both_eras
@pytest.mark.requirement("T5")
async def test_the_last_known_tools_stay_marked_and_come_back_unmarked(era: Era) -> None:
    async with (
        place(era, tool("before")) as there,
        opened(server(there.kit, **QUICK), **CHECKED) as (run, diary),
    ):
        told, before = len(diary.changes), run.catalogue
        await there.stop()
        await diary.until(lambda: run.catalogue.stale == ("kit",))
        out = run.catalogue
        assert names(out) == names(before)
        assert all(one.stale for one in out)
        assert not any(one.stale for one in before)
        assert diary.changes[told].stale
        assert not diary.changes[told].changes
        assert out.revision == before.revision + 1
        assert (await run.resolve(["before"]))[0].stale
        assert run.servers[0].stale
        await there.start(tool("after"))
        await diary.until(lambda: not run.catalogue.stale)
        assert "kit.after" in run.catalogue
        assert "kit.before" not in run.catalogue
        assert not any(one.stale for one in run.catalogue)
        assert names(out) == names(before)
        changes = diary.changes[told:]
        deltas = [one.changes.tools for one in changes if one.changes]
        assert [(one.added, one.removed) for one in deltas] == [(("kit.after",), ("kit.before",))]
        revisions = [one.revision for one in changes]
        assert revisions == sorted(set(revisions))


@both_eras
@pytest.mark.requirement("T5")
async def test_other_servers_are_not_marked(era: Era) -> None:
    async with (
        place(era) as there,
        ScriptedServer.local(era=era) as other,
        opened(server(there.kit, **QUICK), server(other, "other"), **CHECKED) as (run, diary),
    ):
        await there.stop()
        await diary.until(lambda: run.catalogue.stale == ("kit",))
        assert {one.stale for one in run.catalogue if one.server == "other"} == {False}
        assert (await run.call("other.echo", {"text": "hi"})).text == "hi"
        assert "1/2 servers healthy, 28 tools" in run.summary()


@both_eras
@pytest.mark.requirement("T5")
async def test_a_principal_s_last_known_tools_stay_too(era: Era) -> None:
    async with (
        place(era) as there,
        opened(server(there.kit, **QUICK), **CHECKED) as (run, diary),
    ):
        await there.kit.set_cache(0, "private")
        await run.refresh()
        before = await run.catalogue_for(ALICE)
        assert (await run.call("kit.echo", {"text": "hi"}, context=ALICE)).text == "hi"
        await there.stop()
        await diary.until(lambda: run.catalogue.stale == ("kit",))
        with pytest.raises(ToolkeepError):
            await run.call("kit.echo", {"text": "hi"}, context=ALICE)
        out = await run.catalogue_for(ALICE)
        assert out.stale == ("kit",)
        assert names(out) == names(before)
        assert all(one.stale for one in out)
        await there.start(tool("after"))
        await diary.until(lambda: not run.catalogue.stale)
        back = await run.catalogue_for(ALICE)
        assert not back.stale
        assert "kit.after" in back


@both_eras
@pytest.mark.requirement("T5")
async def test_a_listing_that_broke_off_does_not_unmark(era: Era) -> None:
    async with (
        place(era) as there,
        opened(server(there.kit, **QUICK), **CHECKED) as (run, diary),
    ):
        asked = len(await there.kit.requests("prompts/list"))
        await there.kit.script(when("prompts/list", hang=True))
        refreshing = asyncio.create_task(run.refresh("kit"))
        await there.kit.requests("prompts/list", at_least=asked + 1)
        await there.kit.script(Rule(do=Behaviour(drop="after_body")))
        await diary.until(lambda: run.catalogue.stale == ("kit",))
        await asyncio.wait((refreshing,), timeout=5)
        assert run.catalogue.stale == ("kit",)
        refreshing.exception()


@both_eras
async def test_a_call_of_a_stale_tool_names_the_server_and_says_that_it_did_not_run(
    era: Era,
) -> None:
    async with (
        place(era) as there,
        opened(server(there.kit, **QUICK), **CHECKED) as (run, diary),
    ):
        await there.stop()
        await diary.until(lambda: run.catalogue.stale == ("kit",))
        with pytest.raises(ToolkeepError) as caught:
            await run.call("kit.echo", {"text": "hi"})
        assert getattr(caught.value, "server", "") == "kit"
        assert not isinstance(caught.value, LookupError)


@both_eras
@pytest.mark.requirement("T5")
async def test_a_server_that_was_never_reached_is_known_by_name_and_comes_by_itself(
    era: Era,
) -> None:
    async with place(era) as there:
        address = server(there.kit, **QUICK)
        await there.stop()
        async with opened(address, **CHECKED) as (run, diary):
            assert (run.catalogue.servers, run.catalogue.stale) == (("kit",), ("kit",))
            assert len(run.catalogue) == 0
            assert run.summary() == "0/1 servers healthy, 0 tools"
            with pytest.raises(ServerUnavailable) as caught:
                await run.call("kit.echo", {"text": "hi"})
            assert caught.value.server == "kit"
            await there.start(tool("late"))
            await diary.until(lambda: "kit.late" in run.catalogue)
            assert not run.catalogue.stale
            assert (await run.call("late")).text == "{}"


@pytest.mark.requirement("T5")
async def test_a_program_that_cannot_come_back_stays_marked() -> None:
    async with (
        ScriptedServer.stdio(era="legacy") as kit,
        opened(server(kit, timeouts={"connect": 1.0}), **CHECKED) as (run, diary),
    ):
        await kit.script(when("initialize", drop="after_body", exit_code=3))
        before = names(run.catalogue)
        kit.kill()
        await diary.until(lambda: run.catalogue.stale == ("kit",))
        assert names(run.catalogue) == before


async def test_prompts_and_resources_of_a_stale_server_stay_as_well() -> None:
    async with (
        place("modern") as there,
        opened(server(there.kit, **QUICK), **CHECKED) as (run, diary),
    ):
        await there.kit.notify(PROMPTS_CHANGED)
        await there.stop()
        await diary.until(lambda: run.catalogue.stale == ("kit",))
        assert counts(run) == (1, 1, 1)


def counts(run: Runtime) -> tuple[int, int, int]:
    shown = run.catalogue
    return len(shown.prompts), len(shown.resources), len(shown.templates)


@both_eras
@pytest.mark.requirement("T5")
async def test_by_hand_all_are_listed_though_one_is_out_of_reach(era: Era) -> None:
    async with (
        place(era) as there,
        ScriptedServer.local(era=era) as other,
        opened(server(there.kit, **QUICK), server(other, "other"), listen=False) as (run, _),
    ):
        await there.stop()
        await other.set_tools([tool("new")])
        await other.script(when("tools/list", delay=1.5))  # longer than the other takes to fail
        with pytest.raises(ToolkeepError) as caught:
            await run.refresh()
        assert getattr(caught.value, "server", "") == "kit"
        assert "other.new" in run.catalogue
        assert run.catalogue.stale == ("kit",)
