"""Permissions: which principal may see and call what. Whatever cannot be decided is refused."""

import asyncio
from typing import Any

import pytest

from tests.runtime._catalogue import Era, both_eras, names, opened, server
from toolkeep import CallContext, ConfigError, NotOffered, NotPermitted, UnknownTool
from toolkeep.testing import ScriptedServer

ALICE = CallContext(principal="alice", user_id="7")
BOB = CallContext(principal="bob")
ECHO = {"text": "hi"}

PERMISSIONS: dict[str, Any] = {
    "*": ["kit.echo"],
    "": ["kit.add"],
    "al*": {"see": ["*"], "call": ["#safe", "kit.record*", "!*.record_idempotent"]},
    "bob": ["*", "!kit.fail"],
}


@both_eras
@pytest.mark.requirement("T7")
async def test_permissions_by_principal_say_who_sees_and_who_calls(era: Era) -> None:
    settings: dict[str, Any] = {"tool_tags": {"slow": ["safe"]}}
    async with (
        ScriptedServer.local(era=era) as kit,
        opened(server(kit, **settings), permissions=PERMISSIONS) as (run, _),
    ):
        assert names(await run.catalogue_for()) == ["kit.echo", "kit.add"]
        assert names(await run.catalogue_for(CallContext(principal="carol"))) == ["kit.echo"]
        assert len(await run.catalogue_for(ALICE)) == 14
        assert len(await run.catalogue_for(BOB)) == 13
        for name, arguments in (("echo", ECHO), ("slow", {"seconds": 0}), ("record", {})):
            await run.call(name, arguments, context=ALICE)
        for name in ("kit.add", "kit.record_idempotent", "fail"):
            with pytest.raises(NotPermitted):
                await run.call(name, {"a": 1, "b": 2}, context=ALICE)
        with pytest.raises(UnknownTool):
            await run.call("kit.fail", {"message": "no"}, context=BOB)
        with pytest.raises(UnknownTool):
            await run.resolve(["echo", "fail"], BOB)
        assert names(await run.resolve(["fail"], ALICE)) == ["kit.fail"]
        assert sorted(await kit.ledger()) == ["echo", "record", "slow"]
        assert len(run.catalogue) == 14


@pytest.mark.requirement("T7")
async def test_without_an_entry_nothing_may_be_seen_or_called() -> None:
    async with ScriptedServer.local() as kit, opened(server(kit), permissions={}) as (run, _):
        view = await run.catalogue_for(ALICE)
        found = (view.tools, view.prompts, view.resources, view.templates)
        assert found == ((), (), (), ())
        seen = len(await kit.requests())
        for asking in (
            run.call("kit.echo", ECHO, context=ALICE),
            run.call("kit.echo", ECHO),
            run.get_prompt("kit.greet", {"name": "Ada"}, context=ALICE),
            run.read_resource("kit://notes", context=ALICE),
            run.read_resource("kit://notes", server="kit", context=ALICE),
        ):
            with pytest.raises((NotOffered, NotPermitted)):
                await asking
        methods = {one.rpc_method for one in (await kit.requests())[seen:]}
        assert not methods & {"tools/call", "prompts/get", "resources/read"}


@pytest.mark.requirement("T7")
async def test_completions_and_subscriptions_pass_the_same_gate() -> None:
    async with ScriptedServer.local() as kit, opened(server(kit), permissions={}) as (run, _):
        for of in ("greet", "kit.greet", "kit://notes/{day}"):
            with pytest.raises((NotOffered, NotPermitted)):
                await run.complete(of, "name", "A", context=ALICE)
        with pytest.raises((NotOffered, NotPermitted)):
            await run.subscribe("kit://notes", server="kit", context=ALICE)
        methods = {one.rpc_method for one in await kit.requests()}
        assert not methods & {"completion/complete", "resources/subscribe"}


def by_function(action: str, what: Any, context: CallContext) -> bool:
    if what.name == "kit.add":
        raise LookupError("secret")
    if what.name == "kit.slow":
        return action == "see"
    return context.principal == "alice" and what.name in ("kit.echo", "kit.greet")


async def by_slow_function(action: str, what: Any, context: CallContext) -> bool:
    await asyncio.sleep(0)
    return by_function(action, what, context)


@pytest.mark.parametrize("function", [by_function, by_slow_function])
@pytest.mark.requirement("T7")
async def test_permissions_by_function_fail_closed(
    function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        ScriptedServer.local() as kit,
        opened(server(kit), permissions=function) as (run, _),
    ):
        view = await run.catalogue_for(ALICE)
        assert names(view) == ["kit.echo", "kit.slow"]
        assert names(view.prompts) == ["kit.greet"]
        assert view.resources == ()
        assert "LookupError" in caplog.text
        assert "secret" not in caplog.text
        assert names(await run.catalogue_for(BOB)) == ["kit.slow"]
        assert (await run.call("kit.echo", ECHO, context=ALICE)).text == "hi"
        with pytest.raises(UnknownTool):
            await run.call("kit.add", {"a": 1, "b": 2}, context=ALICE)
        with pytest.raises(NotPermitted):
            await run.call("kit.slow", {"seconds": 0}, context=ALICE)
        with pytest.raises(UnknownTool):
            await run.call("kit.echo", ECHO, context=BOB)
        assert await kit.ledger() == {"echo": 1}


@pytest.mark.requirement("T7")
async def test_a_filter_and_permissions_must_both_agree() -> None:
    async with (
        ScriptedServer.local() as kit,
        opened(
            server(kit),
            permissions={"alice": ["kit.e*", "kit.a*"]},
            filter=lambda one, context: one.tool != "add",
        ) as (run, _),
    ):
        assert names(await run.catalogue_for(ALICE)) == ["kit.echo", "kit.ask"]
        assert names(await run.catalogue_for(BOB)) == []


@pytest.mark.requirement("T7")
async def test_a_renamed_short_or_model_name_opens_no_back_door() -> None:
    async with (
        ScriptedServer.local() as kit,
        opened(server(kit), permissions={"*": ["kit.echo"]}) as (run, _),
    ):
        whole = run.catalogue.tool("kit.add")
        for name in ("add", "kit.add", whole.model_name, whole):
            with pytest.raises(UnknownTool):
                await run.call(name, {"a": 1, "b": 2}, context=ALICE)
            with pytest.raises(UnknownTool):
                await run.resolve([name], ALICE)
        assert await kit.ledger() == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"permissions": ["kit.*"]},
        {"permissions": {"*": "kit.*"}},
        {"permissions": {"*": {"do": ["kit.*"]}}},
        {"permissions": {"*": [""]}},
        {"filter": "kit.*"},
    ],
)
@pytest.mark.requirement("T7")
async def test_what_cannot_be_read_is_refused_before_anything_is_opened(wrong: Any) -> None:
    async with ScriptedServer.local() as kit:
        with pytest.raises(ConfigError):
            async with opened(server(kit), **wrong):
                pass
        assert await kit.connections() == 0
