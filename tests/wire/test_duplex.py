"""The dispatcher of pipes by itself: whose message is it, and what of it outlives whom?"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, cast

import anyio
import pytest

from tests.engine.helpers_tasks import until
from tests.engine.helpers_wire import Asked, result_for
from tests.wire.helpers_sse import PING, SseServer, channel_to, message
from tests.wire.helpers_stdio import BOUND, opened
from toolkeep._transport.base import Attempt, MessageChannel, WireFault
from toolkeep._transport.duplex import DuplexTransport, PendingRequest
from toolkeep._transport.jsonrpc import RpcExchange
from toolkeep._transport.sse import SseChannel

SAYS = """
import sys
for _ in range(int(sys.argv[1])):
    sys.stdin.readline()
print(sys.argv[2], flush=True)
sys.stdin.read()
"""
"""Reads so many requests, and then says all that it has to say."""
CLOSES_ITS_INPUT = """
import os, sys, time
sys.stdin.readline()
os.close(0)
print("bye", file=sys.stderr, flush=True)
print('{"jsonrpc": "2.0", "id": 1, "result": {}}', flush=True)
time.sleep(0.3)
os._exit(3)
"""
"""Lives on for as long as it takes us to find out that it reads no more."""
NOBODY = "nobody"

caller: ContextVar[str] = ContextVar("caller", default=NOBODY)


class Peer:
    """Where the server's own messages go. `failing`: to somebody who cannot take them."""

    def __init__(self, *, failing: bool = False) -> None:
        self._failing = failing
        self.context = asyncio.get_running_loop().create_future()
        self.cancelled = asyncio.Event()
        self.lost: list[str] = []

    async def on_request(self, method: str, params: Any, attempt: Attempt) -> dict[str, Any]:
        self.context.set_result(caller.get())
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()
        return {}

    async def on_notification(self, method: str, params: Any) -> None:
        if self._failing:
            raise LookupError(method)


class Opened:
    """A channel that is open already."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def open(self) -> None:
        """Nothing is left to do."""


def over(channel: Any, peer: Peer) -> DuplexTransport:
    opened = cast("MessageChannel", Opened(channel))
    return DuplexTransport(opened, secrets=(), read_timeout=None, on_lost=peer.lost.append)


@asynccontextmanager
async def dispatching(channel: Any, peer: Peer) -> AsyncIterator[DuplexTransport]:
    dispatcher = over(channel, peer)
    async with asyncio.timeout(BOUND):
        await dispatcher.open(peer)
        try:
            yield dispatcher
        finally:
            await dispatcher.close()


@asynccontextmanager
async def talking(
    peer: Peer, *said: Mapping[str, Any], after: int, **settings: Any
) -> AsyncIterator[DuplexTransport]:
    """To a program that says this after so many requests; theirs are the ids 1, 2 and so on."""
    lines = "\n".join(json.dumps({"jsonrpc": "2.0", **each}) for each in said)
    async with (
        opened(SAYS, str(after), lines, **settings) as channel,
        dispatching(channel, peer) as dispatcher,
    ):
        yield dispatcher


def asking(
    dispatcher: DuplexTransport, method: str, headers: Mapping[str, str] | None = None
) -> "asyncio.Task[dict[str, Any]]":
    """A request by somebody whose name is its method."""

    async def ask() -> dict[str, Any]:
        caller.set(method)
        return await dispatcher.request(method, {}, Attempt(headers))

    return asyncio.create_task(ask())


# -- whose is it? -------------------------------------------------------------------------------


async def test_an_answer_may_name_its_request_as_a_text():
    async with talking(Peer(), {"id": "1", "result": {"n": 1}}, after=1) as dispatcher:
        assert await asking(dispatcher, "ping") == {"n": 1}


UNUSABLE_IDS = [{"id": None}, {}, {"id": True}, {"id": 1.0}, {"id": {"n": 1}}, {"id": [1]}]


@pytest.mark.requirement("P1")
@pytest.mark.parametrize("named", UNUSABLE_IDS, ids=str)
@pytest.mark.parametrize("count", [1, 2])
async def test_an_error_without_a_usable_id_answers_no_request(named: dict[str, Any], count: int):
    lost = {**named, "error": {"code": -32601, "message": "what?"}}
    answers = [{"id": number, "result": {"n": number}} for number in range(1, count + 1)]
    async with talking(Peer(), lost, *answers, after=count) as dispatcher:
        both = [asking(dispatcher, "ping") for _ in answers]
        assert await asyncio.gather(*both) == [answer["result"] for answer in answers]
        assert dispatcher.stray_output == "error -32601: what?"


async def test_a_message_that_was_too_large_and_may_be_anybodys_ends_the_pipe_for_all():
    peer, large = Peer(), {"result": {"text": "x" * 5000}}
    async with talking(peer, large, after=2, max_result_bytes=1024) as dispatcher:
        both = [asking(dispatcher, "ping") for _ in range(2)]
        for each in both:
            with pytest.raises(WireFault) as caught:
                await each
            assert caught.value.evidence.sent
        assert len(peer.lost) == 1


@pytest.mark.parametrize(
    ("under_way", "whose"),
    [
        (["tools/call"], "tools/call"),
        (["prompts/get"], "prompts/get"),
        (["resources/read"], "resources/read"),
        (["tools/call", "tools/list"], "tools/call"),
        (["tools/list"], NOBODY),
        (["tools/call", "prompts/get"], NOBODY),
    ],
    ids=lambda each: " and ".join(each) if isinstance(each, list) else "",
)
@pytest.mark.requirement("F3")
async def test_a_question_is_answered_in_the_context_of_whoever_it_is_about(
    under_way: list[str], whose: str
):
    peer, question = Peer(), {"id": "q", "method": "roots/list"}
    async with talking(peer, question, after=len(under_way)) as dispatcher:
        calls = [asking(dispatcher, method) for method in under_way]
        assert await peer.context == whose
        for call in calls:
            call.cancel()


# -- what outlives whom? ------------------------------------------------------------------------


async def test_what_answers_the_server_ends_with_the_pipe():
    peer = Peer()
    async with talking(peer, {"id": "q", "method": "roots/list"}, after=0):
        await peer.context
        assert not peer.cancelled.is_set()
    async with asyncio.timeout(BOUND):
        await peer.cancelled.wait()


async def test_a_failure_of_ours_to_read_on_is_the_end_and_is_told():
    peer = Peer(failing=True)
    async with talking(peer, {"method": "notifications/x"}, after=1) as dispatcher:
        with pytest.raises(WireFault) as caught:
            await asking(dispatcher, "ping")
        assert caught.value.evidence.sent
        assert len(peer.lost) == 1


async def test_what_could_not_be_written_any_more_says_why_and_does_so_soon():
    peer = Peer()
    async with opened(CLOSES_ITS_INPUT) as channel, dispatching(channel, peer) as dispatcher:
        await asking(dispatcher, "ping")
        began = asyncio.get_running_loop().time()
        with pytest.raises(WireFault) as caught:
            await asking(dispatcher, "ping")
        assert asyncio.get_running_loop().time() - began < 1.2
    evidence = caught.value.evidence
    assert (evidence.sent, evidence.exit_code, evidence.stderr) == (False, 3, "bye")


def posts(asked: list[Asked], method: str) -> list[Asked]:
    return [each for each in asked if each.verb == "POST" and each.message["method"] == method]


async def test_a_caller_who_leaves_takes_his_post_with_him_and_is_excused_in_his_own_name():
    seen: list[str] = []

    async def credentials(method: str, own: bool) -> Mapping[str, str]:
        seen.append(caller.get())
        return {}

    def hang(asked: Asked) -> bytes | None:
        return b"" if asked.message["method"] == "tools/call" else None

    async with (
        SseServer(post=hang) as server,
        channel_to(server.url, credentials=credentials) as channel,
    ):
        await channel.open()
        async with dispatching(channel, Peer()) as dispatcher:
            call = asking(dispatcher, "tools/call", {"x-desk": "seven"})
            await until(lambda: bool(posts(server.asked, "tools/call")), "the call")
            call.cancel()
            await until(lambda: bool(posts(server.left, "tools/call")), "the end of its POST")
            await until(lambda: bool(posts(server.asked, "notifications/cancelled")), "its excuse")
            (told,) = posts(server.asked, "notifications/cancelled")
            assert told.headers["x-desk"] == "seven"
    assert [name for name in seen if name != NOBODY] == ["tools/call"]


async def test_a_post_that_hangs_after_its_answer_holds_up_nobody_and_ends_with_the_pipe():
    def answer(asked: Asked) -> bytes:
        server.say(message(result_for(asked)))
        return b""

    server = SseServer(post=answer)
    async with server, channel_to(server.url) as channel:
        await channel.open()
        async with dispatching(channel, Peer()) as dispatcher:
            await asking(dispatcher, "tools/call")
            async with asyncio.timeout(1.0):
                await dispatcher.background_tasks.flush(BOUND)
            assert not posts(server.left, "tools/call")
        await until(lambda: bool(posts(server.left, "tools/call")), "the end of its POST")


async def test_of_reports_that_nobody_takes_the_newest_are_kept_and_the_answer_is():
    waiting = PendingRequest(
        RpcExchange(request_id=1, method="tools/call", attempt=Attempt(), headers={})
    )
    for number in range(30_000):
        waiting.put({"method": "notifications/progress", "params": {"progress": number}})
    waiting.put({"id": 1, "result": {}})
    reports: list[int] = []
    async with asyncio.timeout(BOUND):
        while "method" in (found := await waiting.take()):
            reports.append(found["params"]["progress"])
    assert found == {"id": 1, "result": {}}
    assert 1_000 < len(reports) <= 12_000
    assert reports == list(range(30_000 - len(reports), 30_000))


@pytest.mark.requirement("F5")
async def test_reports_that_nobody_takes_are_bounded_in_bytes():
    waiting = PendingRequest(
        RpcExchange(request_id=1, method="tools/call", attempt=Attempt(), headers={})
    )
    for number in range(50):
        said = {"progress": number, "message": "x" * 1_000_000}
        waiting.put({"method": "notifications/progress", "params": said})
    waiting.put({"id": 1, "result": {}})
    reports: list[int] = []
    async with asyncio.timeout(BOUND):
        while "method" in (found := await waiting.take()):
            reports.append(found["params"]["progress"])
    assert reports == list(range(42, 50))


async def test_what_is_no_report_is_never_dropped():
    waiting = PendingRequest(
        RpcExchange(request_id=1, method="tools/call", attempt=Attempt(), headers={})
    )
    for number in range(10_001):
        waiting.put({"id": 1, "result": {"number": number}})
    async with asyncio.timeout(BOUND):
        for number in range(10_001):
            assert (await waiting.take())["result"]["number"] == number


async def test_a_report_without_parameters_is_nobodys():
    async with talking(Peer(), {"method": "notifications/progress"}, after=0) as dispatcher:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asking(dispatcher, "ping"), 0.2)


async def test_after_the_end_nothing_is_sent_and_everybody_is_told_why():
    peer = Peer()
    async with (
        opened("import sys; sys.exit(4)") as channel,
        dispatching(channel, peer) as dispatcher,
    ):
        await until(lambda: bool(peer.lost), "the end")
        with pytest.raises(WireFault) as caught:
            await asking(dispatcher, "ping")
        await dispatcher.send_best_effort(b"{}", {}, None)
    evidence = caught.value.evidence
    assert (evidence.sent, evidence.exit_code) == (False, 4)


async def test_who_has_nothing_to_answer_can_be_told_to_stop_all_the_same():
    peer = Peer()
    async with opened("import sys; sys.stdin.read()") as channel:
        over(channel, peer).stop_replying()
        async with dispatching(channel, peer) as running:
            running.stop_replying()
    assert not peer.cancelled.is_set()


# -- what was told stays true -------------------------------------------------------------------


class Ending:
    """A channel that brings one answer, and then ends when it is told to."""

    def __init__(self, channel: SseChannel) -> None:
        self._channel, self._answers = channel, 1
        self.end = asyncio.get_running_loop().create_future()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def receive(self) -> Any:
        if self._answers:
            self._answers -= 1
            return await self._channel.receive()
        await self.end
        return None


@pytest.mark.parametrize("turns", range(-6, 6))
async def test_what_was_told_as_not_sent_does_not_leave_afterwards(turns: int):
    """[P1] The stream ends so many turns of the loop before or after a POST has its headers, and
    so at every point of its way to the socket.
    """
    asked, may_write = asyncio.Event(), asyncio.Event()
    may_write.set()

    async def credentials(method: str, own: bool) -> Mapping[str, str]:
        asked.set()
        await may_write.wait()
        return {}

    async with SseServer() as server, channel_to(server.url, credentials=credentials) as channel:
        await channel.open()
        ending = Ending(channel)
        async with dispatching(ending, Peer()) as dispatcher:
            await asking(dispatcher, "first")
            asked.clear()
            may_write.clear()
            told = asking(dispatcher, "last")
            await asked.wait()
            steps = [may_write.set, lambda: ending.end.set_result(None)]
            for step in steps if turns >= 0 else reversed(steps):
                step()
                for _ in range(turns if turns >= 0 else -turns - 1):
                    await asyncio.sleep(0)
            with pytest.raises(WireFault) as caught:
                await told
            # On the same connections, if there still are any: what had left arrives before.
            await channel.send(PING, Attempt(), {})
        assert caught.value.evidence.sent or not posts(server.asked, "last")
