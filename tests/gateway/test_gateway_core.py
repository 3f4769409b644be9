"""A gateway over HTTP, as clients of both eras see it: lists, calls, what passes through."""

import asyncio
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from tests.gateway.front import front, sdk, wire
from tests.runtime._catalogue import tool
from toolkeep import CallRejected
from toolkeep import Client as ToolkeepClient
from toolkeep.testing import Behaviour, Rule, ScriptedServer

ERAS = ("legacy", "2026-07-28")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("upstream", ["legacy", "modern"])
async def test_both_eras_list_and_call_through_the_gateway(era: str, upstream: Any):
    async with (
        ScriptedServer.local(era=upstream) as kit,
        front({"kit": kit.url}) as gateway,
        sdk(gateway.url, mode=era) as client,
    ):
        names = {one.name for one in (await client.list_tools()).tools}
        assert {"kit__echo", "kit__add", "kit__content"} <= names
        echoed = await client.call_tool("kit__echo", {"text": "hello"})
        assert echoed.content[0].text == "hello"
        summed = await client.call_tool("kit__add", {"a": 1, "b": 2})
        assert summed.structured_content == {"sum": 3}
        failed = await client.call_tool("kit__fail", {"message": "no"})
        assert failed.is_error
        assert failed.content[0].text == "no"


@pytest.mark.parametrize("era", ERAS)
async def test_every_kind_of_content_and_meta_passes_through_unchanged(era: str):
    async with ScriptedServer.local() as kit, front({"kit": kit.url}) as gateway:
        async with sdk(kit.url, mode=era) as direct, sdk(gateway.url, mode=era) as client:
            plain = await direct.call_tool("content", {})
            through = await client.call_tool("kit__content", {})
        assert through.content == plain.content
        assert through.meta is not None
        assert through.meta["kit/whole"] is True


@pytest.mark.parametrize("era", ERAS)
async def test_definitions_pass_through_but_for_their_names(era: str):
    rich = {
        **tool("rich", "Does much"),
        "title": "Rich tool",
        "annotations": {"readOnlyHint": True, "title": "R"},
        "icons": [{"src": "data:image/png;base64,AA=="}],
        "_meta": {"kit/own": 1},
        "outputSchema": {"type": "object", "properties": {"x": {"default": None}}},
    }
    async with (
        ScriptedServer.local(tools=[rich]) as kit,
        front({"kit": kit.url}) as gateway,
        sdk(kit.url, mode=era) as direct,
        sdk(gateway.url, mode=era) as client,
    ):
        plain = {one.name: one for one in (await direct.list_tools()).tools}["rich"]
        through = {one.name: one for one in (await client.list_tools()).tools}["kit__rich"]
    assert through.model_copy(update={"name": "rich"}) == plain


@pytest.mark.parametrize("era", ERAS)
async def test_prompts_resources_templates_and_completions_work(era: str):
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}) as gateway,
        sdk(gateway.url, mode=era) as client,
    ):
        assert [one.name for one in (await client.list_prompts()).prompts] == ["kit__greet"]
        got = await client.get_prompt("kit__greet", {"name": "Ada"})
        assert got.messages[0].content.text == "Greet Ada."
        assert [str(one.uri) for one in (await client.list_resources()).resources] == [
            "kit://notes"
        ]
        read = await client.read_resource("kit://notes")
        assert read.contents[0].text == "a note"
        templates = (await client.list_resource_templates()).resource_templates
        assert [one.uri_template for one in templates] == ["kit://notes/{day}"]
        assert (await client.read_resource("kit://notes/monday")).contents[0].text == "a note"
        ref: Any = {"type": "ref/prompt", "name": "kit__greet"}
        from mcp_types import PromptReference

        completed = await client.complete(PromptReference(**ref), {"name": "name", "value": "A"})
        assert completed.completion.values == ["Ada", "Alan"]


@pytest.mark.parametrize("uri", ["kit:missing", "kit://nothing"])
async def test_a_resource_that_is_not_there_is_named_in_the_error(uri: str):
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize()
        error = (await client.call("resources/read", uri=uri)).error
        assert (error["code"], error["data"]) == (-32002, {"uri": uri})
        error = (await client.modern("resources/read", uri=uri)).error
        assert (error["code"], error["data"]) == (-32602, {"uri": uri})


async def test_toolkeeps_own_client_works_in_both_eras():
    async with ScriptedServer.local() as kit, front({"kit": kit.url}) as gateway:
        for mode in ("legacy", "modern"):
            async with ToolkeepClient({"url": gateway.url, "mode": mode}) as client:
                result = await client.call_tool("kit__add", {"a": 2, "b": 2})
                assert result.data == {"sum": 4}


async def test_fastmcps_client_works():
    from fastmcp import Client as FastClient

    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}) as gateway,
        FastClient(gateway.url) as client,
    ):
        result = await client.call_tool("kit__add", {"a": 2, "b": 3})
        assert result.structured_content == {"sum": 5}


async def test_a_handshake_names_the_gateway_and_keeps_the_clients_version():
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        for version in ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"):
            result = (await client.initialize(version)).json["result"]
            assert result["protocolVersion"] == version
            assert result["serverInfo"]["name"] == "toolkeep"
            assert result["capabilities"]["resources"]["subscribe"] is True
        assert (await client.initialize("1999-01-01")).json["result"][
            "protocolVersion"
        ] == "2025-11-25"
        found = (await client.modern("server/discover")).json["result"]
        assert found["supportedVersions"] == ["2026-07-28"]
        assert found["resultType"] == "complete"
        assert (await client.call("ping")).json["result"] == {}


async def test_pages_are_walked_with_cursors_that_survive_a_change(monkeypatch: Any):
    monkeypatch.setattr("toolkeep.gateway.offer.PAGE_ITEMS", 5)
    tools = [tool(f"t{number:02}") for number in range(12)]
    async with (
        ScriptedServer.local(tools=tools) as kit,
        front({"kit": kit.url}, replicas=2) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize()
        listed: list[str] = []
        page = (await client.call("tools/list")).json["result"]
        while True:
            listed += [one["name"] for one in page["tools"]]
            if "nextCursor" not in page:
                break
            cursor = page["nextCursor"]
            page = (await client.call("tools/list", cursor=cursor)).json["result"]
        assert listed == list(dict.fromkeys(listed))
        assert {f"kit__{one['name']}" for one in tools} < set(listed)
        for wrong in ("nonsense", "W10=", 7):
            assert (await client.call("tools/list", cursor=wrong)).error["code"] == -32602


async def test_a_profile_shows_its_part_under_its_own_path():
    profiles = {
        "small": {"servers": ["kit"], "include": ["echo"], "prefix": False},
        "search": {"mode": "search"},
    }
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings={"profiles": profiles}) as gateway,
    ):
        async with sdk(f"{gateway.url}/small", mode="legacy") as client:
            assert [one.name for one in (await client.list_tools()).tools] == ["echo"]
            assert (await client.call_tool("echo", {"text": "x"})).content[0].text == "x"
            with pytest.raises(MCPError) as refused:
                await client.call_tool("kit__add", {"a": 1, "b": 1})
            assert refused.value.error.code == -32602
        async with sdk(f"{gateway.url}/search", mode="2026-07-28") as client:
            names = [one.name for one in (await client.list_tools()).tools]
            assert len(names) == 2
            search, call = names
            found = await client.call_tool(search, {"query": "add two numbers"})
            assert "kit.add" in found.content[0].text
            made = {"name": "kit.add", "arguments": {"a": 1, "b": 4}}
            assert (await client.call_tool(call, made)).structured_content == {"sum": 5}
        async with wire(f"{gateway.url}/none") as client:
            assert (await client.send({}, verb="GET")).status == 404


async def test_a_session_of_one_profile_is_unknown_in_another():
    profiles = {"small": {"include": ["echo"]}}
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}, settings={"profiles": profiles}) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize()
        request = client.request("tools/list")
        assert (await client.send(request, url=f"{gateway.url}/small")).status == 404


@pytest.mark.parametrize("era", ERAS)
async def test_unknown_tools_are_refused_with_suggestions(era: str):
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}) as gateway,
        sdk(gateway.url, mode=era) as client,
    ):
        with pytest.raises(MCPError) as refused:
            await client.call_tool("kit__ecko", {})
        assert refused.value.error.code == -32602
        assert "kit__echo" in refused.value.error.message


@pytest.mark.parametrize("era", ERAS)
async def test_a_failing_server_is_a_tool_error_that_says_whether_the_call_ran(era: str):
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": {"url": kit.url, "retry": "never"}}) as gateway,
        sdk(gateway.url, mode=era) as client,
    ):
        await kit.script(Rule(tool="record", do=Behaviour(drop="after_run"), times=1))
        result = await client.call_tool("kit__record", {})
        assert result.is_error
        assert result.meta is not None
        assert result.meta["toolkeep/delivery"] == "unknown"
        assert "may have run" in result.content[0].text
        wrong = await client.call_tool("kit__add", {"a": "x", "b": 1})
        assert wrong.is_error
        assert wrong.meta is not None
        assert wrong.meta["toolkeep/delivery"] == "not sent"


async def test_a_servers_own_json_rpc_error_passes_through():
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}) as gateway,
        ToolkeepClient({"url": gateway.url}) as client,
    ):
        error = {"code": -32602, "message": "bad flavour", "data": {"flavour": "umami"}}
        await kit.script(Rule(tool="record", do=Behaviour(error=error)))
        with pytest.raises(CallRejected) as refused:
            await client.call_tool("kit__record", {})
        assert (refused.value.code, refused.value.data) == (-32602, {"flavour": "umami"})


async def test_a_list_without_a_server_that_is_down_says_so():
    async with ScriptedServer.local() as kit:
        servers = {"kit": kit.url, "gone": "http://127.0.0.1:9/mcp"}
        async with front(servers) as gateway, wire(gateway.url) as client:
            await client.initialize()
            result = (await client.call("tools/list")).json["result"]
            assert result["_meta"]["toolkeep/unavailable"] == ["gone"]
            assert any(one["name"] == "kit__echo" for one in result["tools"])


async def test_results_of_2026_are_read_by_legacy_clients():
    """Only a modern client gets structured content that is no object, and the fields of its era."""
    listed = {**tool("odd"), "outputSchema": {"type": "array", "items": {"type": "integer"}}}
    result = {
        "content": [{"type": "text", "text": "[1]"}],
        "structuredContent": [1],
        "resultType": "complete",
    }
    async with (
        ScriptedServer.local(era="modern", tools=[listed]) as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        await kit.script(Rule(tool="odd", do=Behaviour(result=result)))
        await client.initialize()
        shown = (await client.call("tools/list")).json["result"]["tools"]
        assert "outputSchema" not in next(one for one in shown if one["name"] == "kit__odd")
        legacy = (await client.call("tools/call", name="kit__odd")).json["result"]
        assert legacy == {"content": [{"type": "text", "text": "[1]"}]}
        modern = (await client.modern("tools/call", name="kit__odd")).json["result"]
        assert modern["structuredContent"] == [1]
        assert modern["resultType"] == "complete"


@pytest.mark.parametrize("era", ERAS)
async def test_progress_and_logs_come_before_the_result(era: str):
    steps: list[tuple[float, float | None]] = []
    lines: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total))

    async def on_log(params: Any) -> None:
        lines.append(params.data)

    async with ScriptedServer.local(encoding="sse") as kit, front({"kit": kit.url}) as gateway:
        level: Any = {"log_level": "info"} if era != "legacy" else {}
        async with sdk(gateway.url, mode=era, logging_callback=on_log, **level) as client:
            await client.call_tool("kit__steps", {"count": 3}, progress_callback=on_progress)
            await client.call_tool("kit__logs", {"count": 2})
            async with asyncio.timeout(5):
                while len(steps) < 3 or len(lines) < 2:
                    await asyncio.sleep(0.005)
    assert sorted(steps) == [(1.0, 3.0), (2.0, 3.0), (3.0, 3.0)]
    assert lines == ["line 1", "line 2"]


async def test_log_lines_below_the_level_of_a_session_are_left_out():
    async with (
        ScriptedServer.local(era="legacy", encoding="sse") as kit,
        front({"kit": kit.url}, replicas=2) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize()
        assert (await client.call("logging/setLevel", level="loud")).error["code"] == -32602
        assert (await client.call("logging/setLevel", level="error")).json["result"] == {}
        for _ in range(2):  # both replicas
            answer = await client.call("tools/call", name="kit__logs", arguments={"count": 2})
            assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("era", ERAS)
async def test_cancelling_a_call_cancels_it_at_its_server(era: str):
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}, replicas=2) as gateway,
        sdk(gateway.url, mode=era) as client,
    ):
        call = asyncio.create_task(client.call_tool("kit__slow", {"seconds": 30}))
        await kit.requests(tool="slow", at_least=1)
        call.cancel()
        assert {one.tool for one in await kit.cancelled(at_least=1)} == {"slow"}
        await asyncio.wait((call,))
