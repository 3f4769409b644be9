"""Every legal shape of an HTTP answer is understood, and what errors say over HTTP is kept."""

import json
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest

from tests.engine.helpers_wire import (
    TEXT,
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
from toolkeep import (
    AuthNeeded,
    CallNotDelivered,
    CallOutcomeUnknown,
    CallRejected,
    Client,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep.errors import Delivery, FailureKind
from toolkeep.events import Progress
from toolkeep.testing import ScriptedServer

SSE = "text/event-stream"


def note(text: str) -> bytes:
    params = {"level": "info", "data": text}
    return json.dumps(
        {"jsonrpc": "2.0", "method": "notifications/message", "params": params}
    ).encode()


def event(data: bytes, *fields: bytes, end: bytes = b"\n") -> bytes:
    lines = (*fields, *(b"data: " + line for line in data.split(b"\n")))
    return end.join((*lines, b"", b""))


def pretty(asked: Asked) -> bytes:
    return json.dumps(json.loads(result_for(asked)), indent=2).encode()


STREAMS: dict[str, Callable[[Asked], bytes]] = {
    "plain": lambda asked: event(result_for(asked)),
    "no space after the colon": lambda asked: b"data:" + result_for(asked) + b"\n\n",
    "notifications before": lambda asked: (
        event(note("one")) + event(note("two")) + event(result_for(asked))
    ),
    "data in many lines": lambda asked: event(pretty(asked)),
    "crlf": lambda asked: event(pretty(asked), b"event: message", end=b"\r\n"),
    "cr": lambda asked: event(pretty(asked), b"event: message", end=b"\r"),
    "comments": lambda asked: b": ping\n\n: ping\n\n" + event(result_for(asked), b": more"),
    "ids and retry": lambda asked: event(result_for(asked), b"id: 7", b"retry: 10"),
    "an empty first event": lambda asked: b"id: 1\ndata:\n\n" + event(result_for(asked), b"id: 2"),
    "a byte-order mark": lambda asked: b"\xef\xbb\xbf" + event(result_for(asked)),
    "an event of another name": lambda asked: event(result_for(asked), b"event: response"),
    "an answer to somebody else": lambda asked: (
        event(result_for(asked, id=4711)) + event(result_for(asked))
    ),
    "an id as text": lambda asked: event(result_for(asked, id=str(asked.id))),
    "a batch": lambda asked: event(b"[" + note("one") + b"," + result_for(asked) + b"]"),
    "more after the answer": lambda asked: event(result_for(asked)) + event(note("late")),
}


@pytest.mark.parametrize("shape", STREAMS.values(), ids=STREAMS.keys())
@pytest.mark.requirement("S13")
async def test_every_shape_of_stream_brings_its_answer(shape: Callable[[Asked], bytes]) -> None:
    async with (
        RawServer(lambda asked: http(shape(asked), kind=SSE)) as server,
        client_of(server, mode="legacy") as client,
    ):
        for _ in range(2):
            assert (await client.call_tool("any")).text == "hello"
        assert server.accepted == 1


@pytest.mark.parametrize(
    ("method", "key"), [("ping", "result"), ("sampling/createMessage", "error"), ("odd", "error")]
)
@pytest.mark.requirement("S13")
async def test_a_request_of_the_servers_before_the_answer_gets_an_answer_of_its_own(
    method: str, key: str
) -> None:
    request = {"jsonrpc": "2.0", "id": "s1", "method": method, "params": {}}
    stream = event(json.dumps(request).encode())
    async with (
        RawServer(lambda asked: http(stream + event(result_for(asked)), kind=SSE)) as server,
        client_of(server, mode="legacy") as client,
    ):
        assert (await client.call_tool("any")).text == "hello"
        await client.aclose()
    (answer,) = [asked.message for asked in server.asked if asked.id == "s1"]
    assert set(answer) == {"jsonrpc", "id", key}


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.requirement("S13")
async def test_a_stream_cut_into_small_chunks_is_the_same_stream(size: int) -> None:
    def answer(asked: Asked) -> bytes:
        body = b"\xef\xbb\xbf" + event(note("äöü"), end=b"\r\n") + event(pretty(asked), end=b"\r\n")
        parts = [body[start : start + size] for start in range(0, len(body), size)]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        return head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"

    async with RawServer(answer) as server, client_of(server, mode="legacy") as client:
        assert (await client.call_tool("any")).text == "hello"


BODIES: dict[str, Callable[[Asked], bytes]] = {
    "a charset": lambda asked: http(result_for(asked), kind="application/json; charset=utf-8"),
    "capitals": lambda asked: http(result_for(asked), kind="Application/JSON"),
    "an id as text": lambda asked: http(result_for(asked, id=str(asked.id))),
    "a batch": lambda asked: http(b"[" + note("one") + b"," + result_for(asked) + b"]"),
    "white space": lambda asked: http(b"\r\n " + pretty(asked) + b"\n"),
    "another 2xx": lambda asked: http(result_for(asked), status="201 Created"),
    "until the end": lambda asked: (
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\n\r\n"
        + result_for(asked)
    ),
    "a null error": lambda asked: http(result_for(asked)[:-1] + b', "error": null}'),
}


@pytest.mark.parametrize("shape", BODIES.values(), ids=BODIES.keys())
@pytest.mark.requirement("S13")
async def test_every_shape_of_body_brings_its_answer(shape: Callable[[Asked], bytes]) -> None:
    async with RawServer(shape) as server, client_of(server, mode="legacy") as client:
        for _ in range(2):
            assert (await client.call_tool("any")).text == "hello"


@both_eras
@pytest.mark.requirement("S13", "L2")
async def test_notifications_before_the_answer_reach_their_call(era: Era) -> None:
    async with (
        ScriptedServer.local(era=era, encoding="sse") as server,
        client_of(server, mode=era) as client,
    ):
        await server.script(when(tool="steps", crlf=True, event_ids=True))
        async with client.stream("steps", {"count": 3}) as call:
            reports = [event async for event in call if isinstance(event, Progress)]
            assert (await call.result()).text == "3 steps"
    assert [report.progress for report in reports] == [1, 2, 3]


@both_encodings
@pytest.mark.requirement("S13")
async def test_a_server_without_session_ids_works(encoding: Encoding) -> None:
    async with (
        ScriptedServer.local(era="legacy", encoding=encoding, sessions=False) as server,
        client_of(server) as client,
    ):
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert client.session_id is None
        assert client.is_initialized
        await client.aclose()
        seen = await server.requests()
        assert all(record.session_id is None for record in seen)
        assert "DELETE" not in await methods(server)


Expected = type[ToolkeepError]
CHALLENGE = 'Bearer realm="kit", error="invalid_token"'
STATUSES: list[tuple[int, Expected, Delivery, FailureKind]] = [
    (401, AuthNeeded, Delivery.REFUSED, FailureKind.UNAUTHORIZED),
    (403, AuthNeeded, Delivery.REFUSED, FailureKind.UNAUTHORIZED),
    (429, CallNotDelivered, Delivery.REFUSED, FailureKind.THROTTLED),
    (500, CallOutcomeUnknown, Delivery.UNKNOWN, FailureKind.BROKEN),
    (502, CallOutcomeUnknown, Delivery.UNKNOWN, FailureKind.BROKEN),
    (503, CallNotDelivered, Delivery.REFUSED, FailureKind.THROTTLED),
    (504, CallOutcomeUnknown, Delivery.UNKNOWN, FailureKind.BROKEN),
]


@both_eras
@both_encodings
@pytest.mark.parametrize(("status", "kind", "delivery", "failure"), STATUSES)
@pytest.mark.requirement("S15", "P1")
async def test_a_failed_call_keeps_what_http_said(
    era: Era,
    encoding: Encoding,
    status: int,
    kind: Expected,
    delivery: Delivery,
    failure: FailureKind,
) -> None:
    headers = {"retry-after": "120", "www-authenticate": CHALLENGE}
    async with (
        ScriptedServer.local(era=era, encoding=encoding) as server,
        client_of(server, mode=era) as client,
    ):
        await client.connect()
        await server.script(when(tool="echo", status=status, headers=headers, body="<html>"))
        with pytest.raises(kind) as caught:
            await client.call_tool("echo", {"text": "hi"})
        error = caught.value
        assert type(error) is kind
        assert (error.status, error.retry_after, error.www_authenticate) == (
            *(status, 120.0, CHALLENGE),
        )
        assert error.delivery is delivery
        assert error.failure is not None
        assert error.failure.kind is failure
        await server.clear()
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
@pytest.mark.requirement("S15")
async def test_a_failed_opening_keeps_what_http_said(status: int) -> None:
    headers = {"retry-after": "120", "www-authenticate": CHALLENGE}
    async with ScriptedServer.local() as server, client_of(server, max_retries=0) as client:
        await server.script(when(status=status, headers=headers))
        with pytest.raises(AuthNeeded if status < 429 else ServerUnavailable) as caught:
            await client.call_tool("echo", {"text": "hi"})
        error = caught.value
        assert (error.status, error.retry_after) == (status, 120.0)
        assert error.www_authenticate == CHALLENGE
        assert error.delivery is Delivery.NOT_SENT


@pytest.mark.requirement("S15")
async def test_a_retry_after_that_is_a_date_becomes_seconds() -> None:
    headers = {"retry-after": formatdate(time.time() + 100, usegmt=True)}
    async with ScriptedServer.local() as server, client_of(server) as client:
        await client.connect()
        await server.script(when(tool="echo", status=503, headers=headers))
        with pytest.raises(CallNotDelivered) as caught:
            await client.call_tool("echo", {"text": "hi"})
        assert caught.value.retry_after == pytest.approx(100, abs=3)


@pytest.mark.requirement("S15")
async def test_every_challenge_is_kept_when_there_are_several() -> None:
    lines = ("WWW-Authenticate: Bearer realm=a", "WWW-Authenticate: DPoP algs=ES256")
    async with (
        RawServer(lambda asked: http(b"", *lines, status="401 Unauthorized")) as server,
        client_of(server, mode="legacy") as client,
    ):
        with pytest.raises(AuthNeeded) as caught:
            await client.call_tool("any")
    assert "Bearer" in (caught.value.www_authenticate or "")
    assert "DPoP" in (caught.value.www_authenticate or "")


@both_eras
@both_encodings
@pytest.mark.parametrize("status", [None, 400, 404, 422, 500])
@pytest.mark.requirement("S15")
async def test_an_error_that_answers_the_request_is_an_answer_whatever_the_status(
    era: Era, encoding: Encoding, status: int | None
) -> None:
    refused: dict[str, Any] = {"code": -32601, "message": "no such thing", "data": {"a": [1]}}
    async with (
        ScriptedServer.local(era=era, encoding=encoding) as server,
        client_of(server, mode=era) as client,
    ):
        await client.connect()
        await server.script(when(tool="echo", status=status, error=refused))
        with pytest.raises(CallRejected) as caught:
            await client.call_tool("echo", {"text": "hi"})
        assert (caught.value.code, caught.value.data) == (-32601, {"a": [1]})
        assert caught.value.status == (status or 200)
        assert caught.value.delivery is Delivery.ANSWERED
        assert caught.value.attempts == 1


@both_encodings
@pytest.mark.requirement("P7")
async def test_half_a_character_costs_that_character_alone(encoding: Encoding) -> None:
    def cut(asked: Asked) -> bytes:
        found = json.loads(result_for(asked))
        found["result"]["content"] = [{"type": "text", "text": "ok \ud83d"}]
        body = json.dumps(found).encode()
        return http(event(body), kind=SSE) if encoding == "sse" else http(body)

    async with RawServer(cut) as server, client_of(server, mode="legacy") as client:
        assert (await client.call_tool("any")).text == "ok \ufffd"


# -- errors that name no request ----------------------------------------------------------------

UNUSABLE_IDS = [{"id": None}, {}, {"id": True}, {"id": 0.5}, {"id": {"n": 1}}, {"id": []}]


def complaint(named: dict[str, Any]) -> bytes:
    error = {"code": -32601, "message": "unknown method"}
    return json.dumps({"jsonrpc": "2.0", **named, "error": error}).encode()


@pytest.mark.requirement("P1")
@pytest.mark.parametrize("named", UNUSABLE_IDS, ids=str)
@both_encodings
async def test_an_error_without_an_id_does_not_hide_the_answer_that_follows(
    named: dict[str, Any], encoding: Encoding
) -> None:
    def answer(asked: Asked) -> bytes:
        if encoding == "json":
            return http(b"[" + complaint(named) + b"," + result_for(asked) + b"]")
        return http(event(complaint(named)) + event(result_for(asked)), kind=SSE)

    async with RawServer(answer) as server, client_of(server, mode="legacy") as client:
        assert (await client.call_tool("any")).text == "hello"


@pytest.mark.requirement("P1")
@pytest.mark.parametrize("named", UNUSABLE_IDS, ids=str)
@both_encodings
async def test_an_error_without_an_id_is_the_answer_where_nothing_else_can_follow(
    named: dict[str, Any], encoding: Encoding
) -> None:
    def answer(asked: Asked) -> bytes:
        if encoding == "json":
            return http(complaint(named))
        return http(event(note("one")) + event(complaint(named)), kind=SSE)

    async with RawServer(answer) as server, client_of(server, mode="legacy") as client:
        with pytest.raises(CallRejected) as caught:
            await client.call_tool("any")
        assert (caught.value.code, caught.value.delivery) == (-32601, Delivery.ANSWERED)


@pytest.mark.requirement("P1", "P8")
@pytest.mark.parametrize("resumed", [True, False])
async def test_an_error_without_an_id_before_a_break_is_not_the_answer(resumed: bool) -> None:
    """A stream with event ids is resumed first; one that is cut leaves the outcome unknown."""
    calls: list[Asked] = []

    def answer(asked: Asked) -> bytes:
        if asked.verb == "GET":
            return http(event(result_for(calls[0])), kind=SSE)
        if asked.message.get("method") != "tools/call":
            return handshake(asked)
        calls.append(asked)
        if resumed:
            return http(event(complaint({"id": None}), b"id: 1", b"retry: 1"), kind=SSE)
        body = http(event(complaint({"id": None})) + event(result_for(asked)), kind=SSE)
        return body[:-10].replace(b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK\r\nconnection: close")

    async with (
        RawServer(answer, only=True) as server,
        client_of(server, mode="legacy", max_retries=0) as client,
    ):
        if resumed:
            assert (await client.call_tool("any")).text == "hello"
        else:
            with pytest.raises(CallOutcomeUnknown):
                await client.call_tool("any")
    assert len(calls) == 1


@pytest.mark.requirement("P1")
async def test_a_result_without_an_id_is_never_the_answer() -> None:
    def answer(asked: Asked) -> bytes:
        body = {"jsonrpc": "2.0", "id": None, "result": TEXT, "error": None}
        return http(json.dumps(body).encode())

    async with RawServer(answer) as server, client_of(server, mode="legacy") as client:
        with pytest.raises(CallOutcomeUnknown):
            await client.call_tool("any")


# -- errors of which a part is missing ----------------------------------------------------------


def failed(asked: Asked, text: str = "card declined") -> bytes:
    error = {"code": -32000, "message": text}
    return json.dumps({"jsonrpc": "2.0", "id": asked.id, "error": error}).encode()


def cut(body: bytes, status: str) -> bytes:
    whole = http(body, "connection: close", status=status)
    return whole[: -len(body) // 2]


def until_closed(body: bytes, status: str) -> bytes:
    """As of HTTP/1.0: the end of the connection is the end of the body."""
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", "connection: close", "", ""]
    return "\r\n".join(lines).encode() + body[: len(body) // 2]


MUTILATED: dict[str, Callable[[Asked, str], bytes]] = {
    "cut": lambda asked, status: cut(failed(asked), status),
    "without an end": lambda asked, status: until_closed(failed(asked), status),
    "too large": lambda asked, status: http(failed(asked, "x" * 100_000), status=status),
    "a stream": lambda asked, status: http(event(failed(asked)), status=status, kind=SSE),
}


def with_session(answer: Callable[[Asked], bytes]) -> Callable[[Asked], bytes]:
    def answered(asked: Asked) -> bytes:
        if asked.message.get("method") == "tools/call":
            return answer(asked)
        found = handshake(asked)
        return found.replace(b"\r\n", b"\r\nmcp-session-id: one\r\n", 1)

    return answered


@pytest.mark.requirement("P1", "P2", "S5")
@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "422 Unprocessable"])
@pytest.mark.parametrize("shape", MUTILATED)
async def test_an_error_of_which_a_part_is_missing_may_be_that_of_a_tool_that_ran(
    shape: str, status: str
) -> None:
    answer = with_session(lambda asked: MUTILATED[shape](asked, status))
    async with RawServer(answer, only=True) as one, RawServer(answer, only=True) as two:
        client = Client({"name": "raw", "urls": [one.url, two.url], "mode": "legacy"})
        async with client:
            with pytest.raises(CallOutcomeUnknown) as caught:
                await client.call_tool("pay")
        assert (caught.value.attempts, caught.value.status) == (1, int(status[:3]))
        calls = [asked for asked in one.asked + two.asked if "tools/call" in str(asked.message)]
        assert len(calls) == 1
