"""Lists, prompts, resources, completions, ping, log level, and any other request."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from mcp_types import PromptReference

from tests.engine.helpers_wire import (
    BOUND,
    Encoding,
    Era,
    both_encodings,
    both_eras,
    client_of,
    methods,
    when,
)
from toolkeep import (
    CallError,
    CallNotDelivered,
    CallRejected,
    Client,
    InvalidArguments,
    RemoteProtocolError,
    Runtime,
    ToolkeepError,
)
from toolkeep.events import Changed, Connected, Disconnected, Event
from toolkeep.testing import ScriptedServer

LIST_CHANGED = "notifications/tools/list_changed"


def named(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


# -- listing tools -----------------------------------------------------------------------------


@both_eras
@both_encodings
@pytest.mark.parametrize("size", [None, 1, 7, 100])
async def test_all_pages_are_one_list(era: Era, encoding: Encoding, size: int | None) -> None:
    own = [named(f"tool{n}") for n in range(20)]
    async with (
        ScriptedServer.local(era=era, encoding=encoding, tools=own, page_size=size) as server,
        client_of(server, mode=era) as client,
    ):
        tools = await client.list_tools()
        names = [tool.name for tool in tools]
        assert names[-20:] == [f"tool{n}" for n in range(20)]
        assert len(set(names)) == len(names)
        pages = -(-len(names) // size) if size else 1
        assert (await methods(server)).count("tools/list") == pages


@both_eras
async def test_pages_without_end_are_an_error_to_a_strict_client(era: Era) -> None:
    page = {"tools": [named("one")], "nextCursor": "again", "resultType": "complete"}
    page |= {"ttlMs": 0, "cacheScope": "public"}
    async with ScriptedServer.local(era=era) as server, strict_client(server, era) as client:
        await server.script(when("tools/list", result=page))
        with pytest.raises(RemoteProtocolError):
            await client.list_tools()
        assert (await methods(server)).count("tools/list") <= 2
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


@both_eras
@pytest.mark.parametrize(
    "cursors", [["again", "again"], ["a", "b", "a"], ["", "a", ""]], ids=["same", "circle", "empty"]
)
@pytest.mark.requirement("T1")
async def test_pages_without_end_are_used_as_far_as_they_were_read(
    era: Era, cursors: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        for number, cursor in enumerate(cursors):
            page = {**HINTS, "prompts": [{"name": f"p{number}"}], "nextCursor": cursor}
            await server.script(when("prompts/list", times=1, result=page))
        found = await client.list_prompts()
        assert [one.name for one in found] == [f"p{number}" for number in range(len(cursors))]
        assert (await methods(server)).count("prompts/list") == len(cursors)
    assert f"repeats a cursor, so its pages would never end; the {len(found)} items" in caplog.text


@both_eras
@pytest.mark.requirement("T1")
async def test_pages_without_end_that_hold_nothing_are_the_servers_fault(era: Era) -> None:
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await server.script(when("tools/list", result={**HINTS, "tools": [], "nextCursor": "a"}))
        with pytest.raises(RemoteProtocolError):
            await client.list_tools()
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


async def test_the_servers_of_a_strict_runtime_may_not_repeat_a_cursor() -> None:
    page = {**HINTS, "tools": [named("one")], "nextCursor": "again"}
    async with ScriptedServer.local() as server:
        await server.script(when("tools/list", result=page))
        async with Runtime({"kit": server.spec}) as runtime:
            assert [tool.name for tool in runtime.catalogue.tools if tool.server == "kit"] == [
                "kit.one"
            ]
        with pytest.raises(RemoteProtocolError):
            async with Runtime({"kit": server.spec}, strict=True):
                pass


@asynccontextmanager
async def strict_client(server: ScriptedServer, era: Era) -> AsyncIterator[Client]:
    async with aclosing(Client({"url": server.url, "mode": era}, strict=True)) as client:
        yield client


@both_eras
@pytest.mark.parametrize("tools", [None, "none", {"a": 1}])
async def test_a_list_that_is_none_is_the_servers_fault(era: Era, tools: object) -> None:
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await server.script(when("tools/list", result={"tools": tools, "resultType": "complete"}))
        with pytest.raises(RemoteProtocolError):
            await client.list_tools()


@both_eras
async def test_malformed_tools_are_left_out_and_said_so(
    era: Era, caplog: pytest.LogCaptureFixture
) -> None:
    tools = [
        named("good"),
        {"name": "no schema"},
        {"inputSchema": {"type": "object"}},
        named("odd", inputSchema="text"),
        "not even an object",
        named("also_good"),
    ]
    page = {"tools": tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await server.script(when("tools/list", result=page))
        assert [tool.name for tool in await client.list_tools()] == ["good", "also_good"]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 4


@both_eras
async def test_the_list_is_kept_until_asked_again(era: Era) -> None:
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await server.set_cache(60_000, "private")
        before = await client.list_tools()
        await server.set_tools([named("new")])
        assert await client.list_tools() == before
        before.clear()
        assert await client.list_tools() != []
        assert (await methods(server)).count("tools/list") == 1
        after = await client.list_tools(refresh=True)
        assert "new" in [tool.name for tool in after]
        assert (await methods(server)).count("tools/list") == 2


async def test_a_changed_list_is_listed_again() -> None:
    noticed = asyncio.Event()

    def observer(event: Event) -> None:
        if isinstance(event, Changed):
            noticed.set()

    async with ScriptedServer.local(era="legacy") as server, client_of(server) as client:
        client.observe(observer)
        await client.list_tools()
        await server.set_tools([named("new")])
        await server.notify(LIST_CHANGED)
        async with asyncio.timeout(BOUND):
            await noticed.wait()
        assert "new" in [tool.name for tool in await client.list_tools()]


@both_eras
async def test_a_change_told_on_a_calls_stream_counts_too(era: Era) -> None:
    told = f'data: {{"jsonrpc":"2.0","method":"{LIST_CHANGED}"}}\n\n'
    async with (
        ScriptedServer.local(era=era, encoding="sse") as server,
        client_of(server, mode=era) as client,
    ):
        await client.list_tools()
        await server.set_tools([named("new")])
        await server.script(when(tool="echo", sse_prefix=told))
        await client.call_tool("echo", {"text": "hi"})
        assert "new" in [tool.name for tool in await client.list_tools()]


@both_eras
@pytest.mark.requirement("P6")
async def test_a_changed_list_is_no_ground_to_refuse_a_call(era: Era) -> None:
    told = f'data: {{"jsonrpc":"2.0","method":"{LIST_CHANGED}"}}\n\n'
    old = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}
    async with (
        ScriptedServer.local(
            era=era, encoding="sse", tools=[named("grow", inputSchema=old)]
        ) as server,
        client_of(server, mode=era) as client,
    ):
        await client.list_tools()
        await server.set_tools([named("grow")])
        await server.script(when(tool="echo", times=1, sse_prefix=told))
        await client.call_tool("echo", {"text": "hi"})
        assert (await client.call_tool("grow", {"n": "a text now"})).success


async def test_a_new_connection_lists_again() -> None:
    async with ScriptedServer.local(era="legacy") as server, client_of(server) as client:
        await client.list_tools()
        await server.set_tools([named("new")])
        await server.forget_sessions()
        await client.call_tool("echo", {"text": "hi"})
        assert "new" in [tool.name for tool in await client.list_tools()]


# -- prompts, resources, completions -----------------------------------------------------------


@both_eras
@both_encodings
async def test_prompts_resources_and_completions(era: Era, encoding: Encoding) -> None:
    async with (
        ScriptedServer.local(era=era, encoding=encoding) as server,
        client_of(server, mode=era) as client,
    ):
        (prompt,) = await client.list_prompts()
        assert prompt.name == "greet"
        got = await client.get_prompt("greet", {"name": "Ada"})
        assert got.messages[0].content.type == "text"
        assert got.messages[0].content.text == "Greet Ada."
        (resource,) = await client.list_resources()
        (template,) = await client.list_resource_templates()
        assert template.uri_template == "kit://notes/{day}"
        read = await client.read_resource(str(resource.uri))
        assert getattr(read.contents[0], "text", None) == "a note"
        reference = PromptReference(type="ref/prompt", name="greet")
        completion = await client.complete(reference, "name", "A", context={"lang": "en"})
        assert completion.values == ["Ada", "Alan"]
        (sent,) = await server.requests("completion/complete")
        assert sent.body["params"]["context"] == {"arguments": {"lang": "en"}}


@both_eras
async def test_what_does_not_exist_is_a_rejection(era: Era) -> None:
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        for question in (client.get_prompt("no"), client.read_resource("no://where")):
            with pytest.raises(CallRejected) as caught:
                await question
            assert caught.value.code == -32602


VENDOR = {"resultType": "complete", "x": [1]}
ODD = {"odd": 1, "resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
QUESTIONS: dict[str, Any] = {
    "prompts/get": lambda client: client.get_prompt("greet"),
    "resources/read": lambda client: client.read_resource("kit://notes"),
    "completion/complete": lambda client: client.complete(
        PromptReference(type="ref/prompt", name="greet"), "name", "A"
    ),
}
LISTS: dict[str, Any] = {
    "prompts/list": ("prompts", Client.list_prompts),
    "resources/list": ("resources", Client.list_resources),
    "resources/templates/list": ("resourceTemplates", Client.list_resource_templates),
}


@both_eras
@pytest.mark.parametrize("method", QUESTIONS)
async def test_a_malformed_answer_is_an_error_of_ours(era: Era, method: str) -> None:
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await server.script(when(method, result=ODD))
        with pytest.raises(ToolkeepError):
            await QUESTIONS[method](client)


@both_eras
@pytest.mark.parametrize("method", LISTS)
async def test_malformed_items_of_a_list_are_left_out(era: Era, method: str) -> None:
    key, listed = LISTS[method]
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await server.script(when(method, result={**ODD, key: [{"odd": 1}, 7]}))
        assert await listed(client) == []


# -- ping, log level, requests -----------------------------------------------------------------


@both_eras
@both_encodings
async def test_a_ping_asks_on_the_connection_there_is(era: Era, encoding: Encoding) -> None:
    async with (
        ScriptedServer.local(era=era, encoding=encoding) as server,
        client_of(server, mode=era) as client,
    ):
        await client.connect()
        session, opening = client.session_id, await methods(server)
        assert 0 < await client.ping() < BOUND
        asked = "ping" if era == "legacy" else "server/discover"
        assert await methods(server) == [*opening, asked]
        assert client.session_id == session
        assert await server.connections() == 1


@both_eras
@pytest.mark.parametrize(
    ("knock", "alive"),
    [(200, True), (400, True), (405, True), (406, True), (404, False), (500, False)],
)
@pytest.mark.requirement("G7")
async def test_an_odd_server_is_alive_if_it_answers_a_plain_get(
    era: Era, knock: int, alive: bool
) -> None:
    asked = "ping" if era == "legacy" else "server/discover"
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await client.connect()
        await server.script(
            when(asked, status=418),
            when(verb="GET", status=knock, body="", content_type="text/plain"),
        )
        if alive:
            assert 0 < await client.ping() < BOUND
        else:
            with pytest.raises(CallNotDelivered):
                await client.ping()
        assert [one.http_method for one in await server.requests()].count("GET") == 1


async def test_the_log_level_is_asked_for_on_every_connection() -> None:
    async with ScriptedServer.local(era="legacy") as server, client_of(server) as client:
        await client.set_log_level("warning")
        await client.call_tool("echo", {"text": "hi"})
        await server.forget_sessions()
        await client.call_tool("echo", {"text": "hi"})
        await client.set_log_level("debug")
        levels = [one.body["params"]["level"] for one in await server.requests("logging/setLevel")]
        assert levels == ["warning", "warning", "debug"]
        sessions = {one.session_id for one in await server.requests("logging/setLevel")}
        assert len(sessions) == 2


async def test_the_log_level_of_a_modern_server_goes_with_every_call() -> None:
    async with ScriptedServer.local(era="modern") as server, client_of(server) as client:
        await client.set_log_level("warning")
        await client.call_tool("echo", {"text": "hi"}, meta={"mine": 1})
        (call,) = await server.requests("tools/call")
        meta = call.body["params"]["_meta"]
        assert meta["io.modelcontextprotocol/logLevel"] == "warning"
        assert meta["mine"] == 1
        assert "logging/setLevel" not in await methods(server)


async def test_a_server_without_log_levels_can_still_be_used() -> None:
    refusal = {"code": -32601, "message": "Method not found"}
    async with ScriptedServer.local(era="legacy") as server, client_of(server) as client:
        await server.script(when("logging/setLevel", error=refusal))
        await client.set_log_level("warning")
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


@both_eras
@both_encodings
async def test_any_request_goes_out_and_comes_back_in_wire_shape(
    era: Era, encoding: Encoding
) -> None:
    async with (
        ScriptedServer.local(era=era, encoding=encoding) as server,
        client_of(server, mode=era) as client,
    ):
        result = await client.request("resources/read", {"uri": "kit://notes"})
        assert result["contents"][0]["text"] == "a note"
        await server.script(when("vendor/thing", run=False, result=VENDOR))
        assert (await client.request("vendor/thing", {"a": None}))["x"] == [1]
        (sent,) = await server.requests("vendor/thing")
        assert sent.body["params"]["a"] is None
        with pytest.raises(CallRejected) as caught:
            await client.request("vendor/unknown")
        assert caught.value.code == -32601


async def test_connections_are_announced_and_their_end_too() -> None:
    seen: list[Event] = []
    async with ScriptedServer.local(era="legacy") as server, client_of(server) as client:
        client.observe(seen.append, listen=False)
        await client.connect()
        session = client.session_id
        await client.aclose()
    connected, disconnected = seen
    assert isinstance(connected, Connected)
    assert isinstance(disconnected, Disconnected)
    assert (connected.era, connected.session_id) == ("legacy", session)
    assert connected.generation == disconnected.generation
    assert session is not None
    assert session not in connected.to_json()


# -- lists of servers that do not end them well --------------------------------------------------

HINTS = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
each_list = pytest.mark.parametrize(
    ("method", "key", "item", "listing"),
    [
        ("tools/list", "tools", {"inputSchema": {"type": "object"}}, "list_tools"),
        ("prompts/list", "prompts", {}, "list_prompts"),
        ("resources/list", "resources", {"uri": "kit://x"}, "list_resources"),
    ],
    ids=["tools", "prompts", "resources"],
)


@both_eras
@both_encodings
@each_list
@pytest.mark.requirement("T1")
async def test_an_empty_cursor_does_not_end_a_list(
    era: Era, encoding: Encoding, method: str, key: str, item: dict[str, Any], listing: str
) -> None:
    async with (
        ScriptedServer.local(era=era, encoding=encoding) as server,
        client_of(server, mode=era) as client,
    ):
        first = {**HINTS, key: [{"name": "one", **item}], "nextCursor": ""}
        last = {**HINTS, key: [{"name": "two", **item}]}
        await server.script(when(method, times=1, result=first), when(method, result=last))
        found = await getattr(client, listing)()
        assert [one.name for one in found] == ["one", "two"]
        asked = await server.requests(method)
        assert [(one.body.get("params") or {}).get("cursor") for one in asked] == [None, ""]


@both_eras
@pytest.mark.requirement("T1")
async def test_a_server_that_reads_an_empty_cursor_as_none_has_listed_all(era: Era) -> None:
    page = {**HINTS, "tools": [named("one")], "nextCursor": ""}
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await server.script(when("tools/list", result=page))
        assert [tool.name for tool in await client.list_tools()] == ["one"]
        assert (await methods(server)).count("tools/list") == 2


@both_eras
@pytest.mark.requirement("T1")
async def test_a_server_that_refuses_its_own_empty_cursor_has_listed_all(
    era: Era, caplog: pytest.LogCaptureFixture
) -> None:
    page = {**HINTS, "tools": [named("one")], "nextCursor": ""}
    refused = {"code": -32602, "message": "Invalid cursor"}
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await server.script(
            when("tools/list", times=1, result=page), when("tools/list", error=refused)
        )
        assert [tool.name for tool in await client.list_tools()] == ["one"]
    assert "empty cursor" in caplog.text


@both_eras
@pytest.mark.parametrize("cursor", ["again", "", 7, False, 0, ["x"]])
@pytest.mark.requirement("T1")
async def test_a_cursor_that_leads_nowhere_is_the_servers_fault(era: Era, cursor: object) -> None:
    async with ScriptedServer.local(era=era) as server, strict_client(server, era) as client:
        for number in range(5):
            page = {**HINTS, "tools": [named(f"t{number}")], "nextCursor": cursor}
            await server.script(when("tools/list", times=1, result=page))
        with pytest.raises(RemoteProtocolError):
            await client.list_tools()


@both_eras
@pytest.mark.requirement("F5")
async def test_the_pages_of_a_list_share_one_budget_of_replays(era: Era) -> None:
    async with (
        ScriptedServer.local(era=era) as server,
        client_of(server, mode=era, max_retries=2) as client,
    ):
        await client.connect()
        for number in range(4):
            page = {**HINTS, "tools": [named(f"t{number}")], "nextCursor": f"c{number}"}
            await server.script(
                when("tools/list", times=1, status=503), when("tools/list", times=1, result=page)
            )
        with pytest.raises(CallError):
            await client.list_tools()
        # Three pages asked for; the first two are replayed once each, the third is not.
        assert (await methods(server)).count("tools/list") == 5


@both_eras
@pytest.mark.requirement("F5")
async def test_all_pages_together_are_bounded_in_bytes(era: Era) -> None:
    async with (
        ScriptedServer.local(era=era) as server,
        client_of(server, mode=era, max_result_bytes=100_000) as client,
    ):
        for number in range(20):
            tool = named(f"t{number}", description="x" * 30_000)
            page = {**HINTS, "tools": [tool], "nextCursor": f"c{number}"}
            await server.script(when("tools/list", times=1, result=page))
        with pytest.raises(RemoteProtocolError, match="100000 bytes"):
            await client.list_tools()
        assert (await methods(server)).count("tools/list") == 4


@pytest.mark.requirement("F5")
async def test_all_pages_together_are_bounded_in_items() -> None:
    async with ScriptedServer.local() as server, client_of(server) as client:
        for number in range(3):
            page = {"tools": [{}] * 4_000, "nextCursor": f"c{number}"}
            await server.script(when("tools/list", times=1, result=page))
        with pytest.raises(RemoteProtocolError, match="10000 items"):
            await client.list_tools()
        assert (await methods(server)).count("tools/list") == 3


# -- what is handed out ---------------------------------------------------------------------------


def spoil(tool: Any) -> None:
    """Whatever a careless caller can do to a tool."""
    tool.input_schema["properties"].clear()
    tool.input_schema["required"] = ["nothing"]
    tool.description = "spoilt"
    tool.annotations.read_only_hint = False


@both_eras
@both_encodings
@pytest.mark.requirement("T4")
async def test_a_listed_tool_is_its_callers_own(era: Era, encoding: Encoding) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    marks = {"readOnlyHint": True}
    own = named("own", inputSchema=schema, annotations=marks, icons=[{"src": "https://x/y"}])
    async with (
        ScriptedServer.local(era=era, encoding=encoding, tools=[own]) as server,
        client_of(server, mode=era) as client,
    ):
        (tool,) = [one for one in await client.list_tools() if one.name == "own"]
        spoil(tool)
        assert tool.icons is not None
        tool.icons.clear()
        with pytest.raises(InvalidArguments):
            await client.call_tool("own", {"text": 5})
        await server.script(when(tool="own", times=1, run=True, drop="after_run"))
        await client.call_tool("own", {"text": "hi"})  # read-only still: it is replayed
        (again,) = [one for one in await client.list_tools() if one.name == "own"]
        assert again.model_dump(by_alias=True, exclude_none=True, mode="json") == own
