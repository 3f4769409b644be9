"""What is rare: odd answers to the handshake, endless lists, owners that somebody else cancels."""

import asyncio
import json
from typing import Any

import pytest

from tests.engine.helpers_wire import (
    Asked,
    Encoding,
    Era,
    RawServer,
    both_encodings,
    both_eras,
    client_of,
    handshake,
    http,
    methods,
    result_for,
    when,
)
from toolkeep import CallRejected, Client, InvalidArguments, RemoteProtocolError, ServerUnavailable
from toolkeep.events import Progress
from toolkeep.testing import ScriptedServer


@pytest.mark.requirement("S9")
async def test_a_block_that_cannot_be_entered_leaves_nothing_open():
    async with ScriptedServer.local(api_key="right-key") as server:
        client = Client({"url": server.url, "api_key": "wrong-key"})
        with pytest.raises(Exception, match="authorization"):
            async with client:
                pytest.fail("entered without credentials")
        async with asyncio.timeout(5):
            while await server.open_connections():
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
async def test_a_request_without_time_is_not_sent(timeout: float):
    async with ScriptedServer.local() as server, client_of(server) as client:
        with pytest.raises(InvalidArguments):
            await client.request("tools/list", timeout=timeout)
        assert await server.requests() == []


@both_eras
@pytest.mark.requirement("S9")
async def test_a_connection_whose_owner_was_cancelled_is_replaced(era: Era):
    """Some programs cancel every task they can find; ours among them."""
    async with ScriptedServer.local(era=era) as server, client_of(server) as client:
        before = asyncio.all_tasks()
        await client.connect()
        for task in asyncio.all_tasks() - before:
            if "Connection._own" in repr(task):
                task.cancel()
                await asyncio.wait((task,))
        assert (await client.call_tool("echo", {"text": "x"})).text == "x"
        assert client.is_initialized


async def test_a_handshake_that_takes_too_long_is_told_as_such_within_the_calls_own_time():
    spec: dict[str, Any] = {"timeouts": {"connect": 0.2, "call": 5.0}, "max_retries": 0}
    async with (
        ScriptedServer.local(era="legacy", initialize_delay=5.0) as server,
        client_of(server, mode="legacy", **spec) as client,
    ):
        with pytest.raises(ServerUnavailable) as caught:
            await client.call_tool("echo", {"text": "x"})
        assert caught.value.since is not None
        assert not client.is_initialized


async def test_a_log_level_that_breaks_the_connection_breaks_the_handshake():
    async with (
        ScriptedServer.local(era="legacy") as server,
        client_of(server, mode="legacy", max_retries=1) as client,
    ):
        await client.set_log_level("debug")
        await server.script(when("logging/setLevel", drop="after_body", times=1))
        assert (await client.call_tool("echo", {"text": "x"})).text == "x"
        assert (await methods(server)).count("logging/setLevel") == 2


async def test_a_header_mismatch_on_a_request_that_is_no_tool_call_is_told():
    error = {"code": -32020, "message": "mismatch"}
    async with ScriptedServer.local(era="modern") as server, client_of(server) as client:
        await server.script(when("prompts/list", status=400, error=error))
        with pytest.raises(CallRejected) as caught:
            await client.list_prompts()
        assert caught.value.code == -32020


async def test_when_listing_again_fails_the_mismatch_is_told():
    error = {"code": -32020, "message": "mismatch"}
    async with ScriptedServer.local(era="modern") as server, client_of(server) as client:
        await server.script(
            when("tools/call", status=400, error=error),
            when("tools/list", error={"code": -32603, "message": "no list today"}),
        )
        with pytest.raises(CallRejected) as caught:
            await client.call_tool("echo", {"text": "x"})
        assert caught.value.code == -32020


@pytest.mark.requirement("S12")
async def test_a_server_that_contradicts_itself_about_its_era_is_told():
    error = {
        "code": -32022,
        "message": "unsupported",
        "data": {"supported": ["2026-07-28"], "requested": "2025-11-25"},
    }
    async with ScriptedServer.local(era="legacy") as server, client_of(server) as client:
        await server.script(when("initialize", status=400, error=error))
        with pytest.raises(RemoteProtocolError):
            await client.connect()


@pytest.mark.requirement("S12")
async def test_a_discovery_without_a_version_of_ours_is_told():
    result = {
        "resultType": "complete",
        "supportedVersions": ["2099-01-01"],
        "capabilities": {},
        "ttlMs": 0,
        "cacheScope": "public",
    }
    async with (
        ScriptedServer.local(era="modern") as server,
        client_of(server, mode="modern") as client,
    ):
        await server.script(when("server/discover", result=result))
        with pytest.raises(RemoteProtocolError):
            await client.connect()


@pytest.mark.requirement("S8")
@pytest.mark.parametrize("session_id", ["two words", "naïve"])
async def test_a_session_id_that_is_none_is_refused(session_id: str):
    def answer(asked: Asked) -> bytes:
        if asked.message.get("method") != "initialize":
            return handshake(asked)
        plain = handshake(asked).decode()
        head, _, body = plain.partition("\r\n\r\n")
        return f"{head}\r\nmcp-session-id: {session_id}\r\n\r\n{body}".encode("latin-1")

    async with RawServer(answer, only=True) as server, client_of(server) as client:
        with pytest.raises(RemoteProtocolError):
            await client.connect()
        assert client.session_id is None


async def test_an_answer_to_the_handshake_that_is_neither_result_nor_error_is_told():
    def answer(asked: Asked) -> bytes:
        if asked.message.get("method") != "initialize":
            return handshake(asked)
        return http(json.dumps({"jsonrpc": "2.0", "id": asked.id}).encode())

    async with RawServer(answer, only=True) as server, client_of(server) as client:
        with pytest.raises(RemoteProtocolError):
            await client.connect()


async def test_a_list_without_end_is_the_servers_fault():
    tools = [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(1001)]
    async with ScriptedServer.local(record=False) as server, client_of(server) as client:
        await server.set_tools(tools, built_in=False, page_size=1)
        with pytest.raises(RemoteProtocolError):
            await client.list_tools()


@both_encodings
@pytest.mark.requirement("S3")
async def test_a_stream_that_ends_with_its_answer_needs_no_draining(encoding: Encoding):
    def answer(asked: Asked) -> bytes:
        if encoding == "json":
            return http(result_for(asked))
        return http(b"data: " + result_for(asked) + b"\n\n", kind="text/event-stream")

    async with RawServer(answer) as server, client_of(server, mode="legacy") as client:
        for _ in range(5):
            await client.call_tool("echo")
        assert server.accepted == 1


async def test_a_stream_that_breaks_after_its_answer_is_a_good_one():
    def answer(asked: Asked) -> bytes:
        event = b"data: " + result_for(asked) + b"\n\n"
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
        return head.encode() + f"content-length: {len(event) + 100}\r\n\r\n".encode() + event

    async with RawServer(answer) as server, client_of(server, mode="legacy") as client:
        assert (await client.call_tool("echo")).text == "hello"
        assert (await client.call_tool("echo")).text == "hello"


@pytest.mark.requirement("L2")
async def test_progress_that_is_no_number_is_left_out():
    odd: list[Any] = ["half", None, [1], 2]

    def answer(asked: Asked) -> bytes:
        token = asked.message["params"]["_meta"]["progressToken"]
        body = b""
        for value in odd:
            params = {"progressToken": str(token), "progress": value, "total": "many", "message": 3}
            note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
            body += b"data: " + json.dumps(note).encode() + b"\n\n"
        return http(body + b"data: " + result_for(asked) + b"\n\n", kind="text/event-stream")

    async with (
        RawServer(answer) as server,
        client_of(server, mode="legacy") as client,
        client.stream("echo") as call,
    ):
        seen = [event async for event in call]
    told = [event for event in seen if isinstance(event, Progress)]
    assert [(event.progress, event.total, event.message) for event in told] == [(2, None, None)]


async def test_concurrent_version_mismatches_negotiate_once():
    data = {"supported": ["2026-07-28"], "requested": "2026-07-28"}
    error = {"code": -32022, "message": "unsupported", "data": data}
    async with ScriptedServer.local(era="modern") as server, client_of(server) as client:
        await client.connect()
        await server.script(when("tools/call", status=400, error=error, times=5, delay=0.1))
        calls = [client.call_tool("echo", {"text": str(n)}) for n in range(5)]
        results = await asyncio.gather(*calls)
        assert [result.text for result in results] == ["0", "1", "2", "3", "4"]
        assert (await methods(server)).count("server/discover") == 2
