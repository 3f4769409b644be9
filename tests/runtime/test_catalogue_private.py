"""Lists that are private, or that differ by identity, are shown to nobody else."""

import asyncio
from typing import Any

import pytest

from tests.runtime._catalogue import (
    TOOLS_CHANGED,
    Era,
    both_eras,
    listed,
    listings,
    names,
    opened,
    personal_server,
    server,
    tool,
    users_of,
    when,
)
from toolkeep import CallContext, UnknownTool
from toolkeep.testing import ScriptedServer

ALICE = CallContext(principal="alice", headers={"x-user": "alice"})
BOB = CallContext(principal="bob", headers={"x-user": "bob"})


def by_user(**more: Any) -> dict[str, Any]:
    """What everybody is told, and what is told to each alone."""
    return {
        user: listed(tool("common"), tool(f"for_{user or 'nobody'}"), **more)
        for user in ("", "alice", "bob", "carol")
    }


@both_eras
@pytest.mark.requirement("T14")
async def test_lists_that_differ_by_identity_are_each_principal_s_own(era: Era) -> None:
    private = {"tools/list": by_user(cacheScope="private")}
    async with personal_server(era, private) as kit, opened(server(kit)) as (run, diary):
        told = len(diary.changes)
        for _ in range(2):
            of_alice, of_bob = await run.catalogue_for(ALICE), await run.catalogue_for(BOB)
            assert names(of_alice) == ["kit.common", "kit.for_alice"]
            assert names(of_bob) == ["kit.common", "kit.for_bob"]
            assert names(run.catalogue) == ["kit.common", "kit.for_nobody"]
        assert sorted(users_of(await kit.requests("tools/list"))) == ["", "alice", "bob"]
        assert len(diary.changes) == told
        with pytest.raises(UnknownTool) as caught:
            await run.call("kit.for_alice", context=BOB)
        assert not any("alice" in name for name in caught.value.suggestions)
        with pytest.raises(UnknownTool):
            await run.call("kit.for_alice")
        with pytest.raises(UnknownTool):
            await run.resolve(["for_alice"], BOB)
        assert await kit.requests("tools/call") == []
        (mine,) = await run.resolve(["for_alice"], ALICE)
        assert (await mine.call({"a": 1})).text == '{"a": 1}'
        assert users_of(await kit.requests("tools/call")) == ["alice"]


@both_eras
@pytest.mark.requirement("T14")
async def test_many_who_ask_at_once_are_each_told_their_own(era: Era) -> None:
    private = {"tools/list": by_user(cacheScope="private")}
    callers = [CallContext(principal=who, headers={"x-user": who}) for who in ("alice", "bob")] * 20
    async with personal_server(era, private) as kit, opened(server(kit)) as (run, _):
        views = await asyncio.gather(*(run.catalogue_for(one) for one in callers))
        for caller, view in zip(callers, views, strict=True):
            assert names(view) == ["kit.common", f"kit.for_{caller.principal}"]
        assert sorted(users_of(await kit.requests("tools/list"))) == ["", "alice", "bob"]


@pytest.mark.requirement("T14")
async def test_a_public_list_is_listed_once_for_all() -> None:
    async with ScriptedServer.local(era="modern") as kit, opened(server(kit)) as (run, _):
        views = [await run.catalogue_for(one) for one in (ALICE, BOB, None)]
        await run.call("kit.echo", {"text": "hi"}, context=ALICE)
        assert all(view is run.catalogue for view in views)
        for method in ("tools/list", "prompts/list", "resources/list"):
            assert await listings(kit, method) == 1


@pytest.mark.requirement("T14")
async def test_what_one_page_says_is_private_makes_the_list_private() -> None:
    async with ScriptedServer.local(era="modern") as kit:
        first = listed(tool("common"), nextCursor="more", cacheScope="private")
        await kit.script(when("tools/list", times=1, result=first))
        await kit.script(when("tools/list", times=1, result=listed(tool("for_nobody"))))
        await kit.script(when("tools/list", result=listed(tool("for_alice"))))
        async with opened(server(kit)) as (run, _):
            assert names(run.catalogue) == ["kit.common", "kit.for_nobody"]
            assert names(await run.catalogue_for(ALICE)) == ["kit.for_alice"]


@pytest.mark.parametrize("method", ["prompts/list", "resources/list", "resources/templates/list"])
@pytest.mark.requirement("T14")
async def test_a_private_list_beside_public_tools_is_private_all_the_same(method: str) -> None:
    key, items = OTHERS[method]
    hints = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    told = {who: {**hints, key: [one]} for who, one in items.items()}
    async with personal_server("modern", {method: told}) as kit, opened(server(kit)) as (run, _):
        kind = "templates" if key == "resourceTemplates" else key
        assert ends(getattr(run.catalogue, kind)) == ["nobody"]
        assert ends(getattr(await run.catalogue_for(ALICE), kind)) == ["alice"]
        assert ends(getattr(await run.catalogue_for(BOB), kind)) == ["bob"]
        assert ends(getattr(await run.catalogue_for(ALICE), kind)) == ["alice"]


WHO = {"": "nobody", "alice": "alice", "bob": "bob"}
OTHERS: dict[str, Any] = {
    "prompts/list": ("prompts", {who: {"name": f"of-{one}"} for who, one in WHO.items()}),
    "resources/list": (
        "resources",
        {who: {"uri": f"kit://of-{one}", "name": "it"} for who, one in WHO.items()},
    ),
    "resources/templates/list": (
        "resourceTemplates",
        {who: {"uriTemplate": f"kit://{{x}}/of-{one}", "name": "it"} for who, one in WHO.items()},
    ),
}


def ends(items: Any) -> list[str]:
    return [name.rpartition("-")[2] for name in names(items)]


@both_eras
@pytest.mark.requirement("T14", "T5")
async def test_a_change_is_told_to_each_anew_when_they_next_ask(era: Era) -> None:
    async with ScriptedServer.local(era=era) as kit, opened(server(kit)) as (run, diary):
        await kit.set_cache(0, "private")
        await run.refresh()
        old = await run.catalogue_for(ALICE)
        await kit.set_tools([tool("new")])
        await kit.notify(TOOLS_CHANGED)
        await diary.until(lambda: "kit.new" in run.catalogue)
        assert "kit.new" in await run.catalogue_for(ALICE)
        assert "kit.new" not in old
        assert (await run.call("kit.new", context=ALICE)).text == "{}"


@both_eras
@pytest.mark.requirement("T14", "T5")
async def test_a_change_while_a_principal_s_list_is_under_way_is_not_lost(era: Era) -> None:
    async with ScriptedServer.local(era=era) as kit, opened(server(kit)) as (run, diary):
        await kit.set_cache(0, "private")
        await run.refresh()
        asked = await listings(kit)
        await kit.script(when("tools/list", times=1, delay=0.3))  # computed first, then delayed
        asking = asyncio.create_task(run.catalogue_for(ALICE))
        await kit.requests("tools/list", at_least=asked + 1)
        await kit.set_tools([tool("new")])
        await kit.notify(TOOLS_CHANGED)
        await diary.until(lambda: "kit.new" in run.catalogue)
        await asking
        assert "kit.new" in await run.catalogue_for(ALICE)


@both_eras
@pytest.mark.requirement("T14")
async def test_callers_without_a_name_are_told_apart_by_their_headers(era: Era) -> None:
    private = {"tools/list": by_user(cacheScope="private")}
    async with personal_server(era, private) as kit, opened(server(kit)) as (run, _):
        for who in ("alice", "bob", "alice"):
            nameless = CallContext(headers={"x-user": who})
            assert names(await run.catalogue_for(nameless))[1:] == [f"kit.for_{who}"]
        await run.call("kit.for_carol", headers={"x-user": "carol"})
        with pytest.raises(UnknownTool):
            await run.call("kit.for_carol", headers={"x-user": "bob"})
        assert sorted(users_of(await kit.requests("tools/list"))) == ["", "alice", "bob", "carol"]


@both_eras
@pytest.mark.requirement("T14")
async def test_a_forgotten_principal_is_listed_for_again(era: Era) -> None:
    private = {"tools/list": by_user(cacheScope="private")}
    async with personal_server(era, private) as kit, opened(server(kit)) as (run, _):
        for _ in range(2):
            await run.catalogue_for(ALICE)
            await run.catalogue_for(BOB)
            await run.forget("alice")
        assert users_of(await kit.requests("tools/list"))[1:] == ["alice", "bob", "alice"]


@pytest.mark.requirement("T14")
async def test_a_private_list_that_is_vouched_for_briefly_does_not_cost_a_listing_a_call() -> None:
    async with ScriptedServer.local(era="modern") as kit:
        await kit.set_cache(1, "private")
        async with opened(server(kit), listen=False) as (run, _):
            for _ in range(20):
                await run.call("kit.echo", {"text": "hi"}, context=ALICE)
                await asyncio.sleep(0.002)  # so that each finds its list expired
            assert await listings(kit) <= 4


@pytest.mark.requirement("T14")
async def test_a_list_that_becomes_private_is_shown_to_nobody_else_any_more() -> None:
    async with ScriptedServer.local(era="modern") as kit, opened(server(kit)) as (run, _):
        assert await run.catalogue_for(ALICE) is run.catalogue
        await kit.set_cache(0, "private")
        await kit.script(when("tools/list", times=1, result=told_to("nobody")))
        await kit.script(when("tools/list", times=1, result=told_to("alice")))
        await kit.script(when("tools/list", times=1, result=told_to("bob")))
        await run.refresh()
        assert names(await run.catalogue_for(ALICE)) == ["kit.for_alice"]
        assert names(await run.catalogue_for(BOB)) == ["kit.for_bob"]
        assert names(run.catalogue) == ["kit.for_nobody"]
        await kit.set_cache(0, "public")
        await run.refresh()
        assert await run.catalogue_for(ALICE) is await run.catalogue_for(BOB) is run.catalogue


def told_to(who: str) -> dict[str, Any]:
    return listed(tool(f"for_{who}"), cacheScope="private")
