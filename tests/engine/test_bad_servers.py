"""Servers that do not keep to the protocol: a typed error in time, and a client that goes on."""

import asyncio
import gzip
import json
import time
import tracemalloc
from collections.abc import Callable
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
    http,
    result_for,
    when,
)
from toolkeep import (
    CallError,
    CallOutcomeUnknown,
    CallTimedOut,
    Client,
    InvalidResult,
    RemoteProtocolError,
    ServerUnavailable,
)
from toolkeep.errors import Delivery, FailureKind
from toolkeep.testing import FaultProxy, ScriptedServer

SSE = "text/event-stream"
HTML = "<!doctype html><title>Welcome to nginx</title>"


async def failure_of(client: Client, tool: str = "echo", **options: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        await client.call_tool(tool, {"text": "hi"}, **options)
    return caught.value


async def still_works(client: Client) -> None:
    assert (await client.call_tool("echo", {"text": "on"})).text == "on"


UNREADABLE: dict[str, dict[str, Any]] = {
    "html": {"body": HTML, "content_type": "text/html"},
    "html with the right type": {"body": HTML, "content_type": "application/json"},
    "half a json": {"body": '{"jsonrpc":"2.0","id":1,"resu'},
    "an empty body": {"body": "", "content_type": "application/json"},
    "a number": {"body": "17", "content_type": "application/json"},
    "a text": {"body": '"fine"', "content_type": "application/json"},
    "an array of numbers": {"body": "[1, 2]"},
    "an empty array": {"body": "[]"},
    "an answer to another id": {"body": '{"jsonrpc":"2.0","id":4711,"result":{}}'},
    "a notification": {"body": '{"jsonrpc":"2.0","method":"notifications/message"}'},
    "the wrong type": {"body": "{}", "content_type": "application/xml"},
    "no type": {"body": "{}", "content_type": ""},
    "202": {"status": 202, "run": False, "body": ""},
    "204": {"status": 204, "run": False, "body": ""},
    "an event that is no json": {"body": "data: hello\n\n", "content_type": SSE},
    "an event with half a json": {"body": 'data: {"id":\n\n', "content_type": SSE},
    "an event with a number": {"body": "data: 7\n\n", "content_type": SSE},
}


@both_eras
@pytest.mark.parametrize("do", UNREADABLE.values(), ids=UNREADABLE.keys())
@pytest.mark.requirement("S13", "P1")
async def test_an_answer_that_is_none_fails_that_call_alone(era: Era, do: dict[str, Any]) -> None:
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await client.connect()
        await server.script(when(tool="echo", times=1, **do))
        error = await failure_of(client)
        assert type(error) is CallOutcomeUnknown
        assert error.failure is not None
        assert error.failure.kind is FailureKind.UNREADABLE
        assert error.delivery is Delivery.UNKNOWN
        assert error.attempts == 1
        await still_works(client)
        assert await server.connections() <= 2


@pytest.mark.parametrize("mode", ["auto", "legacy", "modern"])
@pytest.mark.parametrize(
    "do",
    [
        {"body": HTML, "content_type": "text/html", "status": 200},
        {"body": '{"jsonrpc":', "status": 200},
        {"body": "", "status": 202},
        {"body": HTML, "content_type": "text/html", "status": 404},
        {"body": "", "status": 404},
        {"body": "", "status": 405},
    ],
)
@pytest.mark.requirement("S12")
async def test_an_address_without_an_endpoint_is_told_apart_from_an_outage(
    mode: str, do: dict[str, Any]
) -> None:
    async with ScriptedServer.local() as server, client_of(server, mode=mode) as client:
        await server.script(when(**do))
        with pytest.raises(RemoteProtocolError) as caught:
            await client.call_tool("echo", {"text": "hi"})
        assert caught.value.delivery is Delivery.NOT_SENT
        assert not client.is_initialized
        await server.clear()
        await still_works(client)


RAW: dict[str, Callable[[Asked], bytes]] = {
    "a good answer of the wrong type": lambda asked: http(result_for(asked), kind="text/html"),
    "a good answer of no type": lambda asked: http(result_for(asked), kind=""),
    "invalid utf-8": lambda asked: http(result_for(asked).replace(b"hello", b"\xff\xfe")),
    "a broken gzip": lambda asked: http(b"not gzip", "content-encoding: gzip"),
    "an unknown encoding": lambda asked: http(b"\0" * 20, "content-encoding: rot13"),
    "no http": lambda asked: b"220 smtp.example.com ESMTP\r\n\r\n",
    "bytes of noise": lambda asked: bytes(range(256)),
    "a status that is no number": lambda asked: b"HTTP/1.1 OK 200\r\n\r\n",
    "an endless header": lambda asked: b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
    "a length that is no number": lambda asked: (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: x\r\n\r\n{}"
    ),
    "chunks of no length": lambda asked: (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\nxyz\r\n"
    ),
    "nothing at all": lambda asked: b"",
    "deep json": lambda asked: http(b'{"a":' * 100_000),
}


@pytest.mark.parametrize("answer", RAW.values(), ids=RAW.keys())
@pytest.mark.requirement("P1", "S14")
async def test_noise_instead_of_an_answer_fails_that_call_alone(
    answer: Callable[[Asked], bytes],
) -> None:
    answers = iter([answer, lambda asked: http(result_for(asked))])
    async with (
        RawServer(lambda asked: next(answers)(asked)) as server,
        client_of(server, mode="legacy") as client,
    ):
        await client.connect()
        error = await failure_of(client, timeout=5)
        assert type(error) is CallOutcomeUnknown
        assert error.delivery is Delivery.UNKNOWN
        assert (await client.call_tool("echo", {"text": "on"})).text == "hello"


@pytest.mark.parametrize("answer", [RAW["no http"], RAW["nothing at all"]])
async def test_an_opening_that_meets_noise_is_an_outage(answer: Callable[[Asked], bytes]) -> None:
    async with RawServer(answer, only=True) as server, client_of(server, max_retries=1) as client:
        with pytest.raises(ServerUnavailable) as caught:
            await client.connect()
        assert caught.value.delivery is Delivery.NOT_SENT
        assert len(server.asked) == 2


MIB = 1024 * 1024


@both_eras
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@pytest.mark.requirement("P11")
async def test_a_body_of_100_mb_is_refused_in_bounded_memory(era: Era, framing: Any) -> None:
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await client.connect()
        await server.script(when(tool="echo", times=1, body_bytes=100 * MIB, framing=framing))
        tracemalloc.start()
        try:
            began = time.monotonic()
            error = await failure_of(client, timeout=10)
            took, (_, peak) = time.monotonic() - began, tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert type(error) is CallOutcomeUnknown
        assert error.failure is not None
        assert error.failure.kind is FailureKind.UNREADABLE
        assert took < 5
        announced = framing == "length"
        assert peak < (8 * MIB if announced else 2 * client.spec.max_result_bytes)
        await still_works(client)


@pytest.mark.requirement("P11")
async def test_a_body_that_unpacks_into_too_much_is_refused_in_bounded_memory() -> None:
    bomb = gzip.compress(b" " * (200 * MIB), compresslevel=9)
    answers = iter([lambda asked: http(bomb, "content-encoding: gzip"), None])

    def answer(asked: Asked) -> bytes:
        shape = next(answers)
        return shape(asked) if shape else http(result_for(asked))

    async with (
        RawServer(answer) as server,
        client_of(server, mode="legacy", max_result_bytes=MIB) as client,
    ):
        await client.connect()
        tracemalloc.start()
        try:
            error = await failure_of(client, timeout=10)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert type(error) is CallOutcomeUnknown
        assert peak < 100 * MIB
        assert (await client.call_tool("echo")).text == "hello"


@both_eras
@both_encodings
@pytest.mark.requirement("P11")
async def test_a_result_over_the_limit_is_refused_and_one_under_it_is_not(
    era: Era, encoding: Encoding
) -> None:
    async with (
        ScriptedServer.local(era=era, encoding=encoding) as server,
        client_of(server, mode=era, max_result_bytes=100_000) as client,
    ):
        assert len((await client.call_tool("big", {"bytes": 90_000})).text) == 90_000
        with pytest.raises(CallOutcomeUnknown) as caught:
            await client.call_tool("big", {"bytes": 100_000})
        assert caught.value.failure is not None
        assert caught.value.failure.kind is FailureKind.UNREADABLE
        await still_works(client)


@both_eras
@pytest.mark.parametrize("do", [{"endless": True, "endless_gap": 0.01}, {"hang": True}])
@pytest.mark.requirement("P3", "P1")
async def test_an_answer_that_never_comes_ends_with_the_deadline(
    era: Era, do: dict[str, Any]
) -> None:
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await client.connect()
        await server.script(when(tool="echo", times=1, **do))
        began = time.monotonic()
        error = await failure_of(client, timeout=0.3)
        assert 0.25 < time.monotonic() - began < 2
        assert type(error) is CallTimedOut
        assert isinstance(error, TimeoutError)
        assert error.delivery is Delivery.UNKNOWN
        await still_works(client)


@pytest.mark.parametrize("mode", ["auto", "legacy", "modern"])
@pytest.mark.requirement("P1", "S12")
async def test_a_server_that_accepts_and_says_nothing_is_unavailable_in_time(mode: str) -> None:
    async with (
        ScriptedServer.local() as server,
        FaultProxy.to("127.0.0.1", server.port) as proxy,
        client_of(
            server, url=proxy.url(), mode=mode, timeouts={"connect": 0.3}, max_retries=0
        ) as client,
    ):
        proxy.stall()
        began = time.monotonic()
        with pytest.raises(ServerUnavailable) as caught:
            await client.call_tool("echo", {"text": "hi"}, timeout=5)
        assert time.monotonic() - began < 2
        assert caught.value.delivery is Delivery.NOT_SENT
        await proxy.heal()
        await still_works(client)


@both_eras
@pytest.mark.requirement("P7", "P11")
async def test_a_result_that_breaks_the_protocol_is_kept(era: Era) -> None:
    odd = {**TEXT, "content": "not a list", "resultType": "complete"}
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await server.script(when(tool="echo", times=1, result=odd))
        with pytest.raises(InvalidResult) as caught:
            await client.call_tool("echo", {"text": "hi"})
        assert caught.value.result.raw["content"] == "not a list"
        assert caught.value.delivery is Delivery.ANSWERED
        await still_works(client)
        assert await server.executions("echo") == 2


@pytest.mark.parametrize("more", [{}, {"result": None}, {"result": [1]}, {"error": "no"}])
@pytest.mark.requirement("P1")
async def test_an_answer_with_neither_result_nor_error_did_run(more: dict[str, Any]) -> None:
    def answer(asked: Asked) -> bytes:
        return http(json.dumps({"jsonrpc": "2.0", "id": asked.id, **more}).encode())

    async with RawServer(answer) as server, client_of(server, mode="legacy") as client:
        error = await failure_of(client)
        assert type(error) is InvalidResult
        assert error.delivery is Delivery.ANSWERED


async def test_one_bad_answer_among_many_harms_no_sibling() -> None:
    async with ScriptedServer.local() as server, client_of(server) as client:
        await client.connect()
        await server.script(when(tool="echo", times=1, skip=5, body=HTML, run=True))
        calls = [client.call_tool("echo", {"text": str(n)}) for n in range(20)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert [type(error) for error in failed] == [CallOutcomeUnknown]
