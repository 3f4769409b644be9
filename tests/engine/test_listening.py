"""What a server says outside of calls is heard, also after the stream or the session was lost."""

import asyncio
import itertools
import json
import time
from typing import Any

import pytest

from tests.engine.helpers_wire import (
    BOUND,
    Asked,
    Era,
    RawServer,
    both_eras,
    client_of,
    handshake,
    http,
    methods,
    result_for,
    when,
)
from toolkeep import CallTimedOut, Client
from toolkeep.events import Changed, Connected, Event, Progress, ServerNotification
from toolkeep.testing import ScriptedServer

CHANGED = "notifications/resources/updated"


class Ear:
    """An observer that one can wait for."""

    def __init__(self, client: Client, *, listen: bool = True) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()
        client.observe(self, listen=listen)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    @property
    def notices(self) -> list[Any]:
        """What was said: the resource that changed, or the log line."""
        return [
            event.uri if isinstance(event, Changed) else event.params.get("data")
            for event in self.events
            if isinstance(event, Changed | ServerNotification)
        ]

    async def until(self, count: int, kind: Any = Changed | ServerNotification) -> None:
        async with asyncio.timeout(BOUND):
            while sum(isinstance(event, kind) for event in self.events) < count:
                self._news.clear()
                await self._news.wait()


@pytest.mark.requirement("L4", "S4")
async def test_notices_go_on_after_a_call_has_lost_the_session() -> None:
    async with ScriptedServer.local(era="legacy") as server, client_of(server) as client:
        ear = Ear(client)
        await client.connect()
        await server.notify(CHANGED, {"uri": "kit://1"})
        await ear.until(1)
        await server.forget_sessions()
        await client.call_tool("echo", {"text": "hi"})
        gets = await server.requests(at_least=9)
        assert [record.session_id for record in gets if record.http_method == "GET"][-1:] == [
            client.session_id
        ]
        await server.notify(CHANGED, {"uri": "kit://2"})
        await ear.until(2)
    assert set(ear.notices) == {"kit://1", "kit://2"}


@pytest.mark.requirement("L4", "S4")
async def test_who_only_listens_gets_a_new_session_when_the_old_is_lost() -> None:
    async with ScriptedServer.local(era="legacy") as server, client_of(server) as client:
        await server.script(when(verb="GET", retry_ms=10, event_ids=True))
        ear = Ear(client)
        await client.connect()
        first = client.session_id
        await server.notify(CHANGED, {"uri": "kit://1"})
        await ear.until(1)
        await server.restart()
        await ear.until(2, Connected)
        assert client.session_id not in (None, first)
        await server.notify(CHANGED, {"uri": "kit://2"})
        await ear.until(2)
        assert "tools/call" not in await methods(server)
    assert ear.notices == ["kit://1", "kit://2"]


@pytest.mark.requirement("L4", "S13")
async def test_a_stream_that_ends_is_opened_again_where_it_ended() -> None:
    gets: list[Asked] = []

    def answer(asked: Asked) -> bytes:
        if asked.verb != "GET":
            return handshake(asked)
        gets.append(asked)
        number = len(gets)
        said = f"retry: 10\nid: n{number}\n" + frame(CHANGED, {"uri": f"kit://{number}"})
        return http(said.encode(), kind="text/event-stream")

    async with RawServer(answer, only=True) as server, client_of(server, mode="legacy") as client:
        ear = Ear(client)
        await client.connect()
        await ear.until(3)
        await client.aclose()
    assert ear.notices[:3] == ["kit://1", "kit://2", "kit://3"]
    assert [get.headers.get("last-event-id") for get in gets[:3]] == [None, "n1", "n2"]


async def gets_of(server: ScriptedServer) -> list[Any]:
    return [record for record in await server.requests() if record.http_method == "GET"]


@pytest.mark.parametrize("status", [401, 405, 406])
async def test_a_server_without_such_a_stream_is_asked_once(status: int) -> None:
    async with ScriptedServer.local(era="legacy") as server, client_of(server) as client:
        await server.script(when(verb="GET", status=status))
        client.observe(lambda event: None)
        for _ in range(3):
            assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        async with asyncio.timeout(BOUND):
            while not await gets_of(server):
                await asyncio.sleep(0.01)
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert len(await gets_of(server)) == 1


async def test_noise_on_the_stream_harms_no_call() -> None:
    async with ScriptedServer.local(era="legacy") as server, client_of(server) as client:
        noise = "retry: 10\ndata: {\n\n"
        kind = "text/event-stream"
        await server.script(when(verb="GET", times=2, run=False, body=noise, content_type=kind))
        ear = Ear(client)
        await client.connect()
        async with asyncio.timeout(BOUND):
            while len(await gets_of(server)) < 3:
                await asyncio.sleep(0.01)
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        await server.notify(CHANGED, {"uri": "kit://1"})
        await ear.until(1)


def frame(method: str, params: dict[str, Any]) -> str:
    return f"data: {json.dumps({'jsonrpc': '2.0', 'method': method, 'params': params})}\n\n"


@both_eras
@pytest.mark.requirement("L4")
async def test_a_log_line_on_a_lists_stream_goes_to_observers(era: Era) -> None:
    said = frame("notifications/message", {"level": "info", "data": "listing"})
    async with (
        ScriptedServer.local(era=era, encoding="sse") as server,
        client_of(server, mode=era) as client,
    ):
        ear = Ear(client, listen=False)
        await server.script(when("tools/list", sse_prefix=said))
        assert await client.list_tools()
    assert ear.notices == ["listing"]


@both_eras
@pytest.mark.requirement("L2")
async def test_progress_of_another_request_is_nobodys(era: Era) -> None:
    stray = frame("notifications/progress", {"progressToken": 4711, "progress": 99})
    odd = frame("notifications/progress", {"progress": "much"})
    async with (
        ScriptedServer.local(era=era, encoding="sse") as server,
        client_of(server, mode=era) as client,
    ):
        await server.script(when(tool="steps", sse_prefix=stray + odd))
        async with client.stream("steps", {"count": 2}) as call:
            events = [event async for event in call]
    reports = [event.progress for event in events if isinstance(event, Progress)]
    assert reports == [1, 2]


@both_eras
@pytest.mark.requirement("L2", "S13")
async def test_a_stream_that_stays_open_after_its_answer_is_not_waited_for(era: Era) -> None:
    async with (
        ScriptedServer.local(era=era, encoding="sse") as server,
        client_of(server, mode=era) as client,
    ):
        await client.connect()
        await server.script(when(tool="echo", sse_linger=5.0))
        began = time.monotonic()
        for _ in range(4):
            assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert time.monotonic() - began < 1
        assert await server.executions("echo") == 4
        assert not [one for one in await server.cancelled() if one.how == "notification"]


# -- servers that end their streams at once -----------------------------------------------------


STREAM_ENDS = {
    "retry": b"retry: 0\n\n",
    "retry and an id": b"retry: 0\nid: same\n\n",
    "retry and a message": b"retry: 0\n"
    + frame("notifications/message", {"level": "info", "data": "hello"}).encode(),
    "a change": b"retry: 0\n" + frame("notifications/tools/list_changed", {}).encode(),
    "noise": b"retry: 0\n: nothing\ndata: {\n\n",
}


def ends_at_once(end: bytes) -> Any:
    """A legacy server with one tool whose GET stream ends as soon as it has begun."""

    def answer(asked: Asked) -> bytes:
        if asked.verb == "GET":
            return http(end, kind="text/event-stream")
        if asked.message.get("method") == "tools/list":
            return http(result_for(asked, {"tools": [{"name": "t", "inputSchema": {}}]}))
        return handshake(asked)

    return answer


@pytest.mark.requirement("L4", "P4")
@pytest.mark.parametrize("end", STREAM_ENDS.values(), ids=STREAM_ENDS)
async def test_a_stream_that_ends_at_once_is_opened_again_ever_more_slowly(end: bytes) -> None:
    async with (
        RawServer(ends_at_once(end), only=True) as server,
        client_of(server, mode="legacy") as client,
    ):
        client.observe(lambda event: None)
        await client.list_tools()
        started = time.monotonic()
        async with asyncio.timeout(BOUND):
            while sum(asked.verb == "GET" for asked in server.asked) < 4:
                await asyncio.sleep(0.01)
        # Pauses of at least 0.1, 0.2 and 0.4 s, though the server asks for none.
        assert time.monotonic() - started > 0.65
        listed = sum(asked.message.get("method") == "tools/list" for asked in server.asked)
        assert listed <= 5  # one asked for, and at most one for each gap


@pytest.mark.requirement("P8", "P4")
async def test_a_broken_answer_is_not_resumed_in_a_busy_loop() -> None:
    """Each GET brings an event, so that the server is never given up before the deadline."""
    number = itertools.count()

    def answer(asked: Asked) -> bytes:
        if asked.verb == "GET" or asked.message.get("method") == "tools/call":
            said = f"retry: 0\nid: {next(number)}\ndata:\n\n".encode()
            return http(said, kind="text/event-stream")
        return handshake(asked)

    async with RawServer(answer, only=True) as server, client_of(server, mode="legacy") as client:
        await client.connect()
        with pytest.raises(CallTimedOut):
            await client.call_tool("t", timeout=1.0)
        # 0.1, 0.2 and 0.4 s have passed before the fourth.
        assert sum(asked.verb == "GET" for asked in server.asked) <= 4


@pytest.mark.requirement("L4", "P4")
async def test_a_modern_subscription_that_ends_at_once_is_made_again_ever_more_slowly() -> None:
    async with ScriptedServer.local(era="modern") as server, client_of(server) as client:
        await server.script(when("subscriptions/listen", cut_stream_after_events=1))
        client.observe(lambda event: None)
        await client.list_tools()
        await server.requests("subscriptions/listen", at_least=4)
        made = [record.at for record in await server.requests("subscriptions/listen")]
        assert made[3] - made[0] > 0.6  # at least 0.1, 0.2 and 0.4 s
        assert len(await server.requests("tools/list")) <= len(made) + 1
