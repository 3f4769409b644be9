"""The HTTP dispatcher as the SDK may use it: all that `Dispatcher` and `CallOptions` promise."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from mcp.shared.dispatcher import CallOptions

from tests.engine.helpers_wire import Asked, RawServer, http, result_for
from toolkeep import ServerSpec
from toolkeep._rules.classify import Trouble
from toolkeep._wire.attempt import Attempt, current_attempt
from toolkeep._wire.errands import Errands
from toolkeep._wire.fault import WireFault
from toolkeep._wire.http import HttpDispatcher
from toolkeep._wire.link import Link
from toolkeep.testing import Behaviour, Rule, ScriptedServer

LEGACY: dict[str, str] = {"mcp-protocol-version": "2025-11-25"}
MODERN: dict[str, str] = {"mcp-protocol-version": "2026-07-28"}


class Peer:
    """What the server sends on its own account, and how it is answered."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.told: list[str] = []
        self.waiting, self.cancelled = anyio.Event(), anyio.Event()

    async def on_request(self, ctx: Any, method: str, params: Any) -> dict[str, Any]:
        self.asked.append((method, ctx.request_id))
        if method == "ping":
            await ctx.progress(1.0)
            return {}
        if method == "back":
            await ctx.notify("notifications/back", None)
            return await ctx.send_raw_request("tools/call", {"name": "echo"}, None)
        if method == "fail":
            raise RuntimeError("a bug of the handler")
        self.waiting.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()
        return {}

    async def on_notify(self, ctx: Any, method: str, params: Any) -> None:
        self.told.append(method)


@asynccontextmanager
async def dispatching(url: str, peer: Peer | None = None) -> AsyncIterator[HttpDispatcher]:
    link = Link(ServerSpec(name="kit", url=url))
    dispatcher = HttpDispatcher(link, headers={}, max_result_bytes=100_000)
    peer = peer or Peer()
    async with anyio.create_task_group() as tasks:
        await tasks.start(dispatcher.run, peer.on_request, peer.on_notify)
        yield dispatcher
        tasks.cancel_scope.cancel()
    await link.aclose()


def options(headers: Mapping[str, str], **more: Any) -> CallOptions:
    return cast("CallOptions", {"headers": dict(headers), **more})


def stream(*messages: dict[str, Any]) -> bytes:
    body = b"".join(b"data: " + json.dumps(message).encode() + b"\n\n" for message in messages)
    return http(body, kind="text/event-stream")


async def test_the_callers_own_request_id_and_progress_callback_are_used():
    heard: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with (
        ScriptedServer.local(era="modern", encoding="sse") as server,
        dispatching(server.url) as dispatcher,
    ):
        opts = options(
            {**MODERN, "mcp-method": "tools/call", "mcp-name": "steps"},
            request_id="mine-1",
            on_progress=on_progress,
        )
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {"name": "steps", "arguments": {"count": 2, "gap": 0.0}, "_meta": meta}
        await dispatcher.send_raw_request("tools/call", params, opts)
        (request,) = await server.requests("tools/call")
        assert request.body is not None
        assert request.body["id"] == "mine-1"
        assert [progress for progress, _, _ in heard] == [1, 2]


async def test_a_timeout_of_the_sdk_is_a_fault_and_tells_a_legacy_server():
    async with (
        ScriptedServer.local(era="legacy", sessions=False) as server,
        dispatching(server.url) as dispatcher,
    ):
        await server.script(Rule(do=Behaviour(hang=True), method="tools/call"))
        with pytest.raises(WireFault) as caught:
            opts = options(LEGACY, timeout=0.2)
            await dispatcher.send_raw_request("tools/call", {"name": "echo"}, opts)
        assert caught.value.evidence.trouble is Trouble.BROKEN
        await server.requests("notifications/cancelled", at_least=1)


async def test_the_modern_wire_carries_no_notification():
    async with (
        ScriptedServer.local(era="modern") as server,
        dispatching(server.url) as dispatcher,
    ):
        await dispatcher.notify("notifications/roots/list_changed", None, options(MODERN))
        assert await server.requests() == []


async def test_errands_are_bounded_and_end_with_their_dispatcher():
    errands = Errands()
    before = asyncio.all_tasks()
    for _ in range(1001):
        errands.start(asyncio.sleep(60))
    started = asyncio.all_tasks() - before
    assert len(started) == 1000
    errands.cancel()
    done, _ = await asyncio.wait(started, timeout=5)
    assert done == started


async def test_errands_get_a_moment_to_finish_and_no_more():
    errands = Errands()
    errands.start(asyncio.sleep(60))
    async with asyncio.timeout(5):
        await errands.flush(within=0.01)
    errands.cancel()


async def test_nothing_is_started_once_the_dispatcher_is_over():
    async with ScriptedServer.local(era="legacy") as server:
        async with dispatching(server.url) as dispatcher:
            pass
        before = asyncio.all_tasks()
        dispatcher.errands.start(dispatcher.send_in_courtesy(b"{}", LEGACY, None))
        dispatcher.stop_answering()
        assert asyncio.all_tasks() == before


def answering(*before: dict[str, Any]):
    """A server that says something on its own account before it answers `tools/call`."""

    def answer(asked: Asked) -> bytes:
        if asked.message.get("method") != "tools/call":
            return http(b"", status="202 Accepted")
        if asked.message["params"] == {"name": "echo"}:
            return http(result_for(asked))
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
        await dispatcher.send_raw_request("tools/call", {"name": "x"}, options(LEGACY))
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
        current_attempt.set(Attempt(headers={"x-desk": "seven"}))
        await dispatcher.send_raw_request("tools/call", {"name": "x"}, options(LEGACY))
        await replies(server, 1)
        (reply,) = [asked for asked in server.asked if "method" not in asked.message]
        sent = {"x-desk": "seven", **LEGACY}
        assert sent.items() <= reply.headers.items()


async def test_a_handler_may_speak_to_the_server_while_it_works():
    peer = Peer()
    back = {"jsonrpc": "2.0", "id": 9, "method": "back"}
    async with (
        RawServer(answering(back), only=True) as server,
        dispatching(server.url, peer) as dispatcher,
    ):
        await dispatcher.send_raw_request("tools/call", {"name": "x"}, options(LEGACY))
        (reply,) = await replies(server, 1)
        assert reply["result"]["content"][0]["text"] == "hello"


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
        await dispatcher.send_raw_request("tools/call", {"name": "first"}, options(LEGACY))
        await dispatcher.send_raw_request("tools/call", {"name": "second"}, options(LEGACY))
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
        await dispatcher.send_raw_request("tools/call", {"name": "x"}, options(LEGACY))
        assert (peer.asked, peer.told) == ([], [])
