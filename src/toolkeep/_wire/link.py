"""The HTTP library, behind as little as possible: here, in `turn` and in `reply`, nowhere else.

A `Link` is one HTTP client: its sockets, its trust, its proxy. It sends one HTTP request at a time
for whoever asks, in the asker's task, and turns whatever aiohttp raises into a `WireFault`. It
knows nothing of sessions or JSON-RPC.

Each request is written once, on one connection (`turn`); `Attempt.sent` becomes true in the moment
before. Foreign exceptions are never chained: their reprs may hold the request's headers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import socket
import ssl
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from toolkeep._wire.attempt import Attempt
from toolkeep._wire.exchange import unreadable
from toolkeep._wire.fault import WireFault
from toolkeep._wire.hush import KnownSecrets
from toolkeep._wire.reply import Reply, fault_of
from toolkeep._wire.routes import proxy_for, redirected
from toolkeep._wire.tls import context_for
from toolkeep._wire.turn import Address, SpokeFirst, Turn, has_unread
from toolkeep.config import ServerSpec, secrets_of_url

_MOST_REDIRECTS = 5
_DISMISSED_LIMIT = 64 * 1024
_MOST_ADDRESSES = 8
"""URLs of one server that are kept ready: its own, and those that it refers to."""

_KEEP_ALIVE = [((socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1)] + [
    ((socket.IPPROTO_TCP, getattr(socket, name)), value)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
]
"""Finds out within a minute that the peer of an idle stream is gone without a word."""


_ID_BITS = 31
"""Of the first request id: a server may keep ids in 32 bits, signed."""


class Connector(aiohttp.TCPConnector):
    """Never hands out a connection on which the server spoke before it was asked: what it said
    would be taken for the answer to the next request. Bytes count that the event loop has not read
    yet; nothing is awaited between this and the writing of the request."""

    async def _get(self, key: Any, traces: Any) -> Any:
        while (connection := await super()._get(key, traces)) is not None:
            protocol = connection.protocol
            if protocol is None or not (protocol.should_close or has_unread(protocol)):
                return connection
            connection.close()
        return None

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        made = await super()._create_connection(req, traces, timeout)
        # A new TLS connection, be it to a proxy, has unread bytes of its own: session tickets.
        encrypted = made.transport is None or made.transport.get_extra_info("ssl_object")
        if made.should_close or (not encrypted and has_unread(made)):
            made.close()
            raise SpokeFirst
        return made


class Link:
    """One HTTP client for one server. Opened once, closed once, used by any task of its loop."""

    def __init__(self, spec: ServerSpec) -> None:
        # Credentials in the URL are a header by now: aiohttp refuses to have both.
        self._url = URL(spec.url).with_user(None)
        self.secrets = KnownSecrets(secrets_of_url(spec.url))
        """What the URL holds in confidence, and what was sent so."""
        self.ids = itertools.count(secrets.randbelow(2**_ID_BITS - 2**24) + 1)
        """Numbers for requests. No two requests on these sockets ever have the same, whoever sends
        them: an answer that comes twice, or late, answers nothing else. Where they begin is random,
        so that processes that share a session or a gateway do not meet either."""
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._connector = _connector(spec, self._url, self._socket)
        self._proxy = proxy_for(spec.proxy, self._url)
        self._addresses: dict[URL, Address] = {}
        connect, silence = spec.timeouts.connect, spec.timeouts.silence
        self._patience = aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=silence)
        self._endurance = aiohttp.ClientTimeout(total=None, sock_connect=connect)
        self._turns: set[Turn] = set()
        self._closed = asyncio.Event()

    def resolve(self, reference: str, base: URL | None = None) -> str | None:
        """The URL that a reference means in an answer from `base`, or the server's own URL. None:
        it is none, or of another origin."""
        try:
            target = (base or self._url).join(URL(reference)).with_user(None)
            stays = bool(reference) and target.origin() == self._url.origin()
        except ValueError:
            return None
        return str(target) if stays else None

    async def send(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None,
        attempt: Attempt,
        *,
        to: str | None = None,
        may_idle: bool = False,
    ) -> Reply:
        """One request and the head of its answer. Redirects are followed inside the origin, for
        this request alone: others use this link, and where one of them was sent, by whichever hop,
        may hold a key of theirs or be wrong.

        It goes to the server's URL, or `to` one that `resolve` has returned. An answer that
        `may_idle` is a stream on which silence says nothing.
        """
        timeout = self._endurance if may_idle else self._patience
        url = self._url if to is None else URL(to)
        for _ in range(_MOST_REDIRECTS):
            reply = await self._send_once(method, url, headers, body, attempt, timeout)
            if not 300 <= reply.status < 400:
                reply.url = url
                return reply
            await self._dismiss(reply)
            url = redirected(url, reply.status, reply.headers.get("location", ""), method)
        raise unreadable(f"more than {_MOST_REDIRECTS} redirects", None)

    async def _send_once(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: bytes | None,
        attempt: Attempt,
        timeout: aiohttp.ClientTimeout,
    ) -> Reply:
        try:
            address = self._address(url)
            connection = await self._connected(address, timeout)
            turn = Turn(connection, timeout.sock_read, self._turns.discard)
            self._turns.add(turn)
            try:
                head = address.head(method, headers, None if body is None else len(body))
                if attempt.revoked or not turn.can_write:
                    raise ConnectionAbortedError
                attempt.sent = True
                turn.write(head if body is None else head + body)
                answer = await turn.answered()
            except BaseException:
                turn.close()
                raise
        except (aiohttp.ClientError, HttpProcessingError, OSError, RuntimeError) as error:
            fault = fault_of(error, attempt, None, closed=self._closed.is_set())
        else:
            return Reply(turn, answer, attempt)
        raise fault

    def _address(self, url: URL) -> Address:
        known = self._addresses.get(url)
        if known is None:
            if len(self._addresses) >= _MOST_ADDRESSES:
                self._addresses.clear()
            known = self._addresses[url] = Address(url, self._proxy)
        return known

    async def _connected(self, address: Address, timeout: aiohttp.ClientTimeout) -> Connection:
        if self._connector.closed:
            raise RuntimeError
        try:
            return await self._connector.connect(address.connects, [], timeout)
        except TimeoutError:
            raise aiohttp.ConnectionTimeoutError from None

    async def _dismiss(self, reply: Reply) -> None:
        """Read a body that nobody wants, so that its TCP connection is kept."""
        try:
            with contextlib.suppress(WireFault):
                await reply.read(_DISMISSED_LIMIT)
        finally:
            reply.release()

    async def pause(self, seconds: float) -> bool:
        """Sleep between two requests. False: the link was closed meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        return not self._closed.is_set()

    async def aclose(self) -> None:
        self._closed.set()
        for turn in tuple(self._turns):
            turn.closed = True
            turn.abandon()
        await self._connector.close()
        # aiohttp (3.14) leaves those that are still connecting, or still have bytes to send.
        for each in tuple(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Let go when the loop that could close is gone, or belongs to the parent process.

        Only our own copies of the sockets are closed: no loop is asked, no epoll is touched.
        """
        for each in tuple(self._sockets):
            each.close()
        self._connector._closed = True  # pyright: ignore[reportPrivateUsage]

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol = address[:3]
        made = socket.socket(family=family, type=kind, proto=protocol)
        for option, value in _KEEP_ALIVE:
            made.setsockopt(*option, value)
        self._sockets.add(made)
        return made


def _connector(
    spec: ServerSpec, url: URL, make_socket: Callable[[Any], socket.socket]
) -> Connector:
    trust: ssl.SSLContext | bool = context_for(spec.tls) if url.scheme == "https" else True
    return Connector(
        limit=0, ssl=trust, keepalive_timeout=spec.keep_alive, socket_factory=make_socket
    )
