"""The catalogue stays true: what a server offers is listed again when there is reason to."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.runtime._catalogue import (
    PROMPTS_CHANGED,
    RESOURCES_CHANGED,
    TOOLS_CHANGED,
    Diary,
    Era,
    both_eras,
    eventually,
    listings,
    names,
    opened,
    server,
    tool,
    when,
)
from toolkeep.testing import Behaviour, Rule, ScriptedServer

transports = pytest.mark.parametrize("transport", ["http", "stdio"])


def scripted(transport: str, era: Era, **options: Any) -> ScriptedServer:
    make = ScriptedServer.stdio if transport == "stdio" else ScriptedServer.local
    return make(era=era, **options)


@both_eras
@transports
@pytest.mark.requirement("T1", "T5")
async def test_each_change_is_one_event_with_the_difference(era: Era, transport: str) -> None:
    first = [tool("stays"), tool("goes"), tool("grows", "old")]
    async with scripted(transport, era, tools=first) as kit, opened(server(kit)) as (run, diary):
        before, told = run.catalogue, len(diary.changes)
        known = names(before.tools)
        await kit.set_tools([tool("stays"), tool("grows", "new"), tool("comes")])
        await kit.notify(TOOLS_CHANGED)
        await diary.until(lambda: len(diary.changes) > told)
        await kit.set_resource("kit://more", "text")
        await kit.notify(RESOURCES_CHANGED)
        await diary.until(lambda: len(diary.changes) > told + 1)
        changes = diary.changes[told:]
        delta = changes[0].changes.tools
        assert (delta.added, delta.removed) == (("kit.comes",), ("kit.goes",))
        assert delta.changed == ("kit.grows",)
        assert changes[1].changes.resources.added == ("kit.kit://more",)
        assert not changes[1].changes.tools
        assert [one.revision for one in changes] == [before.revision + 1, before.revision + 2]
        assert json.loads(changes[0].to_json())["changes"]["tools"]["added"] == ["kit.comes"]
        assert not any(one.stale for one in changes)
        assert run.catalogue.revision == before.revision + 2
        # The snapshot that was taken is what it was.
        assert names(before.tools) == known
        assert before.tool("kit.grows").description == "old"
        assert run.catalogue.tool("kit.grows").description == "new"


@both_eras
@pytest.mark.requirement("T5")
async def test_a_notification_without_a_change_is_no_event(era: Era) -> None:
    async with ScriptedServer.local(era=era) as kit, opened(server(kit)) as (run, diary):
        revision, told, asked = run.catalogue.revision, len(diary.changes), await listings(kit)
        await kit.notify(TOOLS_CHANGED)
        await kit.requests("tools/list", at_least=asked + 1)
        await kit.set_tools([tool("new")])
        await kit.notify(TOOLS_CHANGED)
        await diary.until(lambda: "kit.new" in run.catalogue)
        assert len(diary.changes) == told + 1
        assert run.catalogue.revision == revision + 1


@both_eras
async def test_only_what_changed_is_listed_again(era: Era) -> None:
    async with (
        ScriptedServer.local(era=era) as one,
        ScriptedServer.local(era=era) as other,
        opened(server(one, "one"), server(other, "other")) as (run, diary),
    ):
        kept = run.catalogue.tool("other.echo")
        seen = len(await other.requests())
        await one.set_tools([tool("new")])
        await one.notify(TOOLS_CHANGED)
        await diary.until(lambda: "one.new" in run.catalogue)
        assert (await listings(one), await listings(one, "prompts/list")) == (2, 1)
        await one.notify(PROMPTS_CHANGED)
        await one.requests("prompts/list", at_least=2)
        assert (await listings(one), await listings(one, "prompts/list")) == (2, 2)
        asked = [record.rpc_method or "" for record in (await other.requests())[seen:]]
        assert not [method for method in asked if method.endswith("/list")]
        assert run.catalogue.tool("other.echo") is kept


@pytest.mark.requirement("T5")
async def test_what_a_server_vouched_for_is_listed_again_when_that_has_expired() -> None:
    async with ScriptedServer.local(era="modern") as kit:
        await kit.set_cache(50)
        async with opened(server(kit), listen=False) as (run, diary):
            assert await listings(kit, "subscriptions/listen") == 0
            await kit.set_tools([tool("new")])
            await kit.set_resource("kit://more", "text")
            await diary.until(lambda: "kit.new" in run.catalogue)
            await diary.until(lambda: "kit://more" in [one.uri for one in run.catalogue.resources])


@both_eras
@pytest.mark.requirement("T5")
async def test_by_hand_one_server_or_all_are_listed_again(era: Era) -> None:
    async with (
        ScriptedServer.local(era=era) as one,
        ScriptedServer.local(era=era) as other,
        opened(server(one, "one"), server(other, "other"), listen=False) as (run, diary),
    ):
        told, asked = len(diary.changes), await listings(other)
        for kit in (one, other):
            await kit.set_tools([tool("new")], built_in=False)
        assert names(await run.refresh("one"))[:1] == ["one.new"]
        assert await listings(other) == asked
        assert names(await run.refresh()) == ["one.new", "other.new"]
        assert [change.server for change in diary.changes[told:]] == ["one", "other"]


@both_eras
@pytest.mark.requirement("T5")
async def test_a_server_that_restarts_with_other_tools_is_learned_anew(era: Era) -> None:
    async with ScriptedServer.spawn(era=era) as kit, opened(server(kit)) as (run, diary):
        told = len(diary.changes)
        await kit.set_tools([tool("after")], built_in=False)
        await kit.restart()
        await diary.until(lambda: names(run.catalogue) == ["kit.after"])
        await diary.until(lambda: not run.catalogue.stale)
        assert (await run.call("kit.after")).text == "{}"
        revisions = [change.revision for change in diary.changes[told:]]
        assert revisions == sorted(set(revisions))
        assert [change.changes.tools.added for change in diary.changes[told:]].count(
            ("kit.after",)
        ) == 1


@both_eras
@pytest.mark.requirement("T5")
async def test_a_program_that_died_comes_back_with_other_tools(era: Era) -> None:
    async with ScriptedServer.stdio(era=era) as kit, opened(server(kit)) as (run, diary):
        await kit.set_tools([tool("after")], built_in=False)
        kit.kill()
        await diary.until(lambda: names(run.catalogue) == ["kit.after"])
        await diary.until(lambda: not run.catalogue.stale)
        assert (await run.call("after")).text == "{}"


@both_eras
async def test_a_storm_of_notifications_takes_few_listings(era: Era) -> None:
    async with ScriptedServer.local(era=era) as kit, opened(server(kit)) as (run, diary):
        asked = await listings(kit)
        await kit.script(when("tools/list", delay=0.05))
        for _ in range(100):
            await kit.notify(TOOLS_CHANGED)
        await kit.set_tools([tool("last")])
        await kit.notify(TOOLS_CHANGED)
        await diary.until(lambda: "kit.last" in run.catalogue)
        assert await listings(kit) - asked <= 10


@both_eras
@pytest.mark.requirement("T5")
async def test_a_change_while_the_list_is_under_way_is_not_lost(era: Era) -> None:
    async with ScriptedServer.local(era=era) as kit, opened(server(kit)) as (run, diary):
        asked = await listings(kit)
        await kit.script(when("tools/list", times=1, delay=0.3))  # computed first, then delayed
        refreshing = asyncio.create_task(run.refresh("kit"))
        await kit.requests("tools/list", at_least=asked + 1)
        await kit.set_tools([tool("new")])
        await kit.notify(TOOLS_CHANGED)
        await refreshing
        await diary.until(lambda: "kit.new" in run.catalogue)


@both_eras
async def test_a_replaced_server_s_other_tools_are_told(era: Era) -> None:
    async with ScriptedServer.local(era=era) as kit, opened(server(kit)) as (run, diary):
        told, before = len(diary.changes), run.catalogue
        await run.reload([server(kit, exclude_tools=["e*"])])
        assert "kit.echo" not in run.catalogue
        assert "kit.echo" in before
        assert run.catalogue.revision > before.revision
        changes = [change.changes.tools for change in diary.changes[told:]]
        assert [delta.removed for delta in changes if delta] == [("kit.echo",)]


@both_eras
async def test_added_and_removed_servers_are_changes_too(era: Era) -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(ScriptedServer.local(era=era))
        other = await stack.enter_async_context(ScriptedServer.local(era=era, tools=[tool("own")]))
        run, diary = await stack.enter_async_context(opened(server(one, "one")))
        told = len(diary.changes)
        await run.add(server(other, "other"))
        assert "other.own" in run.catalogue
        await run.remove("other")
        assert run.catalogue.servers == ("one",)
        added, removed = (change.changes.tools for change in diary.changes[told:])
        assert "other.own" in added.added
        assert added.added == removed.removed


async def test_the_diary_of_one_runtime_is_not_that_of_another() -> None:
    async with (
        ScriptedServer.local() as kit,
        opened(server(kit)) as (_, first),
        opened(server(kit)) as (other, second),
    ):
        told = len(first.changes), len(second.changes)
        await kit.set_tools([tool("new")])
        await kit.notify(TOOLS_CHANGED, listeners=2)
        await both(first, second, told)
        assert "kit.new" in other.catalogue
        assert (len(first.changes), len(second.changes)) == (told[0] + 1, told[1] + 1)


async def both(first: Diary, second: Diary, told: tuple[int, int]) -> None:
    await first.until(lambda: len(first.changes) > told[0])
    await second.until(lambda: len(second.changes) > told[1])


LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")


@pytest.mark.requirement("T5", "S4")
@pytest.mark.parametrize("listen", [True, False], ids=["listening", "not listening"])
@pytest.mark.parametrize("encoding", ["json", "sse"])
async def test_after_a_lost_session_each_list_is_read_once(encoding: Any, listen: bool) -> None:
    async with (
        ScriptedServer.local(era="legacy", encoding=encoding) as kit,
        opened(server(kit), listen=listen) as (run, _),
    ):
        if listen:  # the listening stream of the first session stands
            await eventually(lambda: has_get(kit, 1))
        before = {method: await listings(kit, method) for method in LISTS}
        assert before == dict.fromkeys(LISTS, 1)
        await kit.forget_sessions()
        assert (await run.call("kit.echo", {"text": "hi"})).text == "hi"
        for method in LISTS:
            await kit.requests(method, at_least=2)
        # Whatever else was begun because of the loss ends before this does.
        await kit.set_tools([tool("new")])
        await run.refresh()
        assert "kit.new" in run.catalogue
        assert {m: await listings(kit, m) for m in LISTS} == dict.fromkeys(LISTS, 3)
        assert len(await kit.requests("initialize")) == 2


async def has_get(kit: ScriptedServer, count: int) -> bool:
    return sum(one.http_method == "GET" for one in await kit.requests()) >= count


@pytest.mark.requirement("T5")
async def test_a_change_while_only_the_listening_stream_was_down_is_found() -> None:
    async with ScriptedServer.local(era="legacy") as kit:
        cut = Behaviour(retry_ms=1, cut_stream_after_events=1)
        await kit.script(Rule(http="GET", times=1, do=cut))
        async with opened(server(kit)) as (run, diary):
            await eventually(lambda: has_get(kit, 1))
            await kit.set_tools([tool("new")])
            await kit.notify("notifications/message", {"level": "info", "data": "the last word"})
            await diary.until(lambda: "kit.new" in run.catalogue)
            assert len(await kit.requests("initialize")) == 1


@pytest.mark.requirement("T5", "P4")
async def test_a_listening_stream_that_ends_at_once_causes_few_listings() -> None:
    async with ScriptedServer.local(era="legacy") as kit:
        end = Behaviour(run=False, body="retry: 0\n\n", content_type="text/event-stream")
        await kit.script(Rule(http="GET", do=end))
        async with opened(server(kit)) as (run, _):
            await eventually(lambda: has_get(kit, 4))
            gets = [one.at for one in await kit.requests() if one.http_method == "GET"]
            assert gets[3] - gets[0] > 0.65
            assert await listings(kit) <= len(gets) + 1
            assert (await run.call("kit.echo", {"text": "hi"})).text == "hi"
