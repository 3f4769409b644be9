"""One request and one answer on one TCP connection: what is written, and what is kept of it."""

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from yarl import URL

from tests.engine.certificates import HttpProxy
from toolkeep._rules.classify import FaultKind
from toolkeep._transport.base import Attempt, WireFault
from toolkeep._transport.http_client import HttpClient, RequestTarget
from toolkeep.config import ServerSpec

BOUND = 10.0
BIG = 20_000_000
"""Bytes that no buffer of the kernel takes whole."""
HEADERS = {"content-type": "application/json"}
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Peer:
    """A server made of bytes. Counts who comes, and keeps the heads that it is sent."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.accepted = 0
        self.port = 0
        self.left = asyncio.Event()

    async def attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.left.set()
            writer.close()


@asynccontextmanager
async def peer(serve: Serve, **spec: object) -> AsyncIterator[tuple[Peer, HttpClient]]:
    served = Peer(serve)
    server = await asyncio.start_server(served.attend, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{served.port}/mcp"
    link = HttpClient(ServerSpec.model_validate({"name": "kit", "url": url, **spec}))
    try:
        async with asyncio.timeout(BOUND):
            yield served, link
    finally:
        await link.aclose()
        server.close()


async def asked(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.findall(rb"content-length: (\d+)", head, re.IGNORECASE)
    await reader.readexactly(int(length[0]) if length else 0)
    return head


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await asked(reader):
        writer.write(OK)


async def body_of(link: HttpClient, body: bytes | None = b"{}", verb: str = "POST") -> bytes | None:
    reply = await link.send(verb, HEADERS, body, Attempt())
    try:
        return await reply.read(1_000_000)
    finally:
        reply.release()


# -- what is written ------------------------------------------------------------------------------


async def test_a_head_says_each_thing_once_and_the_caller_has_the_last_word() -> None:
    address = RequestTarget(URL("http://example.com:81/mcp?a=1#place"), None)
    head = address.head("POST", {"user-agent": "me", "accept": "this"}, 7).decode()
    first, *lines = head.split("\r\n")
    assert first == "POST /mcp?a=1 HTTP/1.1"
    said = dict(line.lower().split(": ") for line in lines if line)
    assert said["host"] == "example.com:81"
    assert (said["user-agent"], said["accept"], said["content-length"]) == ("me", "this", "7")
    assert len(said) == len([line for line in lines if line])
    assert b"content-length" not in address.head("GET", {}, None).lower()


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\rb", "a\0b"])
async def test_no_header_can_begin_another(value: str) -> None:
    address = RequestTarget(URL("http://example.com/mcp"), None)
    with pytest.raises(ValueError, match="line break"):
        address.head("POST", {"x": value}, 0)


async def test_a_proxy_is_given_the_whole_address_and_its_own_credentials() -> None:
    async with (
        HttpProxy() as proxy,
        peer(answers, proxy=proxy.url.replace("//", "//me:hush@")) as (served, link),
    ):
        assert await body_of(link) == b"{}"
        assert proxy.asked == [f"POST http://127.0.0.1:{served.port}/mcp"]
        assert "proxy-authorization: basic" in proxy.headers[0].lower()


# -- what is kept ---------------------------------------------------------------------------------


async def test_one_connection_serves_one_request_after_the_other() -> None:
    async with peer(answers) as (served, link):
        for verb, body in (("POST", b"{}"), ("GET", None), ("DELETE", None), ("POST", b"")):
            assert await body_of(link, body, verb) == b"{}"
        assert served.accepted == 1


async def test_answers_that_are_only_announced_are_passed_over() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + OK)
        await reader.read()

    async with peer(serve) as (_, link):
        assert await body_of(link) == b"{}"


async def test_an_answer_to_half_a_request_is_read_and_the_rest_is_never_sent() -> None:
    refused = b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(refused)
        swallowed = 0
        while chunk := await reader.read(1 << 20):
            swallowed += len(chunk)
            assert swallowed < BIG
            await asyncio.sleep(0.05)

    async with peer(serve) as (served, link):
        reply = await link.send("POST", HEADERS, b"x" * BIG, Attempt())
        assert reply.status == 413
        reply.release()
        await served.left.wait()
        refused = OK
        assert await body_of(link) == b"{}"
        assert served.accepted == 2


async def test_a_connection_whose_answer_was_discarded_is_not_used_again() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await asked(reader):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}")

    async with peer(serve) as (served, link):
        for _ in range(2):
            reply = await link.send("POST", HEADERS, b"{}", Attempt())
            assert await reply.read_chunk() == b"{}"
            reply.discard()
            with pytest.raises(WireFault):
                await reply.read_chunk()
        assert served.accepted == 2


async def test_an_answer_that_is_discarded_after_its_end_costs_nobody_a_connection() -> None:
    async with peer(answers) as (served, link):
        reply = await link.send("POST", HEADERS, b"{}", Attempt())
        await reply.read(100)
        other = asyncio.ensure_future(body_of(link))
        await asyncio.sleep(0)
        reply.discard()
        assert await other == b"{}"
        assert await body_of(link) == b"{}"
        assert served.accepted == 1


async def test_giving_up_an_answer_that_is_over_leaves_the_next_request_alone() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")
        stalled.set()
        await go_on.wait()
        await reader.readexactly(BIG)
        writer.write(OK)

    stalled, go_on = asyncio.Event(), asyncio.Event()
    async with peer(serve) as (served, link):
        first = await link.send("POST", HEADERS, b"{}", Attempt())
        await first.read(100)
        second = asyncio.ensure_future(body_of(link, b"x" * BIG))
        await stalled.wait()
        first.abort()
        go_on.set()
        assert await second == b"{}"
        assert served.accepted == 1


async def test_what_is_no_http_is_told_as_that() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(b"220 mail.example.com ESMTP\r\n")
        await reader.read()

    async with peer(serve) as (_, link):
        attempt = Attempt()
        with pytest.raises(WireFault, match="not valid HTTP") as caught:
            await link.send("POST", HEADERS, b"{}", attempt)
        assert caught.value.evidence.kind is FaultKind.BROKEN
        assert attempt.sent


# -- what is not sent, or slowly ------------------------------------------------------------------


async def test_a_request_that_was_revoked_is_not_written() -> None:
    async with peer(answers) as (served, link):
        await body_of(link)
        attempt = Attempt()
        attempt.revoked = True
        with pytest.raises(WireFault) as caught:
            await link.send("POST", HEADERS, b"{}", attempt)
        assert caught.value.evidence.kind is FaultKind.CONNECT
        assert not attempt.sent
        await served.left.wait()
        assert served.accepted == 1


async def test_silence_is_not_counted_while_the_server_still_takes_the_request() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.6)  # three times the silence that is allowed
        await reader.readexactly(BIG)
        writer.write(OK)
        await reader.read()

    async with peer(serve, timeouts={"read": 0.2}) as (_, link):
        assert await body_of(link, b"x" * BIG) == b"{}"


async def test_silence_after_a_slow_request_is_counted_again() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.3)
        await reader.readexactly(BIG)
        await reader.read()

    async with peer(serve, timeouts={"read": 0.2}) as (_, link):
        with pytest.raises(WireFault, match="sent no data"):
            await link.send("POST", HEADERS, b"x" * BIG, Attempt())


async def test_closing_wakes_whoever_waits_for_the_head_or_the_body() -> None:
    begun = asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await asked(reader)).startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")
        begun.release()
        await reader.read()

    async with peer(serve) as (_, link):
        waiting = [asyncio.ensure_future(body_of(link, None, "GET"))]
        waiting.append(asyncio.ensure_future(body_of(link)))
        for _ in waiting:
            await begun.acquire()
        await link.aclose()
        for each in waiting:
            with pytest.raises(WireFault):
                await each
        with pytest.raises(WireFault, match="closed"):
            await body_of(link)


# -- bytes that come before they are asked for ----------------------------------------------------


class Threaded:
    """A server in a thread: it goes on while the event loop of the client stands still."""

    def __init__(self) -> None:
        self.accepted, self.go_on, self.said = 0, threading.Event(), threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]

    def serve(self) -> None:
        """Answers each request with the number of its connection, and the first one twice."""
        kept: list[socket.socket] = []
        with contextlib.suppress(OSError):
            for _ in range(2):
                connection, _ = self._listening.accept()
                kept.append(connection)
                self.accepted += 1
                connection.recv(65536)
                answer = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n%d" % self.accepted
                connection.sendall(answer)
                if self.accepted == 1:
                    self.go_on.wait(BOUND)
                    connection.sendall(answer)
                    self.said.set()
        for connection in kept:
            connection.close()

    def close(self) -> None:
        self.go_on.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.mark.requirement("P1", "H4")
async def test_bytes_that_the_event_loop_has_not_read_yet_do_not_answer_the_next_request() -> None:
    server = Threaded()
    thread = threading.Thread(target=server.serve)
    thread.start()
    link = HttpClient(ServerSpec(name="kit", url=f"http://127.0.0.1:{server.port}/mcp"))
    try:
        async with asyncio.timeout(BOUND):
            assert await body_of(link) == b"1"
            server.go_on.set()
            assert server.said.wait(BOUND)  # the loop stands still: it cannot have read the copy
            assert await body_of(link) == b"2"
    finally:
        await link.aclose()
        server.close()
        thread.join(BOUND)
