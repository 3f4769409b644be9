"""What the scripted server answers when no rule says otherwise."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.wire import Wire, request, wire_to
from toolkeep.testing import ALL_LOSSES, PYTHON_SDK, ScriptedServer, SessionLoss


async def test_a_legacy_session_begins_works_and_ends(server: ScriptedServer, wire: Wire):
    assert (await wire.call("echo", text="hi")).json["result"]["content"][0]["text"] == "hi"
    assert (await wire.ask("DELETE")).status == 200
    assert (await wire.call("echo", text="hi")).status == PYTHON_SDK.status


async def test_a_request_without_a_session_is_refused(server: ScriptedServer):
    async with wire_to(server.port) as wire:
        answer = await wire.ask("POST", request("tools/list"))
    assert (answer.status, answer.json["error"]["code"]) == (400, -32600)


@pytest.mark.parametrize("loss", ALL_LOSSES.values(), ids=ALL_LOSSES)
async def test_a_forgotten_session_is_answered_as_recorded(loss: SessionLoss):
    async with ScriptedServer.local(session_loss=loss) as server, wire_to(server.port) as wire:
        await wire.initialize()
        await server.forget_sessions()
        answer = await wire.call("record")
        assert answer.status == loss.status
        assert answer.body.decode() == loss.text(wire.session or "", 7)
        assert answer.headers.get("content-type") == loss.content_type
        assert loss.source
        assert await server.ledger() == {}


async def test_without_sessions_nothing_is_asked_for():
    async with ScriptedServer.local(sessions=False) as server, wire_to(server.port) as wire:
        assert "mcp-session-id" not in (await wire.initialize()).headers
        assert (await wire.call("add", a=1, b=2)).json["result"]["structuredContent"] == {"sum": 3}


async def test_a_legacy_server_refuses_discovery_as_the_python_sdk_does():
    async with ScriptedServer.local(era="legacy") as server, wire_to(server.port) as wire:
        answer = await wire.modern("server/discover")
    assert (answer.status, answer.json["error"]["code"]) == (400, -32600)


async def test_a_modern_server_refuses_the_handshake():
    async with ScriptedServer.local(era="modern") as server, wire_to(server.port) as wire:
        answer = await wire.initialize()
    data = {"supported": ["2026-07-28"], "requested": "2025-11-25"}
    assert (answer.status, answer.json["error"]["code"]) == (400, -32022)
    assert answer.json["error"]["data"] == data


async def test_modern_requests_need_their_envelope_and_headers(server: ScriptedServer):
    async with wire_to(server.port) as wire:
        version = {"mcp_protocol_version": "2026-07-28"}
        bare = await wire.ask("POST", request("tools/list"), **version, mcp_method="tools/list")
        await wire.send_modern("tools/call", {"name": "echo", "arguments": {"text": "x"}})
        fine = await wire.receive()
        unknown = await wire.modern("no/such")
        verb = await wire.ask("GET", **version)
    assert (bare.status, bare.json["error"]["code"]) == (400, -32602)
    assert fine.json["result"]["resultType"] == "complete"
    assert (unknown.status, unknown.json["error"]["code"]) == (404, -32601)
    assert verb.status == 405


async def test_a_header_that_contradicts_the_body_is_a_mismatch(server: ScriptedServer):
    async with wire_to(server.port) as wire:
        await wire.send_modern("tools/call", {"name": "echo", "arguments": {}})
        await wire.receive()
        meta = (await server.requests())[0].body["params"]["_meta"]
        message = request("tools/call", {"name": "echo", "arguments": {}, "_meta": meta})
        headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call"}
        answer = await wire.ask("POST", message, **headers, mcp_name="add")
    assert (answer.status, answer.json["error"]["code"]) == (400, -32020)


async def test_tools_come_in_pages(server: ScriptedServer, wire: Wire):
    extra = [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(5)]
    await server.set_tools(extra, built_in=False, page_size=2)
    names: list[str] = []
    cursor: Any = None
    pages = 0
    while pages == 0 or cursor is not None:
        params = {"cursor": cursor} if cursor else {}
        result = (await wire.ask("POST", request("tools/list", params))).json["result"]
        names += [tool["name"] for tool in result["tools"]]
        cursor, pages = result.get("nextCursor"), pages + 1
    assert (names, pages) == (["t0", "t1", "t2", "t3", "t4"], 3)


async def test_a_wrong_key_is_challenged():
    async with ScriptedServer.local(api_key="right") as server, wire_to(server.port) as wire:
        refused = await wire.ask("POST", request("initialize"), authorization="Bearer wrong")
        allowed = await wire.ask("POST", request("initialize"), authorization="Bearer right")
    assert refused.status == 401
    assert refused.headers["www-authenticate"].startswith("bearer")
    assert allowed.status == 200


async def test_the_get_stream_can_be_switched_off_and_carries_notifications(
    server: ScriptedServer, wire: Wire
):
    await wire.send("GET")
    assert await server.notify("notifications/tools/list_changed") == 1
    head = await wire.reader.readuntil(b"\r\n\r\n")
    assert b"text/event-stream" in head
    assert b"list_changed" in await wire.reader.readuntil(b"\n\n")
    async with ScriptedServer.local(get_stream=False) as deaf, wire_to(deaf.port) as other:
        await other.initialize()
        assert (await other.ask("GET")).status == 405


async def test_a_restart_keeps_port_ledger_and_record(home: Callable[..., ScriptedServer]):
    async with home() as server:
        port = server.port
        async with wire_to(port) as wire:
            await wire.initialize()
            await wire.call("record", key="before")
            await server.set_tools([{"name": "added", "inputSchema": {"type": "object"}}])
            await server.restart()
            assert (await wire.call("record")).ended != "whole"
            session = wire.session
        async with wire_to(port) as wire:
            wire.session = session
            assert (await wire.call("record", key="lost")).status == 404
            await wire.initialize()
            await wire.call("added", key="after")
        assert server.port == port
        assert await server.ledger() == {"before": 1, "after": 1}
        records = await server.requests()
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        assert len({record.socket for record in records}) == await server.connections() == 2


async def test_records_tell_the_connection_the_session_and_the_body(
    server: ScriptedServer, wire: Wire
):
    await wire.call("echo", text="a")
    async with wire_to(server.port) as other:
        other.session = wire.session
        await other.call("echo", text="b")
    first, second = await server.requests("tools/call", "echo")
    assert first.socket != second.socket
    assert first.session_id == second.session_id == wire.session
    assert second.body["params"]["arguments"] == {"text": "b"}
    assert first.at <= second.at


async def test_an_idle_connection_ends_when_its_keep_alive_does():
    async with ScriptedServer.local(keep_alive=0.05) as server, wire_to(server.port) as wire:
        await wire.initialize()
        assert (await wire.receive()).ended == "closed"


async def test_chunked_requests_are_understood(server: ScriptedServer):
    async with wire_to(server.port) as wire:
        body = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}'
        head = b"POST /mcp HTTP/1.1\r\nhost: kit\r\ntransfer-encoding: chunked\r\n\r\n"
        chunks = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (10, body[:10], len(body) - 10, body[10:])
        wire.writer.write(head + chunks)
        assert (await wire.receive()).status == 200


def test_an_unknown_protocol_version_is_refused_at_once():
    with pytest.raises(ValueError):
        ScriptedServer.local(protocol_version="2020-01-01")
