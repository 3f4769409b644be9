"""Parameters that a tool wants as headers travel as headers, once the tool is listed (modern)."""

from typing import Any

import pytest

from tests.engine.helpers_wire import Era, both_eras, client_of, methods, when
from toolkeep import CallRejected
from toolkeep.testing import ScriptedServer


def named(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


REGION = {"type": "string", "x-mcp-header": "Region"}
QUERY = named("query") | {
    "inputSchema": {"type": "object", "properties": {"region": REGION, "text": {"type": "string"}}}
}
MISMATCH = {"code": -32020, "message": "header mismatch"}
ARGUMENTS = {"region": "eu-west", "text": "hi"}


@both_eras
async def test_marked_parameters_travel_as_headers_once_listed(era: Era) -> None:
    async with (
        ScriptedServer.local(era=era, tools=[QUERY]) as server,
        client_of(server, mode=era) as client,
    ):
        await client.call_tool("query", ARGUMENTS)
        await client.list_tools()
        await client.call_tool("query", ARGUMENTS)
        await client.call_tool("query", {"text": "hi"})
        calls = await server.requests("tools/call")
    sent = [call.headers.get("mcp-param-region") for call in calls]
    assert sent == [None, "eu-west" if era == "modern" else None, None]


@pytest.mark.parametrize("serialize", [False, True])
async def test_a_header_mismatch_lists_again_and_sends_once_more(serialize: bool) -> None:
    async with (
        ScriptedServer.local(era="modern", tools=[QUERY]) as server,
        client_of(server, serialize=serialize, timeouts={"call": 3}) as client,
    ):
        await client.connect()
        await server.script(when(tool="query", times=1, status=400, error=MISMATCH))
        assert (await client.call_tool("query", ARGUMENTS)).attempts == 2
        assert (await methods(server))[1:] == ["tools/call", "tools/list", "tools/call"]
        calls = await server.requests("tools/call")
        assert [call.headers.get("mcp-param-region") for call in calls] == [None, "eu-west"]
        assert await server.executions("query") == 1


async def test_a_second_header_mismatch_is_the_callers_to_see() -> None:
    async with (
        ScriptedServer.local(era="modern", tools=[QUERY]) as server,
        client_of(server) as client,
    ):
        await server.script(when(tool="query", status=400, error=MISMATCH))
        with pytest.raises(CallRejected) as caught:
            await client.call_tool("query", ARGUMENTS)
        assert (caught.value.code, caught.value.attempts) == (-32020, 2)
        assert (await methods(server)).count("tools/call") == 2


async def test_tools_with_invalid_header_marks_are_left_out_of_a_modern_list() -> None:
    bad = {"type": "object", "properties": {"a": {"type": "object", "x-mcp-header": "A"}}}
    async with (
        ScriptedServer.local(era="modern", tools=[named("bad", inputSchema=bad)]) as server,
        client_of(server) as client,
    ):
        assert "bad" not in [tool.name for tool in await client.list_tools()]
