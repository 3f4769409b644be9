"""From what somebody wrote to the tool that was meant, over real servers."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.runtime._catalogue import Era, both_eras, names, opened, server, tool
from toolkeep import AmbiguousTool, CallContext, InvalidArguments, Runtime, Tool, UnknownTool
from toolkeep.testing import ScriptedServer

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 1, "default": "hi"},
        "more": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
    "required": ["text"],
}
MARKS = {"readOnlyHint": True, "openWorldHint": False, "title": "Looks it up"}


@asynccontextmanager
async def two(era: Era) -> AsyncIterator[tuple[Runtime, ScriptedServer, ScriptedServer]]:
    """`pay` and `mail`, which both have the built-in tools."""
    own = [tool("send"), tool("pay.send", "of mail"), tool("only.here"), tool("pay__send")]
    async with (
        ScriptedServer.local(era=era, tools=[tool("send"), tool("a.b.c")]) as pay,
        ScriptedServer.local(era=era, tools=own) as mail,
        opened(server(pay, "pay"), server(mail, "mail")) as (run, _),
    ):
        yield run, pay, mail


@both_eras
@pytest.mark.requirement("T2")
async def test_the_pair_is_the_identity(era: Era) -> None:
    async with two(era) as (run, pay, mail):
        for name in ("pay.send", "mail.send", "mail.pay.send", "pay.a.b.c", "mail.pay__send"):
            assert (await run.call(name, {"n": name})).text == json.dumps({"n": name})
        assert [one.tool for one in await pay.requests("tools/call")] == ["send", "a.b.c"]
        assert [one.tool for one in await mail.requests("tools/call")] == [
            *("send", "pay.send", "pay__send")
        ]


@both_eras
@pytest.mark.requirement("T2")
async def test_a_short_name_must_be_unique(era: Era) -> None:
    async with two(era) as (run, pay, mail):
        assert (await run.call("a.b.c")).text == "{}"
        assert (await run.call("only.here")).text == "{}"
        with pytest.raises(AmbiguousTool) as caught:
            await run.call("send")
        assert caught.value.candidates == ("pay.send", "mail.send")
        with pytest.raises(AmbiguousTool):
            await run.call("echo", {"text": "hi"})
        asked = [*await pay.requests("tools/call"), *await mail.requests("tools/call")]
        assert [one.tool for one in asked] == ["a.b.c", "only.here"]


@both_eras
@pytest.mark.requirement("T2")
async def test_an_unknown_name_suggests_the_nearest(era: Era) -> None:
    async with two(era) as (run, pay, _):
        with pytest.raises(UnknownTool) as caught:
            await run.call("pay.sned")
        assert caught.value.suggestions[0] == "pay.send"
        with pytest.raises(UnknownTool) as caught:
            await run.call("only.her")
        assert caught.value.suggestions[0] == "mail.only.here"
        with pytest.raises(UnknownTool) as caught:
            await run.call("nowhere.zzz")
        assert caught.value.suggestions == ()
        assert await pay.requests("tools/call") == []


@both_eras
@pytest.mark.requirement("T2")
async def test_no_server_answers_for_another_that_lost_the_tool(era: Era) -> None:
    async with two(era) as (run, pay, mail):
        await pay.set_tools([])
        await run.refresh("pay")
        for name in ("pay.send", "pay__send"):
            with pytest.raises(UnknownTool):
                await run.call(name)
        assert await mail.requests("tools/call") == []


@pytest.mark.parametrize("name", [None, 5, b"pay.send", ["pay.send"]])
async def test_what_is_no_name_is_refused(name: object) -> None:
    async with two("modern") as (run, pay, _):
        with pytest.raises(InvalidArguments):
            await run.call(name)  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidArguments):
            await run.resolve([name])  # pyright: ignore[reportArgumentType]
        assert await pay.requests("tools/call") == []


@both_eras
@pytest.mark.requirement("T3")
async def test_every_name_for_models_leads_back_to_its_tool(era: Era) -> None:
    async with two(era) as (run, pay, mail):
        for one in run.catalogue:
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", one.model_name)
            assert run.catalogue.tool(one.model_name) is one
        assert len({one.model_name for one in run.catalogue}) == len(run.catalogue)
        for name in ("pay.send", "mail.send", "pay.a.b.c", "mail.pay.send", "mail.pay__send"):
            await run.call(run.catalogue.tool(name).model_name, {"n": name})
        called = [
            (kit.url, one.tool) for kit in (pay, mail) for one in await kit.requests("tools/call")
        ]
        assert called == [
            *((pay.url, "send"), (pay.url, "a.b.c")),
            *((mail.url, "send"), (mail.url, "pay.send"), (mail.url, "pay__send")),
        ]


@both_eras
@pytest.mark.requirement("T3")
async def test_names_for_models_stay_when_tools_come_and_go(era: Era) -> None:
    async with two(era) as (run, pay, _):
        before = {one.name: one.model_name for one in run.catalogue}
        await pay.set_tools([tool("a.b.c"), tool("a.b_c"), tool("a_b.c"), tool("mail__send")])
        await run.refresh("pay")
        after = {one.name: one.model_name for one in run.catalogue}
        assert "pay.a_b.c" in after
        assert all(after[name] == before[name] for name in after.keys() & before.keys())


@both_eras
@pytest.mark.requirement("T8")
async def test_names_are_resolved_in_order_all_or_none(era: Era) -> None:
    async with two(era) as (run, _, mail):
        asked = ["mail.send", "a.b.c", run.catalogue.tool("pay.send").model_name, "only.here"]
        found = await run.resolve(asked)
        assert names(found) == ["mail.send", "pay.a.b.c", "pay.send", "mail.only.here"]
        assert await run.resolve([]) == []
        assert names(await run.resolve(found)) == names(found)
        assert names(await run.resolve(["a.b.c", "a.b.c"])) == ["pay.a.b.c"] * 2
        assert (await found[0].call({"n": 1})).text == '{"n": 1}'
        assert [one.tool for one in await mail.requests("tools/call")] == ["send"]
        with pytest.raises(UnknownTool) as caught:
            await run.resolve(["a.b.c", "pay.sned", "send", "nowhere.x"])
        assert all(name in str(caught.value) for name in ("pay.sned", "send", "nowhere.x"))
        with pytest.raises(AmbiguousTool):
            await run.resolve(["a.b.c", "send"])


@both_eras
@pytest.mark.requirement("T8")
async def test_a_resolved_tool_speaks_for_its_context_and_can_be_dressed(era: Era) -> None:
    async with two(era) as (run, pay, _):
        context = CallContext(principal="alice", headers={"x-user": "alice"})
        (found,) = await run.resolve(["pay.headers"], context)
        said = (await found.with_headers({"x-more": "1"}).call()).data
        assert (said["x-user"], said["x-more"]) == ("alice", "1")
        assert "x-more" not in ((await found.call()).data)
        async with found.stream() as call:
            events = [event.kind async for event in call]
        assert (events[0], events[-1]) == ("started", "completed")
        await pay.set_tools([], built_in=False)
        await run.refresh("pay")
        with pytest.raises(UnknownTool):
            await found.call()


async def test_a_tool_of_a_catalogue_is_not_bound_to_a_runtime() -> None:
    async with two("modern") as (run, _, _):
        loose = run.catalogue.tool("pay.send")
        with pytest.raises(RuntimeError):
            await loose.call()
        assert (await run.call(loose, {"n": 1})).text == '{"n": 1}'


@both_eras
@pytest.mark.requirement("T6")
async def test_strict_schemas_are_copies(era: Era) -> None:
    async with (
        ScriptedServer.local(era=era, tools=[tool("it", inputSchema=SCHEMA)]) as kit,
        opened(server(kit)) as (run, _),
    ):
        found = run.catalogue.tool("it")
        strict = found.strict_schema()
        assert strict["additionalProperties"] is False
        assert set(strict["required"]) == {"text", "more"}
        strict["properties"].clear()
        assert found.input_schema == SCHEMA
        assert found.strict_schema()["properties"]
        # The server's own schema is what arguments are checked against.
        assert (await run.call("it", {"text": "a", "other": 1})).text
        with pytest.raises(InvalidArguments):
            await run.call("it", {"text": ""})


@both_eras
@pytest.mark.requirement("T12")
async def test_tags_and_hints_are_shown_and_make_groups(era: Era) -> None:
    own = [tool("look", annotations=MARKS), tool("drop", annotations={"destructiveHint": True})]
    own += [tool("set_x", annotations={"idempotentHint": True, "destructiveHint": False})]
    settings = {"tags": ["shop"], "tool_tags": {"set_*": ["writes"], "drop": ["writes", "grave"]}}
    async with (
        ScriptedServer.local(era=era) as kit,
        ScriptedServer.local(era=era) as other,
    ):
        await kit.set_tools(own, built_in=False)
        await other.set_tools([tool("plain")], built_in=False)
        async with opened(server(kit, **settings), server(other, "other")) as (run, _):
            groups = {tag: names(found) for tag, found in run.catalogue.by_tag().items()}
            assert groups == {
                "grave": ["kit.drop"],
                "shop": ["kit.look", "kit.drop", "kit.set_x"],
                "writes": ["kit.drop", "kit.set_x"],
            }
            assert names(run.catalogue.with_tag("writes")) == groups["writes"]
            assert names(run.catalogue.search("drop", tags=["shop"])) == ["kit.drop"]
            assert names(run.catalogue.search("drop", tags=["none"])) == []
            hints = {one.tool: hints_of(one) for one in run.catalogue}
    assert hints == {
        "look": (True, False, True, False),
        "drop": (False, True, False, True),
        "set_x": (False, False, True, True),
        "plain": (False, True, False, True),
    }


def hints_of(one: Tool) -> tuple[bool, bool, bool, bool]:
    return one.read_only, one.destructive, one.idempotent, one.open_world


@both_eras
async def test_the_title_is_for_people(era: Era) -> None:
    async with (
        ScriptedServer.local(era=era, tools=[tool("look", annotations=MARKS)]) as kit,
        opened(server(kit)) as (run, _),
    ):
        assert run.catalogue.tool("look").title == "Looks it up"
        assert run.catalogue.tool("kit.echo").title == "echo"
