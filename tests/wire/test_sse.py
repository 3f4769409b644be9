"""HTTP+SSE of 2024-11-05: the channel against a server that speaks in bytes."""

import asyncio
import json

import pytest

from tests.engine.helpers_wire import Asked, http, result_for
from tests.wire.helpers_sse import ENDPOINT, PING, PONG, SESSION, SseServer, channel_to, message
from toolkeep._rules.classify import Evidence, FaultKind, classify
from toolkeep._transport.base import Attempt, OversizedMessage, WireFault
from toolkeep.errors import Delivery, FailureKind


async def fault_of(server: SseServer, *, then_send: bool = False) -> Evidence:
    async with server, channel_to(server.url) as channel:
        with pytest.raises(WireFault) as caught:
            await channel.open()
            if then_send:
                await channel.send(PING, Attempt(), {})
        return caught.value.evidence


# -- the channel by itself -------------------------------------------------------------------------


async def test_messages_go_by_post_and_come_on_the_stream():
    async with SseServer() as server, channel_to(server.url) as channel:
        await channel.open()
        assert channel.session_id == SESSION
        attempt = Attempt({"x-call": "1"})
        await channel.send(PING, attempt, {"mcp-protocol-version": "2024-11-05"})
        assert attempt.sent
        assert await channel.receive() == [json.loads(result_for(server.asked[1]))]
        opening, ping = server.asked
        assert opening.headers["accept"] == "text/event-stream"
        assert "content-type" not in opening.headers
        assert ping.target == f"/messages?session_id={SESSION}"
        assert ping.headers["x-call"] == "1"
        assert "x-call" not in opening.headers
        for asked in server.asked:
            assert asked.headers["authorization"] == "Bearer of-good-news"
            assert asked.headers["x-tenant"] == "blue"


@pytest.mark.requirement("S13")
async def test_a_stream_may_come_in_any_shape_that_server_sent_events_allow():
    body = json.dumps(PONG, indent=1).replace("\n", "\r\ndata: ").encode()
    first = b": hello\r\n\r\nevent: news\ndata: 1\n\n" + ENDPOINT + b"id: 4\r\ndata: " + body
    async with SseServer(first=first) as server, channel_to(server.url) as channel:
        await channel.open()
        server.say(b"\r\n\r\n: ping\n\ndata:\n\nevent: other\ndata: {}\n\ndata: no json\n\n")
        assert await channel.receive() == [PONG]
        server.say(message(json.dumps([PONG, PONG]).encode())[:20])
        server.say(message(json.dumps([PONG, PONG]).encode())[20:])
        assert await channel.receive() == [PONG, PONG]


async def test_what_comes_together_with_the_endpoint_is_a_message_like_any_other():
    async with (
        SseServer(first=ENDPOINT + message(PONG)) as server,
        channel_to(server.url) as channel,
    ):
        await channel.open()
        assert await channel.receive() == [PONG]


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://127.0.0.1:9/messages",
        "https://127.0.0.1/m",
        "//elsewhere/m",
        "",
        "http://[",
        "data:,",
    ],
)
async def test_an_endpoint_outside_of_the_origin_is_not_trusted(endpoint: str):
    server = SseServer(first=f"event: endpoint\ndata: {endpoint}\n\n".encode())
    assert (await fault_of(server)).kind is FaultKind.UNREADABLE
    assert [asked.verb for asked in server.asked] == ["GET"]


@pytest.mark.parametrize(
    ("endpoint", "target", "session"),
    [
        ("messages?sessionId=abc", "/messages?sessionId=abc", "abc"),
        ("/m%2Fx/?a=b%20c", "/m%2Fx/?a=b%20c", None),
        ("?sessionId=abc", "/sse?sessionId=abc", "abc"),
    ],
)
async def test_an_endpoint_is_resolved_against_the_url(
    endpoint: str, target: str, session: str | None
):
    first = f"event: endpoint\ndata: {endpoint}\n\n".encode()
    async with SseServer(first=first) as server, channel_to(server.url) as channel:
        await channel.open()
        assert channel.session_id == session
        await channel.send(PING, Attempt(), {})
        assert server.asked[-1].target == target


async def test_a_moved_endpoint_is_followed_and_moves_nothing_else():
    def post(asked: Asked) -> bytes | None:
        moved = http(b"", "location: /moved", status="308 Permanent Redirect")
        return None if asked.target == "/moved" else moved

    async with SseServer(post=post) as server, channel_to(server.url) as channel:
        await channel.open()
        for _ in range(2):
            await channel.send(PING, Attempt(), {})
            assert await channel.receive()
        endpoint = f"/messages?session_id={SESSION}"
        assert [a.target for a in server.asked] == ["/sse", *(endpoint, "/moved") * 2]


@pytest.mark.requirement("S15")
@pytest.mark.parametrize("to", ["GET", "POST"])
async def test_a_refusal_keeps_its_status_and_headers_and_quotes_no_secret(to: str):
    more = ("www-authenticate: Bearer realm=x", "retry-after: 7")
    said = f"no: Bearer of-good-news, {SESSION}".encode()
    answer = http(said, *more, status="401 Unauthorized", kind="text/plain")
    server = SseServer(get=answer) if to == "GET" else SseServer(post=lambda asked: answer)
    evidence = await fault_of(server, then_send=to == "POST")
    assert evidence.status == 401
    assert evidence.headers == {"www-authenticate": "Bearer realm=x", "retry-after": "7"}
    assert evidence.text
    assert "of-good-news" not in evidence.text
    assert to == "GET" or SESSION not in evidence.text
    assert classify(evidence).kind is FailureKind.UNAUTHORIZED


async def test_a_message_that_was_taken_does_not_wait_for_the_rest_of_the_answer():
    half = b"HTTP/1.1 202 Accepted\r\ncontent-length: 9\r\n\r\nAcc"
    async with SseServer(post=lambda asked: half) as server, channel_to(server.url) as channel:
        await channel.open()
        attempt = Attempt()
        async with asyncio.timeout(2):
            await channel.send(PING, attempt, {})
        assert attempt.sent


async def test_a_404_to_a_post_is_a_lost_session_and_to_the_get_is_not():
    gone = http(b"Could not find session", status="404 Not Found", kind="text/plain")
    lost = await fault_of(SseServer(post=lambda asked: gone), then_send=True)
    assert classify(lost).kind is FailureKind.SESSION_LOST
    assert classify(lost).delivery is Delivery.REFUSED
    assert classify(await fault_of(SseServer(get=gone))).kind is FailureKind.REFUSED


@pytest.mark.parametrize(
    ("get", "trouble"),
    [
        (http(b"{}"), FaultKind.UNREADABLE),
        (http(b"", status="204 No Content"), FaultKind.UNREADABLE),
        (http(b": hi\n\n", kind="text/event-stream"), FaultKind.BROKEN),
        (http(b"data: " + b"x" * 20_000, kind="text/event-stream"), FaultKind.UNREADABLE),
        (http(b"", "location: http://127.0.0.1:9/", status="307 Go"), FaultKind.UNREADABLE),
    ],
)
async def test_what_is_no_stream_with_an_endpoint_does_not_open(get: bytes, trouble: FaultKind):
    assert (await fault_of(SseServer(get=get))).kind is trouble


@pytest.mark.parametrize("broken", [False, True])
async def test_the_streams_end_is_the_channels_end(broken: bool):
    async with SseServer() as server, channel_to(server.url) as channel:
        await channel.open()
        server.say(message(PONG))
        assert await channel.receive() == [PONG]
        server.end_stream(broken=broken)
        assert await channel.receive() is None
        assert (await channel.close_reason()).detail
        attempt = Attempt()
        with pytest.raises(WireFault):
            await channel.send(PING, attempt, {})
        assert not attempt.sent


async def test_a_message_over_the_limit_is_reported_and_the_next_is_read():
    async with SseServer() as server, channel_to(server.url, limit=1000) as channel:
        await channel.open()
        server.say(message(PONG) + message({**PONG, "result": {"text": "x" * 2000}}))
        server.say(message(PONG))
        found = [*(await channel.receive() or [])]
        while len(found) < 3:
            found += await channel.receive() or []
        assert found.count(PONG) == 2
        assert OversizedMessage(PONG["id"], 1000) in found


async def test_a_stream_may_be_silent_for_longer_than_an_answer():
    async with SseServer() as server, channel_to(server.url, timeouts={"read": 0.05}) as channel:
        await channel.open()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(channel.receive(), 0.3)
        server.say(message(PONG))
        assert await channel.receive() == [PONG]


async def test_a_stream_that_was_never_opened_has_ended():
    async with SseServer() as server, channel_to(server.url) as channel:
        assert await channel.receive() is None
        assert (await channel.close_reason()).detail


async def test_close_wakes_whoever_receives_and_frees_the_socket():
    async with SseServer() as server, channel_to(server.url) as channel:
        await channel.open()
        receiving = asyncio.ensure_future(channel.receive())
        await asyncio.sleep(0)
        await channel.close()
        assert await receiving is None
