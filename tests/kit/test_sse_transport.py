"""The scripted server over HTTP+SSE (2024-11-05), seen from the SDK's client and from the wire."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client
from mcp.client.sse import sse_client

from tests.kit.test_sdk_client import ERAS
from tests.kit.wire import BOUND, Answer, Wire, request, wire_to
from toolkeep.testing import Behaviour, Cancelled, Rule, ScriptedServer


class Session:
    """A stream, and a connection for the POSTs."""

    def __init__(self, stream: Wire, posts: Wire) -> None:
        self.stream, self.posts = stream, posts
        self.address = ""

    async def event(self) -> tuple[str, str]:
        """The next event's name and data."""
        async with asyncio.timeout(BOUND):
            size = int(await self.stream.reader.readline(), 16)
            text = (await self.stream.reader.readexactly(size)).decode()
            await self.stream.reader.readexactly(2)
        name, data = text.replace("\r\n", "\n").rstrip("\n").rsplit("\n", 1)
        return name.removeprefix("event: "), data.removeprefix("data: ")

    async def open(self) -> None:
        await self.stream.send("GET", path="/sse")
        await self.stream.reader.readuntil(b"\r\n\r\n")
        name, self.address = await self.event()
        assert name == "endpoint"

    async def post(self, message: Any) -> Answer:
        await self.posts.send("POST", message, path=self.address)
        return await self.posts.receive()

    async def call(self, tool: str, about: Any = 7, **arguments: Any) -> Answer:
        return await self.post(request("tools/call", {"name": tool, "arguments": arguments}, about))

    async def message(self) -> Any:
        name, data = await self.event()
        assert name == "message"
        return json.loads(data)

    async def rest(self) -> bytes:
        """What is left of a stream that ends."""
        async with asyncio.timeout(BOUND):
            return await self.stream.reader.read()


@asynccontextmanager
async def session_with(server: ScriptedServer) -> AsyncIterator[Session]:
    async with wire_to(server.port) as stream, wire_to(server.port) as posts:
        session = Session(stream, posts)
        await session.open()
        yield session


@asynccontextmanager
async def talking(**options: Any) -> AsyncIterator[tuple[ScriptedServer, Session]]:
    async with (
        ScriptedServer.local(transport="sse", **options) as server,
        session_with(server) as session,
    ):
        yield server, session


@pytest.mark.parametrize(("era", "mode"), ERAS)
async def test_the_sdk_client_can_use_it(home: Callable[..., ScriptedServer], era: Any, mode: Any):
    heard: list[float] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with home(transport="sse", era=era) as server:
        assert server.spec == {"type": "sse", "url": server.url}
        async with Client(sse_client(server.url), mode=mode) as client:
            added = await client.call_tool("add", {"a": 1, "b": 2})
            await client.call_tool("steps", {"count": 3}, progress_callback=listen)
        assert added.structured_content == {"sum": 3}
        assert sorted(heard) == [1, 2, 3]
        assert await server.ledger() == {"add": 1, "steps": 1}


async def test_answers_come_on_the_stream_and_posts_are_only_accepted():
    async with talking() as (server, session):
        accepted = await session.call("echo", text="hi")
        assert (accepted.status, accepted.body) == (202, b"Accepted")
        assert (await session.message())["result"]["content"][0]["text"] == "hi"
        stream, post = await server.requests()
        assert (stream.http_method, post.http_method) == ("GET", "POST")
        assert session.address == f"/messages?sessionId={post.session_id}"


async def test_an_unknown_session_is_not_found():
    async with talking() as (server, session):
        await server.forget_sessions()
        assert (await session.call("record")).status == 404
        session.address = "/messages"
        assert (await session.call("record")).status == 400
        session.address = "/sse"
        assert (await session.call("record")).status == 405
        assert await server.ledger() == {}
        assert await server.break_streams() == 1, "forgetting leaves the stream open"


@pytest.mark.parametrize(
    ("behaviour", "status", "ran"),
    [({"status": 503}, 503, 0), ({"status": 502, "run": True}, 502, 1), ({"status": 200}, 200, 1)],
)
async def test_a_status_is_the_posts(behaviour: dict[str, Any], status: int, ran: int):
    async with talking() as (server, session):
        await server.script(Rule(tool="record", do=Behaviour(**behaviour)))
        assert (await session.call("record")).status == status
        assert await server.executions("record") == ran


async def test_an_answer_may_come_before_its_post_is_over():
    async with talking() as (server, session):
        await server.script(
            Rule(times=1, do=Behaviour(status=502, run=True)), Rule(do=Behaviour(sse_linger=60))
        )
        assert (await session.call("record")).status == 502
        assert (await session.message())["id"] == 7
        params = {"name": "record", "arguments": {}}
        await session.posts.send("POST", request("tools/call", params, 8), path=session.address)
        assert (await session.message())["id"] == 8


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(("drop", "ran"), [("before_body", 0), ("after_body", 0), ("after_run", 1)])
async def test_a_drop_closes_the_post_and_no_answer_follows(drop: Any, ran: int, reset: bool):
    async with talking() as (server, session):
        await server.script(Rule(tool="record", do=Behaviour(drop=drop, reset=reset)))
        assert (await session.call("record")).ended == ("reset" if reset else "closed")
        assert await server.executions("record") == ran
        async with wire_to(server.port) as session.posts:
            await session.call("echo", 8, text="next")
        assert (await session.message())["id"] == 8


async def test_half_an_answer_breaks_the_stream():
    async with talking() as (server, session):
        await server.script(Rule(tool="record", do=Behaviour(drop="mid_answer")))
        assert (await session.call("record")).status == 202
        rest = await session.rest()
        assert b'"jsonrpc"' in rest
        assert b"\r\n0\r\n" not in rest
        assert await server.executions("record") == 1
        assert await server.cancelled() == []


@pytest.mark.parametrize("error_id", ["request", "null"])
async def test_errors_and_results_travel_on_the_stream(error_id: Any):
    error = {"code": -32000, "message": "no"}
    async with talking() as (server, session):
        await server.script(
            Rule(times=1, http="POST", do=Behaviour(error=error, error_id=error_id)),
            Rule(times=1, do=Behaviour(result={"odd": 1}, delay=0.05)),
            Rule(times=1, do=Behaviour(body="not json")),
        )
        assert [(await session.call("record")).status for _ in range(3)] == [202] * 3
        failed = await session.message()
        assert failed["error"] == error
        assert failed["id"] == (7 if error_id == "request" else None)
        rest = {(await session.event())[1] for _ in range(2)}
        assert rest == {"not json", '{"jsonrpc":"2.0","id":7,"result":{"odd":1}}'}


async def test_a_hanging_call_is_accepted_and_ends_with_the_stream():
    async with ScriptedServer.local(transport="sse") as server:
        async with session_with(server) as session:
            await server.script(Rule(tool="echo", do=Behaviour(hang=True)))
            assert (await session.call("echo")).status == 202
            assert (await session.call("slow", 8, seconds=60)).status == 202
        assert await server.cancelled(at_least=2) == [
            Cancelled(7, "echo", "disconnect"),
            Cancelled(8, "slow", "disconnect"),
        ]


async def test_a_post_itself_can_hang():
    async with talking() as (server, session):
        await server.script(Rule(tool="echo", do=Behaviour(hang=True, run=False)))
        await session.posts.send(
            "POST", request("tools/call", {"name": "echo"}), path=session.address
        )
        await server.requests("tools/call", at_least=1)
        assert await server.executions("echo") == 0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.posts.reader.read(1), 0.1)


@pytest.mark.parametrize("reset", [False, True])
async def test_streams_can_be_broken(reset: bool):
    async with talking() as (server, session):
        assert (await session.call("slow", seconds=60)).status == 202
        assert await server.break_streams(reset=reset) == 1
        if reset:
            with pytest.raises(ConnectionResetError):
                await session.rest()
        else:
            assert b"0\r\n" not in await session.rest()
        assert (await session.call("record", 8)).status == 404
        assert await server.cancelled() == []


@pytest.mark.parametrize(
    ("behaviour", "begins"),
    [
        ({"status": 401, "headers": {"www-authenticate": "Bearer"}}, b"HTTP/1.1 401"),
        ({"body": "<html>", "content_type": "text/html"}, b"HTTP/1.1 200"),
        ({"cut_stream_after_events": 0}, b"HTTP/1.1 200"),
    ],
)
async def test_the_stream_can_be_refused(behaviour: dict[str, Any], begins: bytes):
    async with ScriptedServer.local(transport="sse") as server, wire_to(server.port) as wire:
        await server.script(Rule(http="GET", do=Behaviour(**behaviour)))
        await wire.send("GET", path="/sse")
        answer = await wire.reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(begins)
        assert b"endpoint" not in answer


async def test_a_stream_may_never_name_its_endpoint():
    async with ScriptedServer.local(transport="sse") as server, wire_to(server.port) as wire:
        await server.script(Rule(http="GET", do=Behaviour(hang=True)))
        await wire.send("GET", path="/sse")
        await wire.reader.readuntil(b"\r\n\r\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wire.reader.read(1), 0.1)


async def test_the_endpoint_can_be_foreign():
    foreign = "http://other.test/messages?sessionId={session}"
    async with talking(endpoint=foreign) as (_, session):
        assert session.address.startswith("http://other.test/messages?sessionId=")
        assert len(session.address) == len(foreign) - len("{session}") + 32


async def test_notifications_and_line_ends():
    async with ScriptedServer.local(transport="sse") as server:
        odd = Behaviour(crlf=True, sse_prefix=": hi\n\n")
        await server.script(Rule(http="GET", times=1, do=odd))
        async with wire_to(server.port) as wire:
            await wire.send("GET", path="/sse")
            await wire.reader.readuntil(b": hi\r\n\r\n")
            assert (await wire.reader.readline()) == b"event: endpoint\r\n"
        async with session_with(server) as session:
            await session.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
            assert await server.notify("notifications/tools/list_changed") == 1
            assert (await session.message())["method"] == "notifications/tools/list_changed"


async def test_a_key_is_asked_for_on_both_ways():
    async with (
        ScriptedServer.local(transport="sse", api_key="right") as server,
        wire_to(server.port) as wire,
    ):
        await wire.send("GET", path="/sse")
        assert (await wire.receive()).status == 401
        await wire.send("POST", request("ping"), path="/messages?sessionId=x")
        assert (await wire.receive()).status == 401
