"""The less trodden ways of the scripted server."""

import base64
from typing import Any

import pytest

from tests.kit.wire import ENVELOPE, Wire, request, wire_to
from toolkeep.testing import Behaviour, Rule, ScriptedServer


@pytest.mark.parametrize(
    ("behaviour", "ended"),
    [
        ({"drop": "mid_answer"}, "closed"),
        ({"cut_after": 12}, "closed"),
        ({"cut_stream_after_events": 0, "reset": True}, "reset"),
        ({"cut_stream_after_events": 0}, "whole"),
    ],
)
async def test_a_stream_can_be_cut(
    server: ScriptedServer, wire: Wire, behaviour: dict[str, Any], ended: str
):
    await server.script(Rule(do=Behaviour(encoding="sse", **behaviour)))
    answer = await wire.call("record")
    assert answer.ended == ended
    assert (
        b'"result":{"content":[{"type":"text","text":"recorded"}],"isError":false}'
        not in answer.body
    )
    assert await server.executions("record") == 1


@pytest.mark.parametrize("framing", ["chunked", "close"])
async def test_a_small_answer_comes_in_every_framing(
    server: ScriptedServer, wire: Wire, framing: Any
):
    await server.script(Rule(do=Behaviour(framing=framing)))
    assert (await wire.call("add", a=1, b=1)).json["result"]["structuredContent"] == {"sum": 2}


async def test_a_slow_tool_can_have_another_result_in_a_stream(server: ScriptedServer, wire: Wire):
    await server.script(Rule(do=Behaviour(encoding="sse", result={"odd": True})))
    answer = await wire.call("slow", seconds=0.01)
    assert answer.events[-1]["result"] == {"odd": True}


async def test_log_lines_travel_before_the_answer(server: ScriptedServer, wire: Wire):
    await server.script(Rule(do=Behaviour(encoding="sse")))
    events = (await wire.call("logs", count=2)).events
    assert [event.get("method") for event in events] == ["notifications/message"] * 2 + [None]


async def test_a_modern_call_logs_only_when_asked_to():
    async with ScriptedServer.local(encoding="sse") as server, wire_to(server.port) as wire:
        call = {"name": "logs", "arguments": {"count": 2}}
        silent = await wire.modern("tools/call", call)
        meta = {"_meta": {"io.modelcontextprotocol/logLevel": "info"}}
        spoken = await wire.modern("tools/call", {**call, **meta})
    assert (len(silent.events), len(spoken.events)) == (1, 3)


async def test_the_headers_tool_shows_what_was_sent(server: ScriptedServer, wire: Wire):
    call = request("tools/call", {"name": "headers", "arguments": {}})
    answer = await wire.ask("POST", call, x_user="ada")
    assert answer.json["result"]["structuredContent"]["x-user"] == "ada"


async def test_a_name_may_come_in_base64(server: ScriptedServer):
    tool = "größe"
    await server.set_tools([{"name": tool, "inputSchema": {"type": "object"}}])
    encoded = f"=?base64?{base64.b64encode(tool.encode()).decode()}?="
    async with wire_to(server.port) as wire:
        params = {"name": tool, "arguments": {}, "_meta": ENVELOPE}
        headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call"}
        answer = await wire.ask("POST", request("tools/call", params), **headers, mcp_name=encoded)
        broken = await wire.ask(
            "POST", request("tools/call", params), **headers, mcp_name="=?base64?!?="
        )
    assert answer.status == 200
    assert broken.json["error"]["code"] == -32020


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("ping", {}, None),
        ("logging/setLevel", {"level": "info"}, None),
        ("resources/subscribe", {"uri": "kit://notes"}, None),
        ("completion/complete", {"argument": {"name": "name", "value": "A"}}, None),
        ("resources/read", {"uri": "kit://none"}, -32602),
        ("prompts/get", {"name": "none"}, -32602),
        ("tools/call", {"name": "none"}, -32602),
        ("tools/call", {"name": "add", "arguments": {}}, -32602),
        ("tools/call", {"name": "slow", "arguments": {"seconds": "long"}}, -32602),
        ("tools/list", {"cursor": "x"}, -32602),
        ("no/such", {}, -32601),
    ],
)
async def test_legacy_methods_answer_with_a_result_or_a_code(
    server: ScriptedServer, wire: Wire, method: str, params: Any, code: int | None
):
    answer = await wire.ask("POST", request(method, params))
    assert answer.status == 200
    assert answer.json.get("error", {}).get("code") == code


async def test_notifications_can_be_held_refused_or_dropped(server: ScriptedServer, wire: Wire):
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await wire.ask("POST", note)).status == 202
    await server.script(
        Rule(method=note["method"], times=1, do=Behaviour(delay=0.01)),
        Rule(method=note["method"], times=1, do=Behaviour(status=500)),
        Rule(method=note["method"], do=Behaviour(drop="after_run")),
    )
    assert [(await wire.ask("POST", note)).status for _ in range(2)] == [202, 500]
    assert (await wire.ask("POST", note)).ended == "closed"


async def test_what_is_not_json_rpc_is_refused(server: ScriptedServer, wire: Wire):
    assert (await wire.ask("POST", [request("ping")])).json["error"]["code"] == -32600
    wire.writer.write(b"POST /mcp HTTP/1.1\r\ncontent-length: 3\r\n\r\n{x}")
    assert (await wire.receive()).json["error"]["code"] == -32700
    wire.writer.write(b"GET /.well-known/oauth-protected-resource HTTP/1.1\r\n\r\n")
    assert (await wire.receive()).status == 404
    wire.writer.write(b"nonsense\r\n\r\n")
    assert (await wire.receive()).ended == "closed"


async def test_open_connections_are_counted(server: ScriptedServer, wire: Wire):
    assert (await server.connections(), await server.open_connections()) == (1, 1)


async def test_a_modern_listener_hears_only_what_it_asked_for(server: ScriptedServer):
    async with wire_to(server.port) as wire:
        asked = {"notifications": {"resourceSubscriptions": ["kit://notes"]}}
        await wire.send_modern("subscriptions/listen", asked)
        assert await server.notify("notifications/tools/list_changed") == 0
        assert await server.notify("notifications/resources/updated", {"uri": "kit://notes"}) == 1
        assert b"acknowledged" in await wire.reader.readuntil(b"\n\n")
        assert b'"io.modelcontextprotocol/subscriptionId":7' in await wire.reader.readuntil(b"\n\n")
