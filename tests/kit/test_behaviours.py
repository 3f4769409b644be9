"""What rules can make the scripted server do, seen from the wire."""

import asyncio
import time
from typing import Any

import pytest

from tests.kit.wire import BOUND, Wire, request, wire_to
from toolkeep.testing import Behaviour, Cancelled, Rule, ScriptedServer
from toolkeep.testing.script import Drop


def on_call(**behaviour: Any) -> Rule:
    return Rule(method="tools/call", do=Behaviour(**behaviour))


async def test_a_rule_lets_some_pass_then_acts_so_many_times(server: ScriptedServer, wire: Wire):
    busy = Behaviour(status=503, headers={"retry-after": "1"})
    await server.script(Rule(method="tools/call", tool="record", skip=1, times=1, do=busy))
    answers = [await wire.call("record") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 503, 200]
    assert answers[1].headers["retry-after"] == "1"
    assert await server.executions("record") == 2


async def test_the_first_rule_with_uses_left_wins(server: ScriptedServer, wire: Wire):
    first = Rule(tool="record", times=1, do=Behaviour(status=500))
    await server.script(first, Rule(do=Behaviour(status=501)))
    assert [(await wire.call("record")).status for _ in range(2)] == [500, 501]
    await server.clear()
    assert (await wire.call("record")).status == 200


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    ("drop", "ran"), [("before_body", 0), ("after_body", 0), ("after_run", 1), ("mid_answer", 1)]
)
async def test_a_drop_happens_where_it_says(
    server: ScriptedServer, wire: Wire, drop: Drop, ran: int, reset: bool
):
    await server.script(on_call(drop=drop, reset=reset))
    answer = await wire.call("record")
    assert answer.ended != "whole"
    assert await server.executions("record") == ran
    recorded = (await server.requests())[-1]
    assert (recorded.body is None) == (drop == "before_body")
    if drop != "mid_answer":
        assert answer.ended == ("reset" if reset else "closed")


async def test_before_body_needs_no_body_when_the_headers_tell(server: ScriptedServer):
    await server.script(Rule(tool="echo", do=Behaviour(drop="before_body")))
    async with wire_to(server.port) as wire:
        head = "POST /mcp HTTP/1.1\r\nmcp-method: tools/call\r\nmcp-name: echo\r\n"
        wire.writer.write(f"{head}content-length: 1000\r\n\r\n".encode())
        assert (await wire.receive()).ended == "closed"


async def test_a_skipped_early_drop_counts_once(server: ScriptedServer):
    await server.script(Rule(tool="echo", skip=1, do=Behaviour(drop="before_body")))
    echo = {"name": "echo", "arguments": {"text": "x"}}
    async with wire_to(server.port) as wire:
        assert (await wire.modern("tools/call", echo)).status == 200
        assert (await wire.modern("tools/call", echo)).ended == "closed"


async def test_an_answer_can_be_cut_after_so_many_bytes(server: ScriptedServer, wire: Wire):
    await server.script(on_call(cut_after=5))
    answer = await wire.call("record")
    assert (answer.status, len(answer.body), answer.ended) == (200, 5, "closed")


async def test_an_error_can_answer_another_id(server: ScriptedServer, wire: Wire):
    error = {"code": -32000, "message": "no", "data": {"why": "because"}}
    for error_id, shown in (("request", 7), ("null", None), ("other", "some-other-id")):
        await server.clear()
        await server.script(on_call(error=error, error_id=error_id, status=400))
        answer = await wire.call("record")
        assert (answer.status, answer.json["id"], answer.json["error"]) == (400, shown, error)
    assert await server.ledger() == {}


async def test_a_tool_can_run_although_the_answer_is_an_error(server: ScriptedServer, wire: Wire):
    await server.script(on_call(status=502, run=True))
    answer = await wire.call("record")
    assert (answer.status, answer.body) == (502, b"")
    assert await server.executions("record") == 1


async def test_bodies_results_and_redirects_are_sent_as_given(server: ScriptedServer, wire: Wire):
    await server.script(
        Rule(times=1, do=Behaviour(body="<html>", content_type="text/html")),
        Rule(times=1, do=Behaviour(result={"resultType": "weird"})),
        Rule(times=1, do=Behaviour(redirect="/elsewhere", status=308)),
    )
    page, weird, moved = [await wire.call("record") for _ in range(3)]
    assert (page.headers["content-type"], page.body) == ("text/html", b"<html>")
    assert weird.json["result"] == {"resultType": "weird"}
    assert (moved.status, moved.headers["location"]) == (308, "/elsewhere")


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_large_answers_are_streamed_in_every_framing(
    server: ScriptedServer, wire: Wire, framing: Any
):
    await server.script(on_call(body_bytes=3_000_000, framing=framing))
    answer = await wire.call("record")
    assert len(answer.body) == 3_000_000
    assert answer.json["id"] == 7


async def test_sse_can_be_odd(server: ScriptedServer, wire: Wire):
    odd = Behaviour(encoding="sse", crlf=True, sse_prefix=": hello\r\n\r\n", retry_ms=20)
    await server.script(Rule(do=odd))
    answer = await wire.call("echo", text="x")
    assert answer.body.startswith(b": hello\r\n\r\nevent: message\r\nretry: 20\r\ndata: ")
    assert answer.events[-1]["id"] == 7
    assert (await wire.call("echo", text="y")).ended == "whole"


async def test_a_stream_may_linger_after_its_answer(server: ScriptedServer, wire: Wire):
    await server.script(on_call(encoding="sse", sse_linger=0.2))
    started = time.monotonic()
    assert (await wire.call("record")).events[-1]["id"] == 7
    assert time.monotonic() - started >= 0.2


@pytest.mark.parametrize("prime", [False, True])
async def test_a_broken_stream_can_be_resumed_even_before_the_answer(
    server: ScriptedServer, wire: Wire, prime: bool
):
    cut = Behaviour(encoding="sse", event_ids=True, prime=prime, cut_stream_after_events=1)
    await server.script(Rule(method="tools/call", do=cut))
    params = {
        "name": "steps",
        "arguments": {"count": 2, "gap": 0.05},
        "_meta": {"progressToken": 1},
    }
    broken = await wire.ask("POST", request("tools/call", params))
    assert [event["method"] for event in broken.events] == ["notifications/progress"]
    assert len(broken.ids) == 1 + prime
    rest = await wire.ask("GET", last_event_id=broken.ids[-1])
    assert [event.get("id") for event in rest.events] == [None, 7]
    again = await wire.ask("GET", last_event_id=rest.ids[0])
    assert [event.get("id") for event in again.events] == [7]


async def test_a_hanging_or_endless_answer_ends_with_the_client(server: ScriptedServer, wire: Wire):
    await server.script(Rule(tool="echo", do=Behaviour(hang=True)))
    await server.script(Rule(tool="add", do=Behaviour(endless=True, endless_gap=0.01)))
    for tool in ("echo", "add"):
        async with wire_to(server.port) as other:
            other.session = wire.session
            await other.send(
                "POST", request("tools/call", {"name": tool, "arguments": {"a": 1, "b": 1}})
            )
            if tool == "add":
                await other.reader.readuntil(b"still here\n\n")
            await server.requests("tools/call", tool, at_least=1)
    given_up = await server.cancelled(at_least=2)
    assert given_up == [Cancelled(7, "echo", "disconnect"), Cancelled(7, "add", "disconnect")]


@pytest.mark.parametrize("encoding", ["json", "sse"])
async def test_leaving_cancels_a_modern_call(encoding: Any):
    async with ScriptedServer.local(encoding=encoding) as server:
        async with wire_to(server.port) as wire:
            slow = {"name": "slow", "arguments": {"seconds": 60}}
            await wire.send_modern("tools/call", slow)
            await server.requests("tools/call", at_least=1)
        assert await server.cancelled(at_least=1) == [Cancelled(7, "slow", "disconnect")]


async def test_leaving_a_legacy_call_is_noted_and_the_call_goes_on():
    async with ScriptedServer.local(encoding="sse") as server, wire_to(server.port) as wire:
        await wire.initialize()
        await server.script(on_call(event_ids=True, prime=True))
        async with wire_to(server.port) as other:
            other.session = wire.session
            slow = {"name": "slow", "arguments": {"seconds": 0.1}}
            await other.send("POST", request("tools/call", slow))
            primed = await other.reader.readuntil(b"data: \n\n")
        assert await server.cancelled(at_least=1) == [Cancelled(7, "slow", "disconnect")]
        first = primed.decode().split("id: ")[-1].split("\n")[0]
        rest = await wire.ask("GET", last_event_id=first)
        assert rest.events[-1]["result"]["isError"] is False


async def test_discovery_can_be_scripted_although_the_server_is_legacy():
    async with ScriptedServer.local(era="legacy") as server, wire_to(server.port) as wire:
        await server.script(Rule(method="server/discover", do=Behaviour(status=503)))
        assert (await wire.modern("server/discover")).status == 503


async def test_an_error_travels_in_the_encoding_of_the_server():
    async with ScriptedServer.local(encoding="sse") as server, wire_to(server.port) as wire:
        await wire.initialize()
        await server.script(on_call(error={"code": -32000, "message": "no"}))
        assert (await wire.call("record")).events[-1]["error"]["code"] == -32000
        assert await server.ledger() == {}


@pytest.mark.parametrize("encoding", ["json", "sse"])
async def test_a_notification_cancels_a_legacy_call(encoding: Any):
    async with ScriptedServer.local(encoding=encoding) as server, wire_to(server.port) as wire:
        await wire.initialize()
        slow = {"name": "slow", "arguments": {"seconds": 60}}
        await wire.send("POST", request("tools/call", slow))
        async with wire_to(server.port) as other:
            other.session = wire.session
            await server.requests("tools/call", at_least=1)
            cancel = {
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"requestId": 7},
            }
            assert (await other.ask("POST", cancel)).status == 202
        answer = await wire.receive()
        message = answer.json if encoding == "json" else answer.events[-1]
        assert message["error"]["code"] == -32800
        assert await server.cancelled() == [Cancelled(7, "slow", "notification")]


async def test_a_delay_holds_the_answer_and_not_the_server(server: ScriptedServer, wire: Wire):
    await server.script(Rule(tool="record", do=Behaviour(delay=0.2)))
    started = time.monotonic()
    async with wire_to(server.port) as other:
        other.session = wire.session
        slow, quick = await asyncio.gather(wire.call("record"), other.call("echo", text="x"))
    assert slow.status == quick.status == 200
    assert 0.2 <= time.monotonic() - started < BOUND


async def test_a_lost_session_uses_up_only_rules_that_run_nothing(
    server: ScriptedServer, wire: Wire
):
    await server.script(on_call(drop="after_run"))
    await server.forget_sessions()
    assert (await wire.call("record")).status == 404
    await wire.initialize()
    assert (await wire.call("record")).ended == "closed"


async def test_waiting_for_what_does_not_come_is_bounded(server: ScriptedServer):
    with pytest.raises(TimeoutError):
        await server.requests("tools/call", at_least=1, within=0.05)
    assert await server.notify("notifications/tools/list_changed", listeners=0) == 0
