"""Facts about aiohttp 3.14 that `_transport/http_client.py` stands on. Each docstring says why."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from yarl import URL

from tests.engine.certificates import HttpProxy
from tests.engine.helpers_wire import RawServer, http

BOUND = 5.0
NO_LIMIT = aiohttp.ClientTimeout(total=None)
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"


@asynccontextmanager
async def connector_of(**options: Any) -> AsyncIterator[aiohttp.TCPConnector]:
    connector = aiohttp.TCPConnector(limit=0, **options)
    try:
        async with asyncio.timeout(BOUND):
            yield connector
    finally:
        await connector.close()


async def connected(
    connector: aiohttp.TCPConnector, url: str, proxy: str | None = None
) -> tuple[Connection, ResponseHandler]:
    asks = request_to(url, proxy)
    connection = await connector.connect(asks, [], NO_LIMIT)
    assert connection.protocol is not None
    return connection, connection.protocol


def request_to(url: str, proxy: str | None = None) -> aiohttp.ClientRequest:
    loop = asyncio.get_running_loop()
    return aiohttp.ClientRequest("GET", URL(url), proxy=URL(proxy) if proxy else None, loop=loop)


def asking(protocol: ResponseHandler) -> None:
    protocol.set_response_params(read_until_eof=True)
    assert protocol.transport is not None
    protocol.transport.write(REQUEST)


async def test_a_connection_is_used_by_hand() -> None:
    """The way of every request: connect, write, read a head and a body, release. A released
    connection is the next one's; nothing is ever written but by us."""
    async with RawServer(lambda asked: http(b"{}"), only=True) as server, connector_of() as pool:
        for _ in range(2):
            connection, protocol = await connected(pool, server.url)
            asking(protocol)
            message, content = await protocol.read()
            assert (message.code, message.headers["content-length"]) == (200, "2")
            assert await content.readany() == b"{}"
            assert content.at_eof()
            connection.release()
        assert (server.accepted, len(server.asked)) == (1, 2)


@pytest.mark.parametrize("size", [2, 2_000_000])
async def test_the_end_of_an_answer_is_told_at_once(size: int) -> None:
    """`Turn` gives its connection back then: at the latest when the last byte has come, and in the
    moment of asking if it is here already."""
    body = b"x" * size
    async with RawServer(lambda asked: http(body), only=True) as server, connector_of() as pool:
        connection, protocol = await connected(pool, server.url)
        asking(protocol)
        _, content = await protocol.read()
        ended: list[bool] = []
        content.on_eof(lambda: ended.append(content.is_eof()))
        while not content.at_eof():
            await content.readany()
        assert ended == [True]
        connection.release()


async def test_a_request_has_these_headers_of_its_own_and_no_length() -> None:
    """`RequestTarget` takes them for the head of every request."""
    own = {name.lower() for name in request_to("http://127.0.0.1:9/").headers}
    assert own == {"host", "accept", "accept-encoding", "user-agent"}


async def test_a_proxys_credentials_are_put_into_the_request_by_connecting() -> None:
    """`RequestTarget.head` is written after that, and would be without them otherwise."""
    async with (
        RawServer(lambda asked: http(b"{}"), only=True) as server,
        HttpProxy() as proxy,
        connector_of() as pool,
    ):
        asks = request_to(server.url, proxy.url.replace("//", "//me:hush@"))
        for _ in range(2):
            before = asks.connection_key
            (await pool.connect(asks, [], NO_LIMIT)).release()
            assert "Proxy-Authorization" in asks.headers
            assert asks.connection_key == before, "the same request finds its connection again"


async def test_nobody_there_and_a_refused_tunnel_are_errors_of_connecting() -> None:
    """ "Nothing was written" is whatever `connect` raises."""
    refusal = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"
    async with HttpProxy(refusal=refusal) as proxy, connector_of() as pool:
        with pytest.raises(aiohttp.ClientHttpProxyError):
            await connected(pool, "https://127.0.0.1:9/", proxy.url)
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            with pytest.raises(aiohttp.ClientConnectorError):
                await connected(pool, f"http://127.0.0.1:{closed.getsockname()[1]}/")


async def test_connecting_that_takes_too_long_is_a_timeout() -> None:
    """`HttpClient._connect` says so."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        patience = aiohttp.ClientTimeout(total=None, sock_connect=0.1)
        async with connector_of() as pool:
            asks = request_to(f"http://127.0.0.1:{full.getsockname()[1]}/")
            with pytest.raises(TimeoutError):
                await pool.connect(asks, [], patience)
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize(("read", "connections"), [(True, 1), (False, 2)])
async def test_a_released_connection_is_kept_only_if_its_answer_was_read(
    read: bool, connections: int
) -> None:
    """`Turn.end` relies on it: a read answer keeps the connection (S3), an oversized one is cut off
    instead of being downloaded."""
    big = b"x" * 2_000_000
    async with RawServer(lambda asked: http(big), only=True) as server, connector_of() as pool:
        for _ in range(2):
            connection, protocol = await connected(pool, server.url)
            asking(protocol)
            _, content = await protocol.read()
            while read and await content.readany():
                pass
            connection.release()
        assert server.accepted == connections


async def test_a_forced_close_is_one_at_release() -> None:
    """`Turn.close` is for answers that cannot be told apart any more."""
    async with RawServer(lambda asked: http(b"{}"), only=True) as server, connector_of() as pool:
        for _ in range(2):
            connection, protocol = await connected(pool, server.url)
            asking(protocol)
            _, content = await protocol.read()
            await content.readany()
            protocol.force_close()
            connection.release()
        assert server.accepted == 2


async def test_closing_leaves_who_reads_a_body_asleep_and_wakes_who_waits_for_a_head() -> None:
    """Why `HttpClient.aclose` wakes the readers first (S9). When they are woken by aiohttp,
    `HttpExchange.abort` need not."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9\r\n\r\n"
    async with RawServer(lambda asked: head, only=True) as server, connector_of() as pool:
        connection, protocol = await connected(pool, server.url)
        asking(protocol)
        _, content = await protocol.read()
        reading = asyncio.ensure_future(content.readany())
        other, idle = await connected(pool, server.url)
        idle.set_response_params(read_until_eof=True)
        waiting = asyncio.ensure_future(idle.read())
        assert not (await asyncio.wait([reading, waiting], timeout=0.05))[0]
        await pool.close()
        assert (await asyncio.wait([reading, waiting], timeout=0.2))[0] == {waiting}
        assert isinstance(waiting.exception(), aiohttp.ClientError)
        content.set_exception(aiohttp.ClientConnectionError())
        with pytest.raises(aiohttp.ClientConnectionError):
            await reading
        connection.release()
        other.release()


async def test_a_protocol_says_whether_a_request_is_stuck_and_when_it_is_not() -> None:
    """`HttpExchange.read_head` counts silence only from then on. The second is a private method."""
    go_on = asyncio.Event()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        while await reader.read(1 << 20):
            pass
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with server, connector_of() as pool:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        connection, protocol = await connected(pool, url)
        assert protocol.transport is not None
        assert not protocol.writing_paused
        protocol.transport.write(b"x" * 20_000_000)
        assert protocol.writing_paused
        draining = asyncio.ensure_future(protocol._drain_helper())
        assert not (await asyncio.wait([draining], timeout=0.1))[0]
        go_on.set()
        await draining
        assert not protocol.writing_paused
        connection.close()


async def test_sockets_come_from_a_factory_of_ours() -> None:
    """`HttpClient.detach` closes them without their loop, after a fork or when the loop is gone
    (S17), and then marks the connector as closed, by a private attribute."""
    made: list[socket.socket] = []

    def factory(address: Any) -> socket.socket:
        family, kind, protocol = address[:3]
        made.append(socket.socket(family=family, type=kind, proto=protocol))
        return made[-1]

    connector = aiohttp.TCPConnector(socket_factory=factory)
    assert connector._closed is False
    async with RawServer(lambda asked: http(b"{}"), only=True) as server:
        (await connected(connector, server.url))[0].release()
        assert [one.getpeername()[1] for one in made] == [server.port]
        await connector.close()


def test_what_counts_as_not_connected() -> None:
    """`http_client.py:_describe_error` tells these apart, from the special to the general."""
    assert issubclass(aiohttp.ClientConnectorDNSError, aiohttp.ClientConnectorError)
    assert issubclass(aiohttp.ClientProxyConnectionError, aiohttp.ClientConnectorError)
    assert issubclass(aiohttp.ClientConnectorError, aiohttp.ClientOSError)
    assert issubclass(aiohttp.ClientConnectorCertificateError, aiohttp.ClientError)
    assert issubclass(aiohttp.ConnectionTimeoutError, aiohttp.ClientError)
    assert issubclass(aiohttp.SocketTimeoutError, aiohttp.ClientError)
