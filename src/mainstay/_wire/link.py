"""The HTTP library, behind as little as possible. The only file that imports aiohttp.

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
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import BytesPayload, Payload
from yarl import URL

from mainstay._rules.classify import Evidence, Trouble
from mainstay._wire.attempt import Attempt
from mainstay._wire.exchange import unreadable
from mainstay._wire.fault import WireFault
from mainstay._wire.routes import proxy_for, redirected, seconds_of
from mainstay._wire.tls import context_for
from mainstay.config import ServerSpec, secrets_of_url

_MOST_REDIRECTS = 5
_DISMISSED_LIMIT = 64 * 1024
_KEPT_HEADERS = ("retry-after", "www-authenticate")


class Body(BytesPayload):
    """A request body that notes the moment at which it is written."""

    def __init__(self, value: bytes, attempt: Attempt) -> None:
        # Not BytesPayload's: it warns of bodies over 1 MiB, as if one could do something about it.
        Payload.__init__(self, value, content_type="application/json")
        self._size = len(value)
        self._attempt = attempt

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        self._attempt.sent = True
        await writer.write(self._value)


class Reply:
    """An HTTP answer whose body has not been read. Must be `released`, whatever happens."""

    __slots__ = ("_attempt", "_forget", "_response", "content_type", "headers", "status")

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        attempt: Attempt,
        forget: Callable[[Reply], None],
    ) -> None:
        self._response, self._attempt, self._forget = response, attempt, forget
        self.status = response.status
        self.headers = response.headers
        self.content_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def kept_headers(self) -> dict[str, str]:
        kept = {
            name: ", ".join(self.headers.getall(name))
            for name in _KEPT_HEADERS
            if name in self.headers
        }
        if "retry-after" in kept:
            kept["retry-after"] = seconds_of(kept["retry-after"])
        return kept

    @property
    def at_end(self) -> bool:
        return self._response.content.at_eof()

    async def chunk(self) -> bytes:
        """The next bytes of the body; empty at its end."""
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            fault = _fault(error, self._attempt, self.status)
        raise fault

    async def read(self, limit: int) -> bytes | None:
        """The whole body, or None when it is larger than the limit."""
        length = self._response.content_length
        if length is not None and length > limit:
            return None
        parts: list[bytes] = []
        size = 0
        while chunk := await self.chunk():
            size += len(chunk)
            if size > limit:
                return None
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self) -> None:
        """Keeps the connection if the body was read to its end, closes it otherwise."""
        self._forget(self)
        self._response.release()

    def abandon(self) -> None:
        """Wake whoever reads: aiohttp (3.14) lets readers sleep when its session is closed."""
        self._response.content.set_exception(aiohttp.ClientConnectionError())


class Link:
    """One HTTP client for one server. Opened once, closed once, used by any task of its loop."""

    def __init__(self, spec: ServerSpec) -> None:
        # Credentials in the URL are a header by now: aiohttp refuses to have both.
        self._url = URL(spec.url).with_user(None)
        self.secrets = secrets_of_url(spec.url)
        """What the URL holds in confidence."""
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._http = _client(spec, self._url, self._socket)
        self._unread: set[Reply] = set()
        self._closed = asyncio.Event()

    async def send(
        self, method: str, headers: Mapping[str, str], body: bytes | None, attempt: Attempt
    ) -> Reply:
        """One request and the head of its answer. Redirects are followed inside the origin."""
        url = self._url
        for _ in range(_MOST_REDIRECTS):
            reply = await self._send_once(method, url, headers, body, attempt)
            if not 300 <= reply.status < 400:
                return reply
            await self._dismiss(reply)
            url = redirected(url, reply.status, reply.headers.get("location", ""), method)
            if reply.status == 308:
                self._url = url
        raise unreadable(f"more than {_MOST_REDIRECTS} redirects", None)

    async def _send_once(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: bytes | None,
        attempt: Attempt,
    ) -> Reply:
        payload = None if body is None else Body(body, attempt)
        if body is None:
            attempt.sent = True  # a bodyless request is only ever sent freely repeatable
        try:
            response = await self._http.request(
                method, url, headers=headers, data=payload, allow_redirects=False
            )
        except (aiohttp.ClientError, OSError, ValueError, RuntimeError) as error:
            fault = _fault(error, attempt, None)
        else:
            reply = Reply(response, attempt, self._unread.discard)
            self._unread.add(reply)
            return reply
        raise fault

    async def _dismiss(self, reply: Reply) -> None:
        """Read a body that nobody wants, so that its TCP connection is kept."""
        with contextlib.suppress(WireFault):
            await reply.read(_DISMISSED_LIMIT)
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
        self._sockets.add(made)
        return made


def _client(
    spec: ServerSpec, url: URL, make_socket: Callable[[Any], socket.socket]
) -> aiohttp.ClientSession:
    trust: ssl.SSLContext | bool = context_for(spec.tls) if url.scheme == "https" else True
    http = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
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


def _fault(error: Exception, attempt: Attempt, status: int | None) -> WireFault:
    trouble = Trouble.BROKEN if attempt.sent else Trouble.CONNECT
    return WireFault(
        Evidence(trouble=trouble, sent=attempt.sent, detail=_describe(error), status=status)
    )


def _describe(error: Exception) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"the certificate does not verify: {error.certificate_error}"
        case aiohttp.ClientSSLError():
            return f"TLS failed: {error.os_error.strerror or type(error.os_error).__name__}"
        case aiohttp.ClientConnectorDNSError():
            return f"the name {error.host!r} cannot be resolved"
        case aiohttp.ClientProxyConnectionError():
            return f"the proxy cannot be reached: {error.os_error.strerror}"
        case aiohttp.ClientConnectorError():
            return f"cannot connect to {error.host}:{error.port}: {error.os_error.strerror}"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy refused: HTTP {error.status}"
        case aiohttp.ConnectionTimeoutError():
            return "connecting took too long"
        case aiohttp.SocketTimeoutError():
            return "the server fell silent"
        case aiohttp.ServerDisconnectedError():
            return "the server closed the connection without an answer"
        case aiohttp.ClientPayloadError():
            return "the answer broke off"
        case RuntimeError():
            return "the client was closed"
        case OSError():
            return f"the connection broke: {error.strerror or type(error).__name__}"
        case _:
            return f"the connection failed: {type(error).__name__}"
