"""Streams of a gateway: changes on the streams of both eras, resumption at any replica, slow
readers, and clients that leave."""

import asyncio
import json
import socket
from typing import Any

import pytest

from tests.gateway.front import Wire, front, next_message, sdk, until, wire
from tests.runtime._catalogue import tool
from toolkeep.gateway import Caller, hash_key
from toolkeep.gateway.streams import EventLog, opening
from toolkeep.testing import ScriptedServer

TOOLS = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"
ALICE, BOB = "tk_alice", "tk_bob"
TWO = {"keys": {"alice": hash_key(ALICE), "bob": hash_key(BOB)}}
LISTEN = {"toolsListChanged": True, "resourceSubscriptions": ["kit://notes"]}


async def event_of(response: Any) -> tuple[str, Any]:
    """The next event with data of a stream, and its id."""
    event_id = ""
    async with asyncio.timeout(5):
        async for line in response.content:
            if line.startswith(b"id: "):
                event_id = line[4:].decode().strip()
            elif line.startswith(b"data:"):
                text = line[5:].strip()
                return event_id, json.loads(text) if text else None
    raise AssertionError("the stream has ended")


async def add_tool(kit: ScriptedServer, name: str) -> None:
    await kit.set_tools([tool(name)])
    await kit.notify(TOOLS)


@pytest.mark.parametrize("upstream", ["legacy", "modern"])
async def test_a_changed_list_is_told_on_the_streams_of_both_eras(upstream: Any):
    async with (
        ScriptedServer.local(era=upstream) as kit,
        front({"kit": kit.url}, replicas=2) as gateway,
        wire(gateway.url) as client,
        wire(gateway.url) as modern,
    ):
        await client.initialize()
        body, headers = modern.modern_request(
            "subscriptions/listen", {}, {}, {"notifications": LISTEN}
        )
        async with (
            await client.open(verb="GET") as legacy,
            await modern.open(body, **headers) as listening,
        ):
            assert (await event_of(legacy))[1] is None  # the priming event
            acknowledged = await next_message(listening)
            assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
            assert acknowledged["params"]["notifications"] == LISTEN
            await add_tool(kit, "grown")
            assert (await next_message(legacy))["method"] == TOOLS
            told = await next_message(listening)
            assert told["method"] == TOOLS
            about = {"io.modelcontextprotocol/subscriptionId": body["id"]}
            assert told["params"]["_meta"] == about
        listed = (await client.call("tools/list")).json["result"]["tools"]
        assert "kit__grown" in {one["name"] for one in listed}


async def test_a_subscription_made_at_one_replica_is_told_on_the_stream_at_another():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}, replicas=2) as gateway,
        wire(gateway.hosts[0]) as here,
        wire(gateway.hosts[1]) as there,
    ):
        await here.initialize()
        there.headers["mcp-session-id"] = here.headers["mcp-session-id"]
        async with await here.open(verb="GET") as stream:
            await event_of(stream)
            answer = await there.call("resources/subscribe", uri="kit://notes")
            assert answer.json["result"] == {}
            await kit.requests("resources/subscribe", at_least=1)
            missing = await there.call("resources/subscribe", uri="kit:missing")
            assert missing.error["code"] == -32602
            changes = gateway.gateways[0].changes
            await until(lambda: any(one.uris for one in changes.listeners))
            await kit.notify(UPDATED, {"uri": "kit://notes"})
            assert (await next_message(stream))["params"] == {"uri": "kit://notes"}
            await there.call("resources/unsubscribe", uri="kit://notes")
            await until(lambda: not any(one.uris for one in changes.listeners))


async def test_a_modern_subscription_is_told_of_its_resources():
    async with (
        ScriptedServer.local(era="modern") as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        wanted = {"resourceSubscriptions": ["kit://notes", "kit:missing"]}
        body, headers = client.modern_request(
            "subscriptions/listen", {}, {}, {"notifications": wanted}
        )
        async with await client.open(body, **headers) as stream:
            found = (await next_message(stream))["params"]["notifications"]
            assert found == {"resourceSubscriptions": ["kit://notes"]}
            await kit.notify(UPDATED, {"uri": "kit://notes"})
            assert (await next_message(stream))["params"]["uri"] == "kit://notes"
        await until(lambda: not gateway.gateway.changes.listeners)


async def test_principals_are_told_of_changes_and_listed_anew():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}, settings=TWO) as gateway,
        wire(gateway.url, authorization=f"Bearer {ALICE}") as alice,
    ):
        await alice.initialize()
        await alice.call("tools/list")
        async with await alice.open(verb="GET") as stream:
            await event_of(stream)
            await add_tool(kit, "grown")
            assert (await next_message(stream))["method"] == TOOLS
        listed = (await alice.call("tools/list")).json["result"]["tools"]
        assert "kit__grown" in {one["name"] for one in listed}


async def test_a_profile_is_not_told_of_servers_that_it_does_not_have():
    profiles = {"one": {"servers": ["kit"]}}
    async with (
        ScriptedServer.local(era="legacy") as kit,
        ScriptedServer.local(era="legacy") as other,
        front({"kit": kit.url, "other": other.url}, settings={"profiles": profiles}) as gateway,
        wire(f"{gateway.url}/one") as client,
    ):
        await client.initialize()
        async with await client.open(verb="GET") as stream:
            await event_of(stream)
            await add_tool(other, "hidden")
            await until(
                lambda: "other.hidden" in {one.name for one in gateway.runtime.catalogue.tools}
            )
            await kit.set_tools([tool("shown")])
            await kit.notify(TOOLS)
            event_id, told = await event_of(stream)
            assert (event_id, told["method"]) == ("listen.1", TOOLS)


async def test_a_newer_notification_stream_takes_the_place_of_the_older():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize()
        async with await client.open(verb="GET") as first:
            await event_of(first)
            async with await client.open(verb="GET", last_event_id="listen.3") as second:
                assert await next_message(first) is None
                missed = {(await next_message(second))["method"] for _ in range(3)}
                assert TOOLS in missed  # the client was away
                await add_tool(kit, "grown")
                assert (await next_message(second))["method"] == TOOLS


# -- resumption ---------------------------------------------------------------------------------


def steps(client: Wire, count: int, gap: float) -> Any:
    request = client.request(
        "tools/call", name="kit__steps", arguments={"count": count, "gap": gap}
    )
    request["params"]["_meta"] = {"progressToken": "p"}
    return request


async def test_a_client_that_lost_its_stream_reads_on_at_another_replica():
    async with (
        ScriptedServer.local(era="legacy", encoding="sse") as kit,
        front({"kit": kit.url}, replicas=2) as gateway,
        wire(gateway.hosts[0]) as here,
        wire(gateway.hosts[1]) as there,
    ):
        await here.initialize()
        there.headers["mcp-session-id"] = here.headers["mcp-session-id"]
        async with await here.open(steps(here, 5, 0.1)) as response:
            primer, nothing = await event_of(response)
            assert nothing is None
            assert primer
            seen, first = await event_of(response)
            assert first["params"]["progress"] == 1
            response.close()
        async with await there.open(verb="GET", last_event_id=seen) as rest:
            events = [await event_of(rest) for _ in range(5)]
            assert await next_message(rest) is None
        assert [one["params"]["progress"] for _, one in events[:-1]] == [2, 3, 4, 5]
        assert events[-1][1]["result"]["content"][0]["text"] == "5 steps"
        assert await kit.executions("steps") == 1


async def test_the_events_of_one_session_are_not_for_another():
    async with (
        ScriptedServer.local(era="legacy", encoding="sse") as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
        wire(gateway.url) as thief,
    ):
        await client.initialize()
        await thief.initialize()
        async with await client.open(steps(client, 1, 0)) as response:
            primer, _ = await event_of(response)
            assert (await event_of(response))[1]["params"]["progress"] == 1
        for wrong in (primer, "x", "a.b.c", f"{'x' * 100}.1", "é.1", ".5"):
            answer = await thief.send(verb="GET", last_event_id=wrong.encode().decode("latin-1"))
            assert answer.status == 400
            assert answer.error["code"] == -32600


async def test_a_stream_whose_replica_has_ended_says_that_the_call_may_have_run():
    async with (
        ScriptedServer.local() as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize()
        there = gateway.gateway
        session = await there.sessions.open(client.headers["mcp-session-id"], Caller(None), "")
        log = EventLog.new(there.endpoint.store, session.id, "ended")
        seen = await log.append(opening(7))
        await log.append(b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}')
        answer = await client.send(verb="GET", last_event_id=str(seen))
        progress, last = answer.events
        assert progress["method"] == "notifications/progress"
        assert (last["id"], last["error"]["code"]) == (7, -32014)
        assert "may have run" in last["error"]["message"]


async def test_the_sdks_client_resumes_by_itself():
    """Its transport comes back with the last event id when a stream breaks."""
    got: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        got.append(progress)

    async with (
        ScriptedServer.local(era="legacy", encoding="sse") as kit,
        front({"kit": kit.url}) as gateway,
        sdk(gateway.url, mode="legacy") as client,
    ):
        call = asyncio.create_task(
            client.call_tool("kit__steps", {"count": 6, "gap": 0.1}, progress_callback=on_progress)
        )
        await until(lambda: len(got) >= 2)
        gateway.break_connections()
        result = await call
        assert result.content[0].text == "6 steps"
        assert await kit.executions("steps") == 1


# -- clients that are slow, or leave --------------------------------------------------------------


async def test_a_slow_reader_is_cut_and_its_call_ends(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "toolkeep.gateway")
    limits = {"stream_bytes": 20_000}
    async with (
        ScriptedServer.local(era="legacy", encoding="sse") as kit,
        front({"kit": kit.url}, settings={"limits": limits}) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize()
        host, _, port = gateway.url.removeprefix("http://").partition("/")[0].partition(":")
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(reader, (host, int(port)))
        body = json.dumps(steps(client, 4_000, 0)).encode()
        head = (
            f"POST /mcp HTTP/1.1\r\nhost: {host}\r\naccept: */*\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"mcp-session-id: {client.headers['mcp-session-id']}\r\n\r\n"
        )
        await loop.sock_sendall(reader, head.encode() + body)
        await kit.requests(tool="steps", at_least=1)
        await until(lambda: gateway.gateway.in_flight == 0, 20)
        await until(lambda: gateway.gateway.endpoint.stream_count == 0, 20)
        assert "its reader is too slow" in caplog.text
        assert await kit.executions("steps") == 1
        assert (await client.call("ping")).status == 200
        reader.close()


async def test_a_modern_client_that_leaves_cancels_its_call_and_a_legacy_one_does_not():
    slow = {"name": "kit__slow", "arguments": {"seconds": 30}}
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as modern,
        wire(gateway.url) as legacy,
    ):
        body, headers = modern.modern_request("tools/call", {}, {}, slow)
        leaving = asyncio.create_task(modern.open(body, **headers))
        await kit.requests(tool="slow", at_least=1)
        leaving.cancel()
        await kit.cancelled(at_least=1)
        await until(lambda: gateway.gateway.in_flight == 0)
        await legacy.initialize()
        request = legacy.request("tools/call", **slow)
        staying = asyncio.create_task(legacy.open(request))
        await kit.requests(tool="slow", at_least=2)
        staying.cancel()
        await asyncio.wait((staying,))
        assert gateway.gateway.in_flight == 1
        await kit.skip_delays()
        await until(lambda: gateway.gateway.in_flight == 0)
        assert len({one.request_id for one in await kit.cancelled()}) == 1


async def test_closing_the_gateway_ends_what_still_runs():
    slow = {"name": "kit__slow", "arguments": {"seconds": 30}}
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        await client.initialize()
        legacy = asyncio.create_task(client.call("tools/call", **slow))
        modern = asyncio.create_task(client.modern("tools/call", **slow))
        await kit.requests(tool="slow", at_least=2)
        assert not await gateway.gateway.drain(0.05)
        await gateway.gateway.stop()
        for call in (legacy, modern):  # no answer: uvicorn says so, clients know no outcome
            assert (await call).text == "Internal Server Error"
        assert (await client.call("ping")).status == 503


async def test_long_answers_are_kept_alive(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolkeep.gateway.http.KEEP_ALIVE", 0.02)
    monkeypatch.setattr("toolkeep.gateway.streams.KEEP_ALIVE", 0.02)
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}) as gateway,
        wire(gateway.url) as client,
    ):
        answer = await client.modern("tools/call", name="kit__slow", arguments={"seconds": 0.2})
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.text.count(": \n\n") >= 3
        assert answer.events[-1]["result"]["content"][0]["text"] == "done"
