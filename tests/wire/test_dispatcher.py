"""The HTTP transport by itself: its requests, and what the server sends meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tests.engine.helpers_wire import Asked, RawServer, http, result_for
from toolkeep._transport.base import Attempt
from toolkeep._transport.http_client import HttpClient
from toolkeep._transport.streamable_http import StreamableHttpTransport
from toolkeep.config import ServerSpec
from toolkeep.testing import Behaviour, Rule, ScriptedServer

LEGACY: dict[str, str] = {"mcp-protocol-version": "2025-11-25"}
MODERN: dict[str, str] = {"mcp-protocol-version": "2026-07-28"}


class Peer:
    """What the server sends on its own account, and how it is answered."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.told: list[str] = []
        self.waiting, self.cancelled = anyio.Event(), anyio.Event()

    async def on_request(self, method: str, params: Any, attempt: Attempt) -> dict[str, Any]:
        self.asked.append(method)
        if method == "ping":
            return {}
        if method == "fail":
            raise RuntimeError("a bug of the handler")
        self.waiting.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()
        return {}

    async def on_notification(self, method: str, params: Any) -> None:
        self.told.append(method)


@asynccontextmanager
async def dispatching(url: str, peer: Peer | None = None) -> AsyncIterator[StreamableHttpTransport]:
    link = HttpClient(ServerSpec(name="kit", url=url))
    dispatcher = StreamableHttpTransport(link, headers={}, max_result_bytes=100_000)
    await dispatcher.open(peer or Peer())
    yield dispatcher
    await dispatcher.close()
    await link.aclose()


async def call(
    dispatcher: StreamableHttpTransport, name: str, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    attempt = Attempt(headers)
    return await dispatcher.request("tools/call", {"name": name}, attempt, headers=LEGACY)


def stream(*messages: dict[str, Any]) -> bytes:
    body = b"".join(b"data: " + json.dumps(message).encode() + b"\n\n" for message in messages)
    return http(body, kind="text/event-stream")


async def test_a_request_may_bring_its_own_id() -> None:
    async with (
        ScriptedServer.local(era="legacy", sessions=False) as server,
        dispatching(server.url) as dispatcher,
    ):
        params = {"name": "echo", "arguments": {"text": "x"}}
        await dispatcher.request(
            "tools/call", params, Attempt(), headers=LEGACY, request_id="mine-1"
        )
        (request,) = await server.requests("tools/call")
        assert request.body is not None
        assert request.body["id"] == "mine-1"


async def test_a_request_that_must_not_be_cancelled_is_given_up_in_silence() -> None:
    async with (
        ScriptedServer.local(era="legacy", sessions=False) as server,
        dispatching(server.url) as dispatcher,
    ):
        await server.script(Rule(do=Behaviour(hang=True), method="tools/call"))
        for cancellable in (False, True):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await dispatcher.request(
                        "tools/call", {"name": "echo"}, Attempt(), cancellable=cancellable
                    )
        await server.requests("notifications/cancelled", at_least=1)
        first, second = await server.requests("tools/call")
        (told,) = await server.requests("notifications/cancelled")
        assert told.body is not None
        assert second.body is not None
        assert told.body["params"]["requestId"] == second.body["id"]
        assert first.body != second.body


async def test_the_modern_wire_carries_no_notification():
    async with (
        ScriptedServer.local(era="modern") as server,
        dispatching(server.url) as dispatcher,
    ):
        await dispatcher.notify("notifications/roots/list_changed", headers=MODERN)
        assert await server.requests() == []


async def test_nothing_is_started_once_the_dispatcher_is_over():
    async with ScriptedServer.local(era="legacy") as server:
        async with dispatching(server.url) as dispatcher:
            pass
        before = asyncio.all_tasks()
        dispatcher.background_tasks.start(dispatcher.send_best_effort(b"{}", LEGACY, None))
        dispatcher.stop_replying()
        assert asyncio.all_tasks() == before


def answering(*before: dict[str, Any]):
    """A server that says something on its own account before it answers `tools/call`."""

    def answer(asked: Asked) -> bytes:
        if asked.message.get("method") != "tools/call":
            return http(b"", status="202 Accepted")
        return stream(*before, json.loads(result_for(asked)))

    return answer


async def replies(server: RawServer, count: int) -> list[dict[str, Any]]:
    """The client's answers to the server's requests."""
    async with asyncio.timeout(5):
        while True:
            found = [asked.message for asked in server.asked if "method" not in asked.message]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.005)


async def test_a_request_of_the_server_is_answered_in_a_task_of_its_own():
    peer = Peer()
    ping = {"jsonrpc": "2.0", "id": "s-1", "method": "ping"}
    fail = {"jsonrpc": "2.0", "id": "s-2", "method": "fail", "params": "no parameters"}
    async with (
        RawServer(answering(ping, fail), only=True) as server,
        dispatching(server.url, peer) as dispatcher,
    ):
        await call(dispatcher, "x")
        answers = {reply["id"]: reply for reply in await replies(server, 2)}
        assert answers["s-1"]["result"] == {}
        assert answers["s-2"]["error"]["code"] == -32603


@pytest.mark.requirement("F3")
async def test_an_answer_to_the_server_goes_with_the_headers_of_the_call_it_is_about():
    ping = {"jsonrpc": "2.0", "id": "s-1", "method": "ping"}
    async with (
        RawServer(answering(ping), only=True) as server,
        dispatching(server.url, Peer()) as dispatcher,
    ):
        await call(dispatcher, "x", {"x-desk": "seven"})
        await replies(server, 1)
        (reply,) = [asked for asked in server.asked if "method" not in asked.message]
        sent = {"x-desk": "seven", **LEGACY}
        assert sent.items() <= reply.headers.items()


async def test_a_server_may_cancel_its_own_request():
    peer = Peer()
    wait = {"jsonrpc": "2.0", "id": "s-1", "method": "wait"}
    cancel = {"method": "notifications/cancelled", "params": {"requestId": "s-1"}}
    unknown = {"method": "notifications/cancelled", "params": {"requestId": "s-9"}}

    async def answer(asked: Asked) -> bytes:
        if asked.message["params"]["name"] == "first":
            return stream(wait, json.loads(result_for(asked)))
        await peer.waiting.wait()
        return stream({"jsonrpc": "2.0", **unknown}, cancel, json.loads(result_for(asked)))

    async with (
        RawServer(answer, only=True) as server,
        dispatching(server.url, peer) as dispatcher,
    ):
        await call(dispatcher, "first")
        await call(dispatcher, "second")
        with anyio.fail_after(5):
            await peer.cancelled.wait()
        assert not await replies(server, 0)


async def test_an_answer_to_nobody_and_a_straggling_progress_are_dropped():
    peer = Peer()
    stray = {"jsonrpc": "2.0", "id": "nobody", "result": {}}
    late = {"method": "notifications/progress", "params": {"progressToken": "old", "progress": 1}}
    async with (
        RawServer(answering(stray, late), only=True) as server,
        dispatching(server.url, peer) as dispatcher,
    ):
        await call(dispatcher, "x")
        assert (peer.asked, peer.told) == ([], [])
