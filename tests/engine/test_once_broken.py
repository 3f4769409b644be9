"""What was broken once: each of these was a way to be wrong about a call, or to leak."""

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tests.engine.helpers_wire import (
    BOUND,
    TEXT,
    Asked,
    RawServer,
    client_of,
    handshake,
    http,
    methods,
    read_request,
    result_for,
    when,
)
from toolkeep import (
    CallNotDelivered,
    CallOutcomeUnknown,
    CallRejected,
    CallResult,
    CallTimedOut,
    Client,
    ConfigError,
    InvalidArguments,
    InvalidResult,
    ToolkeepError,
)
from toolkeep.errors import Delivery
from toolkeep.testing import ScriptedServer


class Chatterbox:
    """A server that says something on the idle socket after its first tool call."""

    def __init__(self, out_of_turn: bytes) -> None:
        self._out_of_turn = out_of_turn
        self.runs = 0
        self.spoke = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Chatterbox"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        try:
            yield self
        finally:
            server.close()
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.wait_for(server.wait_closed(), BOUND)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._attend(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                asked = await read_request(reader)
                if asked.message.get("method") != "tools/call":
                    writer.write(handshake(asked))
                    continue
                self.runs += 1
                writer.write(http(result_for(asked)))
                await writer.drain()
                if self.runs == 1:
                    await asyncio.sleep(0.1)  # by then the client has put the socket away
                    writer.write(self._out_of_turn)
                    await writer.drain()
                    self.spoke.set()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


STRAY = json.dumps({"jsonrpc": "2.0", "id": 3, "result": {"content": []}}).encode()


@pytest.mark.requirement("P1", "S3")
@pytest.mark.parametrize(
    "out_of_turn",
    [
        b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\nretry-after: 0\r\n\r\n",
        http(STRAY),
    ],
    ids=["408", "404", "429", "an answer"],
)
async def test_what_is_said_on_an_idle_socket_answers_no_call(out_of_turn: bytes):
    async with (
        Chatterbox(out_of_turn).serving() as server,
        Client({"url": server.url, "name": "kit"}, mode="legacy") as client,
    ):
        for _ in range(3):
            assert (await client.call_tool("pay")).text == "hello"
            await asyncio.wait_for(server.spoke.wait(), BOUND)
            await asyncio.sleep(0.05)  # the bytes are under way; nothing tells of their arrival
        assert server.runs == 3


@pytest.mark.requirement("S2")
async def test_a_server_without_a_get_route_is_asked_once():
    async with (
        ScriptedServer.local(era="legacy") as server,
        client_of(server, mode="legacy") as client,
    ):
        await server.script(when(verb="GET", status=404))
        client.observe(lambda event: None)
        await client.connect()
        for _ in range(20):
            await client.call_tool("echo", {"text": "x"})
        seen = await methods(server)
        assert (seen.count("initialize"), seen.count("GET")) == (1, 1)


@pytest.mark.requirement("P2")
@pytest.mark.parametrize("code", [-32020, -32022, 32600])
async def test_a_legacy_servers_own_codes_are_no_reason_to_run_again(code: int):
    error = {"code": code, "message": "a meaning of its own"}
    async with (
        ScriptedServer.local(era="legacy") as server,
        client_of(server, mode="legacy") as client,
    ):
        await server.script(when(tool="record", run=True, error=error))
        with pytest.raises(CallRejected) as caught:
            await client.call_tool("record", {"key": "k"})
        assert caught.value.delivery is Delivery.ANSWERED
        assert await server.executions("k") == 1


BIG = 20_000_000
"""Bytes of a body that no buffer of the kernel takes whole."""


class Slow:
    """A server that reads the head of a tool call, and its body only when it is allowed to."""

    def __init__(self) -> None:
        self.stalled, self.go_on, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.read = 0

    async def attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (head := await reader.readuntil(b"\r\n\r\n")) is not None:
                length = int(re.findall(rb"content-length: (\d+)", head, re.IGNORECASE)[0])
                if length >= BIG:
                    await self._swallow(reader)
                    return
                message = json.loads(await reader.readexactly(length))
                writer.write(handshake(Asked("POST", "/mcp", {}, message)))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.ended.set()
            writer.close()

    async def _swallow(self, reader: asyncio.StreamReader) -> None:
        self.stalled.set()
        await asyncio.wait_for(self.go_on.wait(), BOUND)
        while chunk := await reader.read(1 << 20):
            self.read += len(chunk)


@pytest.mark.requirement("S9", "P5")
@pytest.mark.parametrize("how", ["deadline", "closing"])
async def test_what_has_not_left_of_a_request_never_leaves_after_it_was_given_up(how: str):
    peer = Slow()
    server = await asyncio.start_server(peer.attend, "127.0.0.1", 0, limit=1 << 16)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    client = Client({"url": url, "max_retries": 0}, mode="legacy")
    await client.connect()
    arguments = {"text": "x" * BIG}
    call = asyncio.ensure_future(client.call_tool("echo", arguments, timeout=0.5))
    await asyncio.wait_for(peer.stalled.wait(), BOUND)
    if how == "closing":
        await asyncio.wait_for(client.aclose(), BOUND)
    with pytest.raises(CallOutcomeUnknown):
        await asyncio.wait_for(call, BOUND)
    peer.go_on.set()
    await asyncio.wait_for(peer.ended.wait(), BOUND)
    assert peer.read < BIG
    await client.aclose()
    server.close()
    await asyncio.wait_for(server.wait_closed(), BOUND)


class OneSeat:
    """A server that accepts one connection. At the next one, connecting neither works nor fails:
    the backlog is full."""

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self._listener.setblocking(False)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/mcp"
        self.busy, self.over = asyncio.Event(), asyncio.Event()

    async def serve(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._listener)
            seat, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            for _ in range(4):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(self._listener.getsockname())
            reader, writer = await asyncio.open_connection(sock=seat)
            try:
                while (asked := await read_request(reader)).message["method"] != "tools/call":
                    writer.write(handshake(asked))
                self.busy.set()
                await reader.read()
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()
            await self.over.wait()  # a listener that goes away would refuse those who still try


@pytest.mark.requirement("S9")
async def test_closing_ends_a_call_whose_own_connection_is_still_being_made():
    server = OneSeat()
    serving = asyncio.ensure_future(server.serve())
    client = Client({"url": server.url, "timeouts": {"connect": 30, "call": 60}}, mode="legacy")
    first = asyncio.ensure_future(client.call_tool("slow"))
    await asyncio.wait_for(server.busy.wait(), BOUND)
    second = asyncio.ensure_future(client.call_tool("echo"))
    await anyio.wait_all_tasks_blocked()
    async with asyncio.timeout(BOUND):
        await client.aclose()
        with pytest.raises(CallOutcomeUnknown):
            await first
        with pytest.raises(CallNotDelivered):
            await second
        server.over.set()
        await serving


@pytest.mark.requirement("S9")
async def test_cancelling_while_a_redirect_is_read_closes_its_socket():
    def stalled(asked: Asked) -> bytes:
        return (
            b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /elsewhere\r\n"
            b"content-length: 100\r\n\r\nbut the rest never comes"
        )

    async with RawServer(stalled) as server, client_of(server, mode="legacy") as client:
        await client.connect()
        for _ in range(3):
            with pytest.raises(CallTimedOut):
                await client.call_tool("echo", timeout=0.2)
        await _until(lambda: server.open_connections <= 1)  # what a notification may have left


async def _until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND):
        while not done():
            await asyncio.sleep(0.01)


@pytest.mark.requirement("P7")
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"result": TEXT}, "hello"),
        ({"result": "oops"}, InvalidResult),
        ({"result": {"content": "no list"}}, InvalidResult),
        ({"error": {"code": -32602, "message": "no"}}, CallRejected),
    ],
    ids=["a result", "no object", "no list", "an error"],
)
async def test_an_answer_in_hand_at_the_deadline_is_judged_like_any_other(
    answer: dict[str, Any], told: str | type[Exception]
):
    """The stream lingers for longer than the deadline after its answer. Five clients, because
    each lingers only once; most, not all, because a busy machine may be late by itself."""

    def lingering(asked: Asked) -> bytes:
        event = json.dumps({"jsonrpc": "2.0", "id": asked.id, **answer}).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n"
        return head + b"data: " + event + b"\n\n"

    outcomes: list[object] = []
    async with RawServer(lingering) as server:
        for _ in range(5):
            async with client_of(server, mode="legacy") as client:
                await client.connect()
                outcomes.append(await _outcome(client.call_tool("echo", timeout=0.09)))
    assert outcomes.count(told) >= 3, outcomes


async def _outcome(call: Awaitable[CallResult]) -> object:
    try:
        return (await call).text
    except ToolkeepError as error:
        return type(error)


@pytest.mark.requirement("P3")
async def test_an_answer_that_leads_to_a_replay_does_not_stop_the_clock_for_good():
    mismatch = {"code": -32020, "message": "list again"}
    async with (
        ScriptedServer.local(era="modern", encoding="sse") as server,
        client_of(server) as client,
    ):
        await client.connect()
        await server.script(
            when(tool="echo", times=1, status=200, error=mismatch), when(tool="echo", hang=True)
        )
        with pytest.raises(CallTimedOut):
            await client.call_tool("echo", {"text": "x"}, timeout=0.5)


@pytest.mark.requirement("P1", "S13")
@pytest.mark.parametrize(
    "before",
    [
        b"retry: " + b"9" * 5000 + b"\n\n",
        b"retry: " + b"9" * 400 + b"\n\n",
        b"event: ping\ndata: keep-alive\n\n",
    ],
    ids=["5000 digits", "400 digits", "a keep-alive with data"],
)
async def test_odd_fields_before_an_answer_do_no_harm(before: bytes):
    def answer(asked: Asked) -> bytes:
        event = b"data: " + result_for(asked) + b"\n\n"
        return http(before + event, kind="text/event-stream")

    async with RawServer(answer) as server, client_of(server, mode="legacy") as client:
        assert (await client.call_tool("echo")).text == "hello"


async def test_a_wait_that_no_calendar_knows_is_no_wait():
    async with ScriptedServer.local() as server, client_of(server, max_retries=0) as client:
        await client.connect()
        never = {"retry-after": f"Mon, 01 Jan 2024 00:00:00 +{'9' * 20}"}
        await server.script(when(tool="echo", status=429, headers=never))
        with pytest.raises(CallNotDelivered) as caught:
            await client.call_tool("echo", {"text": "x"})
        assert (caught.value.status, caught.value.retry_after) == (429, None)


async def test_a_flood_of_requests_from_the_server_is_answered_a_few_at_a_time():
    ping = b'data: {"jsonrpc":"2.0","id":%d,"method":"ping"}\n\n'

    def answer(asked: Asked) -> bytes:
        if asked.message.get("method") != "tools/call":
            return handshake(asked) if asked.message.get("method") else http(b"", status="202 OK")
        flood = b"".join(ping % (1000 + n) for n in range(3000))
        return http(flood + b"data: " + result_for(asked) + b"\n\n", kind="text/event-stream")

    async with RawServer(answer, only=True) as server, client_of(server, mode="legacy") as client:
        assert (await client.call_tool("echo")).text == "hello"
        await _until(lambda: sum("method" not in asked.message for asked in server.asked) >= 500)
        assert server.accepted <= 10


async def test_a_result_of_a_call_that_was_left_is_an_error_and_no_cancellation():
    async with ScriptedServer.local() as server, client_of(server) as client:
        async with client.stream("slow", {"seconds": 60}) as call:
            async for _ in call:
                break
        with pytest.raises(ToolkeepError) as caught:
            await call.result()
        assert caught.value.delivery is Delivery.UNKNOWN


@pytest.mark.requirement("S2")
async def test_once_nobody_observes_the_next_connection_opens_no_stream():
    async with (
        ScriptedServer.local(era="legacy") as server,
        client_of(server, mode="legacy") as client,
    ):
        observation = client.observe(lambda event: None)
        await client.connect()
        await server.requests(at_least=3)
        observation.close()
        await client.aclose()
        await server.clear()
        await client.call_tool("echo", {"text": "x"})
        await client.aclose()
        assert "GET" not in await methods(server)


async def test_a_method_that_no_header_can_carry_is_refused_here():
    """The modern wire names the method in a header, too."""
    async with ScriptedServer.local(era="modern") as server, client_of(server) as client:
        await client.connect()
        await server.clear()
        with pytest.raises(InvalidArguments):
            await client.request("tools/list\r\nx-evil: 1")
        assert await server.requests() == []


async def test_a_proxy_that_is_no_http_proxy_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("ALL_PROXY", "socks5://user:secret-password@127.0.0.1:9")
    client = Client("http://127.0.0.1:9/mcp")
    with pytest.raises(ConfigError) as caught:
        await client.connect()
    assert "secret-password" not in str(caught.value)
    await client.aclose()
