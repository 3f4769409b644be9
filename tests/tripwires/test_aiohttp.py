"""Facts about aiohttp 3.14 that `_wire/link.py` stands on. Each docstring says why."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from tests.engine.certificates import HttpProxy
from tests.engine.helpers_wire import Asked, RawServer, http

BOUND = 5.0


class Told(Payload):
    """A body that tells when it is written, and waits to be allowed to."""

    _value: bytes

    def __init__(self, value: bytes) -> None:
        super().__init__(value, content_type="application/json")
        self._size = len(value)
        self.times = 0
        self.begun, self.allowed = asyncio.Event(), asyncio.Event()

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        self.times += 1
        self.begun.set()
        await self.allowed.wait()
        await writer.write(self._value)


@asynccontextmanager
async def session_of(**options: object) -> AsyncIterator[aiohttp.ClientSession]:
    async with (
        asyncio.timeout(BOUND),
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), **options) as session,  # pyright: ignore[reportArgumentType]
    ):
        yield session


def dying_after(answers: int) -> RawServer:
    """A server that answers so many requests, and closes on every later one after reading it."""
    left = iter(range(answers))

    def answer(asked: Asked) -> bytes:
        return http(b"{}") if next(left, None) is not None else b""

    return RawServer(answer, only=True)


async def test_a_post_on_a_dying_connection_is_never_sent_again() -> None:
    """A replay that we did not decide could run a tool twice (P2)."""
    async with dying_after(1) as server, session_of() as session:
        assert session._retry_connection is True
        await (await session.post(server.url, data=b"{}")).read()
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await session.post(server.url, data=b"{}")
        assert [asked.verb for asked in server.asked] == ["POST", "POST"]


@pytest.mark.parametrize("verb", ["GET", "DELETE"])
async def test_a_get_or_delete_on_a_dying_connection_is_sent_again_unless_switched_off(
    verb: str,
) -> None:
    """`_wire/link.py:_client` switches it off with a private attribute. If that is gone, or a GET
    is no longer sent again by default, look there."""
    for switched_off, asked in ((False, 3), (True, 2)):
        async with dying_after(1) as server, session_of() as session:
            if switched_off:
                session._retry_connection = False
            await (await session.post(server.url, data=b"{}")).read()
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await session.request(verb, server.url)
            assert len(server.asked) == asked


@pytest.mark.parametrize("reused", [False, True])
async def test_a_body_is_written_once_and_nothing_leaves_before(reused: bool) -> None:
    """`_wire/link.py:Body` notes "sent" in `write_with_length`. If the head left earlier, a call
    that may have run would be told as not sent."""
    received = bytearray()
    arrived = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            received.extend(data)
            arrived.set()
            if received.endswith(b"{}"):
                writer.write(http(b"{}"))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, session_of() as session:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        if reused:
            await (await session.post(url, data=b"{}")).read()
            received.clear()
            arrived.clear()
        body = Told(b"{}")
        sending = asyncio.ensure_future(session.post(url, data=body))
        await body.begun.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(arrived.wait(), 0.1)
        assert not received
        body.allowed.set()
        await (await sending).read()
        assert received.startswith(b"POST / HTTP/1.1\r\n")
        assert body.times == 1


async def test_a_body_is_not_touched_when_nobody_listens() -> None:
    """ "Nothing written" is the family of `ClientConnectorError`, before any body."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        body = Told(b"{}")
        async with session_of() as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.post(f"http://127.0.0.1:{closed.getsockname()[1]}/", data=body)
    assert body.times == 0


async def test_a_refused_tunnel_is_a_proxy_error_before_any_body() -> None:
    """`_wire/link.py` tells it as not sent."""
    body = Told(b"{}")
    refusal = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"
    async with HttpProxy(refusal=refusal) as proxy, session_of() as session:
        with pytest.raises(aiohttp.ClientHttpProxyError):
            await session.post("https://127.0.0.1:9/", data=body, proxy=proxy.url)
    assert body.times == 0


async def test_cancelling_closes_the_socket_at_once() -> None:
    """A modern call is cancelled by closing its stream (P5); nothing else tells the server."""
    asked, closed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        asked.set()
        await reader.read()
        closed.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, session_of() as session:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        sending = asyncio.ensure_future(session.post(url, data=b"{}"))
        await asked.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await asyncio.wait_for(closed.wait(), 0.5)


@pytest.mark.parametrize(("read", "connections"), [(True, 1), (False, 2)])
async def test_a_released_response_keeps_its_connection_only_if_it_was_read(
    read: bool, connections: int
) -> None:
    """`Reply.release` relies on it: a read answer keeps the connection (S3), an oversized one is
    cut off instead of being downloaded."""
    big = b"x" * 2_000_000
    async with (
        RawServer(lambda asked: http(big), only=True) as server,
        session_of() as session,
    ):
        for _ in range(2):
            response = await session.post(server.url, data=b"{}")
            while read and await response.content.readany():
                pass
            response.release()
        assert server.accepted == connections


async def test_closing_a_session_leaves_who_reads_asleep() -> None:
    """Why `Link.aclose` wakes the readers of open answers first (S9). When they are woken by
    aiohttp, `Reply.abandon` can go."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9\r\n\r\n"
    async with RawServer(lambda asked: head, only=True) as server, session_of() as session:
        response = await session.post(server.url, data=b"{}")
        reading = asyncio.ensure_future(response.content.readany())
        assert not (await asyncio.wait([reading], timeout=0.05))[0]
        await session.close()
        assert not (await asyncio.wait([reading], timeout=0.2))[0]
        response.content.set_exception(aiohttp.ClientConnectionError())
        with pytest.raises(aiohttp.ClientConnectionError):
            await reading
        response.release()


async def test_sockets_come_from_a_factory_of_ours() -> None:
    """`Link.forget` closes them without their loop, after a fork or when the loop is gone (S17),
    and then marks the connector as closed, by a private attribute."""
    made: list[socket.socket] = []

    def factory(address: Any) -> socket.socket:
        family, kind, protocol = address[:3]
        made.append(socket.socket(family=family, type=kind, proto=protocol))
        return made[-1]

    connector = aiohttp.TCPConnector(socket_factory=factory)
    assert connector._closed is False
    async with (
        RawServer(lambda asked: http(b"{}"), only=True) as server,
        session_of(connector=connector) as session,
    ):
        await (await session.post(server.url, data=b"{}")).read()
        assert [one.getpeername()[1] for one in made] == [server.port]


async def test_redirects_can_be_left_alone() -> None:
    """The link follows them itself, inside the origin alone."""
    moved = http(b"", "location: http://127.0.0.1:9/", status="307 Moved")
    async with RawServer(lambda asked: moved, only=True) as server, session_of() as session:
        response = await session.post(server.url, data=b"{}", allow_redirects=False)
        assert response.status == 307
        assert response.headers["Location"] == "http://127.0.0.1:9/"
        await response.read()


async def test_a_foreign_exception_shows_the_requests_headers() -> None:
    """Why the link never chains what aiohttp raises (H6): its repr holds credentials."""
    garbage = b"HTTP/1.1 x y\r\n\r\n"
    async with RawServer(lambda asked: garbage, only=True) as server, session_of() as session:
        with pytest.raises(aiohttp.ClientResponseError) as caught:
            await session.post(server.url, data=b"{}", headers={"authorization": "Bearer hush"})
    assert "hush" in repr(caught.value)


def test_what_counts_as_not_connected() -> None:
    """`_wire/link.py:_describe` tells these apart, from the special to the general."""
    assert issubclass(aiohttp.ClientConnectorDNSError, aiohttp.ClientConnectorError)
    assert issubclass(aiohttp.ClientProxyConnectionError, aiohttp.ClientConnectorError)
    assert issubclass(aiohttp.ClientConnectorError, aiohttp.ClientOSError)
    assert issubclass(aiohttp.ClientConnectorCertificateError, aiohttp.ClientError)
    assert issubclass(aiohttp.ConnectionTimeoutError, aiohttp.ClientError)
    assert issubclass(aiohttp.SocketTimeoutError, aiohttp.ClientError)
