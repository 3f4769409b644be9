"""Whatever a server lists, the rest of the catalogue is whole, and what was wrong is said."""

import logging
from typing import Any

import pytest

from tests.runtime._catalogue import (
    NO_ARGUMENTS,
    TOOLS_CHANGED,
    Era,
    both_eras,
    listed,
    listings,
    names,
    opened,
    server,
    tool,
    when,
)
from toolkeep import RemoteProtocolError
from toolkeep.testing import ScriptedServer


@both_eras
@pytest.mark.requirement("T1", "O3")
async def test_all_pages_are_read_in_order(era: Era) -> None:
    tools = [tool(f"t{number}") for number in range(25)]
    async with ScriptedServer.local(era=era) as kit:
        await kit.set_tools(tools, built_in=False, page_size=4)
        async with opened(server(kit)) as (run, _):
            assert [one.tool for one in run.catalogue] == [one["name"] for one in tools]
            assert await listings(kit) == 7
            assert run.summary() == "1/1 servers healthy, 25 tools"


@both_eras
@pytest.mark.requirement("T1")
async def test_prompts_resources_and_templates_have_pages_too(era: Era) -> None:
    hints = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
    async with ScriptedServer.local(era=era) as kit:
        for method, (key, items) in OTHERS.items():
            for number, item in enumerate(items):
                more = {"nextCursor": f"c{number}"} if number < 2 else {}
                page = {**hints, key: [item], **more}
                await kit.script(when(method, times=1, result=page))
        async with opened(server(kit)) as (run, _):
            assert names(run.catalogue.prompts) == ["kit.p0", "kit.p1", "kit.p2"]
            assert names(run.catalogue.resources) == ["kit.kit://0", "kit.kit://1", "kit.kit://2"]
            assert len(run.catalogue.templates) == 3
            cursors = [
                (one.body.get("params") or {}).get("cursor")
                for one in await kit.requests("resources/templates/list")
            ]
            assert cursors == [None, "c0", "c1"]


OTHERS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "prompts/list": ("prompts", [{"name": f"p{n}"} for n in range(3)]),
    "resources/list": ("resources", [{"uri": f"kit://{n}", "name": "r"} for n in range(3)]),
    "resources/templates/list": (
        "resourceTemplates",
        [{"uriTemplate": f"kit://{n}/{{x}}", "name": "t"} for n in range(3)],
    ),
}


@pytest.mark.requirement("T1")
async def test_more_than_a_thousand_pages_are_too_many() -> None:
    async with ScriptedServer.local(era="modern", record=False) as kit:
        tools = [tool(f"t{number}") for number in range(1001)]
        await kit.set_tools(tools, built_in=False, page_size=1)
        async with opened(server(kit), backoff=None) as (run, _):
            assert isinstance(run.servers[0].error, RemoteProtocolError)
            await kit.set_tools(tools[:1000], built_in=False, page_size=1)
            await run.reconnect()
            assert len(run.catalogue) == 1000


@both_eras
@pytest.mark.requirement("T1")
async def test_circles_in_a_later_listing_leave_what_was_there(era: Era) -> None:
    async with ScriptedServer.local(era=era) as kit, opened(server(kit)) as (run, diary):
        before = names(run.catalogue)
        await kit.script(when("tools/list", times=2, result=listed(nextCursor="again")))
        await kit.notify(TOOLS_CHANGED)
        await diary.until(lambda: run.catalogue.stale == ("kit",))
        assert names(run.catalogue) == before
        assert (await run.call("kit.echo", {"text": "hi"})).text == "hi"
        await diary.until(lambda: not run.catalogue.stale)
        assert names(run.catalogue) == before


@both_eras
@pytest.mark.requirement("T1")
async def test_of_two_tools_with_one_name_the_first_counts(era: Era) -> None:
    async with ScriptedServer.local(era=era) as kit:
        both = [tool("twin", "first"), tool("other"), tool("twin", "second")]
        await kit.set_tools(both, built_in=False, page_size=2)
        async with opened(server(kit)) as (run, _):
            assert names(run.catalogue) == ["kit.twin", "kit.other"]
            assert run.catalogue.tool("twin").description == "first"
            assert (await run.call("twin")).text == "{}"


MALFORMED = [
    5,
    None,
    "tool",
    [],
    {},
    {"name": "no_schema"},
    {"name": None, "inputSchema": NO_ARGUMENTS},
    {"name": 7, "inputSchema": NO_ARGUMENTS},
    {"name": "list_for_schema", "inputSchema": []},
    {"name": "odd_description", "description": {"a": 1}, "inputSchema": NO_ARGUMENTS},
    {"name": "odd_marks", "annotations": "yes", "inputSchema": NO_ARGUMENTS},
]


@both_eras
@pytest.mark.requirement("T1")
async def test_malformed_tools_are_left_out_and_said_so(
    era: Era, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedServer.local(era=era) as kit:
        answer = listed(tool("first"), *MALFORMED, tool("last"))
        await kit.script(when("tools/list", result=answer))
        with caplog.at_level(logging.WARNING, "toolkeep"):
            async with opened(server(kit)) as (run, _):
                assert names(run.catalogue) == ["kit.first", "kit.last"]
        said = [one for one in caplog.records if "kit" in one.getMessage()]
        assert len(said) == len(MALFORMED)


SCHEMAS: dict[str, Any] = {
    "unknown_type": {"type": "object", "properties": {"a": {"type": "sting"}}},
    "bad_pattern": {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}},
    "foreign_reference": {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/"}}},
    "circle": {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
    "numbers_for_words": {"type": 7, "properties": 5, "required": "a"},
}


@both_eras
@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.requirement("T1", "T6")
async def test_schemas_that_do_not_compile_are_kept_and_harm_nobody(era: Era, name: str) -> None:
    odd = tool(name, inputSchema=SCHEMAS[name])
    async with (
        ScriptedServer.local(era=era, tools=[odd]) as kit,
        opened(server(kit)) as (run, _),
    ):
        found = run.catalogue.tool(f"kit.{name}")
        assert found.input_schema == SCHEMAS[name]
        assert isinstance(found.strict_schema(), dict)
        assert found.input_schema == SCHEMAS[name]
        assert found in run.catalogue.search(name)
        assert (await run.call("kit.echo", {"text": "hi"})).text == "hi"
        if name != "circle":  # what refers to itself alone can be satisfied by nothing we know of
            assert (await run.call(f"kit.{name}", {"b": 1})).text == '{"b": 1}'


@both_eras
@pytest.mark.requirement("T1")
async def test_five_megabytes_of_description_are_carried_and_searched(era: Era) -> None:
    long = "needle " + "word " * 1_000_000
    async with (
        ScriptedServer.local(era=era, tools=[tool("long", long)]) as kit,
        opened(server(kit)) as (run, _),
    ):
        assert run.catalogue.tool("long").description == long
        assert names(run.catalogue.search("needle")) == ["kit.long"]
        assert len(repr(run.catalogue.tool("long"))) < 300
        assert (await run.call("long")).text == "{}"


NAMES = [
    "with.dots.in.it",
    "kit.echo",
    "other__tool",
    "with space",
    "UPPER",
    "ünïcödé",
    "日本語の道具",
    "\u202eright-to-left",
    "emoji🔧",
    "slash/and\\back",
    "quote\"and'quote",
    "new\nline",
    "tab\tand\x00nul",
    "__proto__",
    "!denied",
    "#tagged",
    "*",
    "[a-z]",
    "x" * 500,
    "",
    ".",
    "..",
    "a" * 63 + "!",
]


@both_eras
@pytest.mark.requirement("T2", "T3")
async def test_names_of_every_kind_can_be_found_and_called(era: Era) -> None:
    async with (
        ScriptedServer.local(era=era, tools=[tool(name) for name in NAMES]) as kit,
        opened(server(kit)) as (run, _),
    ):
        mine = [one for one in run.catalogue if one.tool in NAMES]
        assert [one.tool for one in mine] == NAMES
        assert len({one.model_name for one in mine}) == len(NAMES)
        for one in mine:
            assert run.catalogue.tool(one.name) is one
            assert (await run.call(one.name, {"n": 1})).text == '{"n": 1}'
            assert (await run.call(one.model_name, {"n": 2})).text == '{"n": 2}'
        called = [record.tool for record in await kit.requests("tools/call")]
        assert called == [name for name in NAMES for _ in range(2)]
