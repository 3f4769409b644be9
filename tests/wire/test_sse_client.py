"""Clients of servers that know HTTP+SSE of 2024-11-05 only: the kit's, and the official SDK's."""

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from tests.engine.helpers_wire import Asked, http, result_for, when
from tests.ports import free_port
from tests.wire.helpers_sse import ACCEPTED, SseServer, message
from toolkeep import (
    AuthNeeded,
    CallNotSentInTime,
    CallOutcomeUnknown,
    CallRejected,
    CallTimedOut,
    Client,
    RemoteProtocolError,
    ServerUnavailable,
)
from toolkeep.config.spec import ConfigWarning
from toolkeep.errors import Delivery, FailureKind
from toolkeep.events import Changed, Connected, Disconnected, Event, Progress
from toolkeep.testing import ScriptedServer

START_BOUND = 20.0
"""Starting Python with the SDK takes a second or two, on a busy machine several."""
PROGRAM = """
import sys
from mcp.server.mcpserver import Context, MCPServer
from tests.ports import free_port
from tests.ports import free_port
server = MCPServer("official")
@server.tool()
def add(a: int, b: int) -> int:
    return a + b
@server.tool()
async def steps(ctx: Context, count: int) -> str:
    for step in range(1, count + 1):
        await ctx.report_progress(step, count)
    return "done"
server.run(transport="sse", port=int(sys.argv[1]))
"""


def sse_server(*, endpoint: str | None = None, api_key: str | None = None) -> ScriptedServer:
    return ScriptedServer.local(transport="sse", era="legacy", endpoint=endpoint, api_key=api_key)


class Ear:
    """An observer of one kind of event that one can wait for."""

    def __init__(self, client: Client, kind: type[Event]) -> None:
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        self._kind = kind
        client.observe(self, listen=True)

    def __call__(self, event: Event) -> None:
        if isinstance(event, self._kind):
            self.heard.put_nowait(event)


@asynccontextmanager
async def client_of(url: str, **spec: Any) -> AsyncIterator[Client]:
    client = Client({"url": url, "name": "sse", "transport": "sse", **spec})
    try:
        async with asyncio.timeout(START_BOUND):
            yield client
    finally:
        await client.aclose()


async def streams_of(server: ScriptedServer) -> int:
    return sum(record.http_method == "GET" for record in await server.requests())


@pytest.mark.requirement("S13")
async def test_calls_run_side_by_side_on_one_stream():
    async with sse_server() as server, client_of(server.url) as client:
        async with asyncio.TaskGroup() as tasks:
            calls = [
                tasks.create_task(client.call_tool("echo", {"text": str(n)})) for n in range(50)
            ]
        assert [call.result().text for call in calls] == [str(n) for n in range(50)]
        assert await streams_of(server) == 1
        assert client.session_id


async def test_progress_and_notices_come_on_the_stream():
    async with sse_server() as server, client_of(server.url) as client:
        ear = Ear(client, Changed)
        async with client.stream("steps", {"count": 3, "gap": 0.0}) as call:
            seen = [event.progress async for event in call if isinstance(event, Progress)]
        assert seen == [1, 2, 3]
        await server.notify("notifications/resources/updated", {"uri": "kit://1"})
        assert (await ear.heard.get()).uri == "kit://1"


async def test_headers_of_a_call_go_with_its_post_and_credentials_with_everything():
    async with (
        sse_server(api_key="the-key-of-the-kit") as server,
        client_of(server.url, api_key="the-key-of-the-kit") as client,
    ):
        await client.call_tool("echo", {"text": "hi"}, headers={"traceparent": "00-1-2-01"})
        records = await server.requests()
    assert {record.headers["authorization"] for record in records} == {"Bearer the-key-of-the-kit"}
    traced = [record.rpc_method for record in records if "traceparent" in record.headers]
    assert traced == ["tools/call"]


@pytest.mark.requirement("S15")
@pytest.mark.parametrize(("verb", "method"), [("GET", None), ("POST", "tools/call")])
async def test_a_401_says_what_the_server_wants(verb: str, method: str | None):
    async with sse_server() as server, client_of(server.url) as client:
        challenge = {"www-authenticate": 'Bearer realm="kit"'}
        await server.script(when(method, verb=verb, status=401, headers=challenge))
        with pytest.raises(AuthNeeded) as caught:
            await client.call_tool("echo", {"text": "hi"})
    assert caught.value.status == 401
    assert caught.value.www_authenticate == 'Bearer realm="kit"'


@pytest.mark.requirement("S13")
async def test_a_session_that_the_server_forgot_is_opened_anew_and_the_call_runs_once():
    async with sse_server() as server, client_of(server.url) as client:
        await client.connect()
        await server.forget_sessions()
        await client.call_tool("record", {"key": "once"})
        assert await server.executions("once") == 1
        assert await streams_of(server) == 2


@pytest.mark.requirement("S14")
async def test_a_stream_that_breaks_leaves_calls_under_way_unknown_and_the_next_works():
    async with sse_server() as server, client_of(server.url) as client:
        ear = Ear(client, Connected)
        call = asyncio.ensure_future(client.call_tool("slow", {"seconds": 30.0}))
        await server.requests("tools/call", at_least=1)
        await server.restart()
        with pytest.raises(CallOutcomeUnknown) as caught:
            await call
        assert caught.value.failure is not None
        assert caught.value.failure.kind is FailureKind.BROKEN
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert ear.heard.qsize() == 2


@pytest.mark.requirement("S14")
async def test_a_post_that_breaks_fails_its_own_call_only():
    async with sse_server() as server, client_of(server.url) as client:
        await server.script(when("tools/call", tool="record", drop="after_run"))
        sibling = asyncio.ensure_future(client.call_tool("slow", {"seconds": 60}))
        await server.requests("tools/call", at_least=1)
        with pytest.raises(CallOutcomeUnknown):
            await client.call_tool("record", {"key": "once"})
        await server.skip_delays()
        assert not (await sibling).is_error
        assert await server.executions("once") == 1
        assert await streams_of(server) == 1


@pytest.mark.requirement("H6")
async def test_an_error_on_the_stream_quotes_no_secret_of_the_url():
    async with sse_server() as server:
        told = {"code": -32050, "message": "no such key: sekret-of-the-url"}
        await server.script(when(tool="record", error=told))
        with pytest.warns(ConfigWarning):
            client = Client(
                {"url": f"{server.url}?token=sekret-of-the-url", "name": "sse", "transport": "sse"}
            )
        async with aclosing(client), asyncio.timeout(START_BOUND):
            with pytest.raises(CallRejected) as caught:
                await client.call_tool("record")
    assert "sekret" not in repr((caught.value, caught.value.failure))


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9/messages", "https://127.0.0.1/messages"])
async def test_nothing_is_sent_to_an_endpoint_of_another_origin(endpoint: str):
    async with sse_server(endpoint=endpoint) as server, client_of(server.url) as client:
        with pytest.raises(RemoteProtocolError) as caught:
            await client.call_tool("echo", {"text": "hi"})
        assert {record.http_method for record in await server.requests()} == {"GET"}
    assert caught.value.failure is not None
    assert caught.value.failure.kind is FailureKind.UNREADABLE


async def test_a_stream_that_never_names_its_endpoint_is_given_up_in_time():
    async with sse_server() as server:
        await server.script(when(verb="GET", hang=True))
        timeouts = {"connect": 0.3, "call": 1.0}
        async with client_of(server.url, timeouts=timeouts) as client:
            begun = time.monotonic()
            with pytest.raises((ServerUnavailable, CallNotSentInTime)) as caught:
                await client.call_tool("echo", {"text": "hi"})
            assert caught.value.delivery is Delivery.NOT_SENT
            assert time.monotonic() - begun < 3.0


# -- the official SDK -----------------------------------------------------------------------------


@asynccontextmanager
async def official(port: int) -> AsyncIterator[None]:
    command = (sys.executable, "-c", PROGRAM, str(port))
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(START_BOUND):
            while b"running on" not in (line := await process.stderr.readline()):
                assert line, "the server ended before it was ready"
        yield
    finally:
        process.kill()
        await process.communicate()


@pytest.mark.requirement("S13")
async def test_a_server_on_the_official_sdk_can_be_used_and_may_restart():
    port = free_port()
    async with client_of(f"http://127.0.0.1:{port}/sse") as client:
        async with official(port):
            assert [tool.name for tool in await client.list_tools()] == ["add", "steps"]
            async with client.stream("steps", {"count": 3}) as call:
                seen = [event.progress async for event in call if isinstance(event, Progress)]
            assert seen == [1, 2, 3]
            async with asyncio.TaskGroup() as tasks:
                sums = [client.call_tool("add", {"a": n, "b": 1}) for n in range(20)]
                calls = [tasks.create_task(one) for one in sums]
            assert [call.result().data for call in calls] == [{"result": n + 1} for n in range(20)]
        async with official(port):
            assert (await client.call_tool("add", {"a": 2, "b": 3})).data == {"result": 5}


class Mute:
    """What a server answers to POSTs, once it is muted: nothing, or nothing but comments."""

    def __init__(self, *, breathes: bool) -> None:
        self._breathes, self.muted = breathes, False
        self.server = SseServer(post=self._post)

    def _post(self, asked: Asked) -> bytes | None:
        if not self.muted and asked.id is not None:
            about = {"capabilities": {}, "serverInfo": {"name": "mute", "version": "1"}}
            result = {"protocolVersion": "2024-11-05", "content": [], **about}
            self.server.say(message(result_for(asked, result)))
        elif self._breathes:
            self.server.say(b": ping\n\n")
        return ACCEPTED


@pytest.mark.requirement("S14")
async def test_a_stream_that_went_deaf_without_a_word_is_replaced_and_a_slow_server_is_not():
    slow, gone = Mute(breathes=True), Mute(breathes=False)
    async with (
        slow.server,
        gone.server,
        client_of(slow.server.url) as patient,
        client_of(gone.server.url) as client,
    ):
        ends = Ear(client, Disconnected).heard, Ear(patient, Disconnected).heard
        for each, mute in ((patient, slow), (client, gone)):
            await each.call_tool("any")
            mute.muted = True
            with pytest.raises(CallTimedOut):
                await each.call_tool("any", timeout=0.2)
        await ends[0].get()
        gone.muted = False
        await client.call_tool("any")
        assert patient.is_initialized
        assert ends[1].empty()


def handshake_on(server: SseServer, asked: Asked) -> bool:
    """Answer the handshake on the stream. False: it is something else."""
    if asked.message["method"] != "initialize":
        return asked.id is None
    about = {"capabilities": {}, "serverInfo": {"name": "small", "version": "1"}}
    server.say(message(result_for(asked, {"protocolVersion": "2024-11-05", **about})))
    return True


@pytest.mark.requirement("P1")
@pytest.mark.parametrize("named", [{"id": None}, {}, {"id": True}, {"id": 0.5}, {"id": {}}])
async def test_an_error_without_a_usable_id_on_the_stream_answers_no_call(named: dict[str, Any]):
    error = {"code": -32601, "message": "unknown method"}
    complaint = json.dumps({"jsonrpc": "2.0", **named, "error": error}).encode()

    def post(asked: Asked) -> bytes | None:
        if not handshake_on(server, asked):
            server.say(message(complaint) + message(result_for(asked)))
        return ACCEPTED

    server = SseServer(post=post)
    async with server, client_of(server.url) as client:
        assert (await client.call_tool("any", {})).text == "hello"


@pytest.mark.requirement("S5", "P2")
async def test_a_post_answered_in_words_about_a_session_runs_its_tool_once():
    error = {"code": -32000, "message": "card declined after checkout session cs_12 was charged"}

    def post(asked: Asked) -> bytes | None:
        if asked.message["method"] == "tools/call":
            body = json.dumps({"jsonrpc": "2.0", "id": asked.id, "error": error}).encode()
            return http(body, status="400 Bad Request")
        if not handshake_on(server, asked):
            server.say(message(result_for(asked, {})))
        return ACCEPTED

    server = SseServer(post=post)
    async with server, client_of(server.url, retry="never") as client:
        await client.connect()
        session = client.session_id
        with pytest.raises(CallRejected) as caught:
            await client.call_tool("pay", {})
        assert caught.value.delivery is Delivery.ANSWERED
        asked = [each.message["method"] for each in server.asked if each.verb == "POST"]
        assert asked[2:] == ["tools/call", "ping"]
        assert client.session_id == session


class Moved(SseServer):
    """Redirects its stream, and names its endpoint relative to where the stream is now."""

    def _answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.target == "/sse":
            writer.write(http(b"", "location: /v2/sse", status="308 Permanent Redirect"))
        else:
            super()._answer(asked, writer)


@pytest.mark.requirement("S10", "S13")
async def test_an_endpoint_is_relative_to_where_the_stream_was_found():
    def post(asked: Asked) -> bytes | None:
        return ACCEPTED if handshake_on(server, asked) else None

    server = Moved(first=b"event: endpoint\ndata: messages?session_id=7\n\n", post=post)
    async with server, client_of(server.url) as client:
        assert (await client.call_tool("any", {})).text == "hello"
        posts = {asked.target for asked in server.asked if asked.verb == "POST"}
    assert posts == {"/v2/messages?session_id=7"}
