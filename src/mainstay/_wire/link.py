"""The HTTP library, behind as little as possible: here and in `reply`, nowhere else.

A `Link` is one HTTP client: its sockets, its trust, its proxy. It sends one HTTP request at a time
for whoever asks, in the asker's task, and turns whatever aiohttp raises into a `WireFault`. It
knows nothing of sessions or JSON-RPC.

aiohttp (3.14), as it is used here:
- a POST is never sent twice, but a GET or DELETE on a reused connection is: switched off;
- `Body.write_with_length` runs when the first byte is about to be written (the head waits in a
  buffer until then), so `Attempt.sent` is the truth about "nothing was written";
- foreign exceptions are never chained: their reprs hold the request's headers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
from yarl import URL

from mainstay._wire.attempt import Attempt
from mainstay._wire.exchange import unreadable
from mainstay._wire.fault import WireFault
from mainstay._wire.reply import Body, Reply, fault_of
from mainstay._wire.routes import proxy_for, redirected
from mainstay._wire.tls import context_for
from mainstay.config import ServerSpec, secrets_of_url

_MOST_REDIRECTS = 5
_DISMISSED_LIMIT = 64 * 1024


_KEEP_ALIVE = [((socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1)] + [
    ((socket.IPPROTO_TCP, getattr(socket, name)), value)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
]
"""Finds out within a minute that the peer of an idle stream is gone without a word."""


class Connector(aiohttp.TCPConnector):
    """Never reuses a connection on which the server spoke out of turn."""

    async def _get(self, key: Any, traces: Any) -> Any:
        idle = self._conns.get(key)
        while idle and idle[0][0].should_close:  # aiohttp (3.14) takes the first
            idle.popleft()[0].close()
        return await super()._get(key, traces)


class Link:
    """One HTTP client for one server. Opened once, closed once, used by any task of its loop."""

    def __init__(self, spec: ServerSpec) -> None:
        # Credentials in the URL are a header by now: aiohttp refuses to have both.
        self._url = URL(spec.url).with_user(None)
        self.secrets = secrets_of_url(spec.url)
        """What the URL holds in confidence."""
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._http = _client(spec, self._url, self._socket)
        connect = spec.timeouts.connect
        self._patience = aiohttp.ClientTimeout(total=None, sock_connect=connect)
        self._unread: set[Reply] = set()
        self._closed = asyncio.Event()

    def resolve(self, reference: str) -> str | None:
        """The URL that a server's reference means. None: it is none, or of another origin."""
        try:
            target = self._url.join(URL(reference)).with_user(None)
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
        """One request and the head of its answer. Redirects are followed inside the origin.

        It goes to the server's URL, or `to` one that `resolve` has returned. An answer that
        `may_idle` is a stream on which silence says nothing.
        """
        timeout = self._patience if may_idle else None
        url = self._url if to is None else URL(to)
        for _ in range(_MOST_REDIRECTS):
            reply = await self._send_once(method, url, headers, body, attempt, timeout)
            if not 300 <= reply.status < 400:
                return reply
            await self._dismiss(reply)
            url = redirected(url, reply.status, reply.headers.get("location", ""), method)
            if reply.status == 308 and to is None:
                self._url = url
        raise unreadable(f"more than {_MOST_REDIRECTS} redirects", None)

    async def _send_once(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: bytes | None,
        attempt: Attempt,
        timeout: aiohttp.ClientTimeout | None,
    ) -> Reply:
        payload = None if body is None else Body(body, attempt)
        if body is None:
            attempt.sent = True  # a bodyless request is only ever sent freely repeatable
        try:
            response = await self._http.request(
                method,
                url,
                headers=headers,
                data=payload,
                allow_redirects=False,
                timeout=timeout or self._http.timeout,
            )
        except asyncio.CancelledError:
            if payload is not None:
                payload.cut_off()
            raise
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            fault = fault_of(error, attempt, None)
        else:
            reply = Reply(response, attempt, self._unread.discard, payload)
            self._unread.add(reply)
            return reply
        raise fault

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
        for reply in tuple(self._unread):
            reply.abandon()
        await self._http.close()
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
        connector = self._http.connector
        self._http.detach()
        if connector is not None:
            connector._closed = True  # pyright: ignore[reportPrivateUsage]

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol = address[:3]
        made = socket.socket(family=family, type=kind, proto=protocol)
        for option, value in _KEEP_ALIVE:
            made.setsockopt(*option, value)
        self._sockets.add(made)
        return made


def _client(
    spec: ServerSpec, url: URL, make_socket: Callable[[Any], socket.socket]
) -> aiohttp.ClientSession:
    trust: ssl.SSLContext | bool = context_for(spec.tls) if url.scheme == "https" else True
    http = aiohttp.ClientSession(
        connector=Connector(
            limit=0, ssl=trust, keepalive_timeout=spec.keep_alive, socket_factory=make_socket
        ),
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=spec.timeouts.connect, sock_read=spec.timeouts.silence
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        proxy=proxy_for(spec.proxy, url),
        # Proxies are settled above, once; left to aiohttp, every request would read ~/.netrc, too.
        trust_env=False,
    )
    http._retry_connection = False  # pyright: ignore[reportPrivateUsage]
    return http
