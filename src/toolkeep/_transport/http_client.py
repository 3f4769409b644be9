"""One HTTP client for one server, on aiohttp's connector and parser.

`HttpClient` owns the sockets, TLS settings and proxy. It sends one HTTP request in the caller's
task and turns what aiohttp raises into a `WireFault`. `HttpExchange` is one request and
response on one connection; `HttpResponse` is its body, not yet read. Each request is written
once, as a whole; `Attempt.sent` becomes true just before the write. Redirects are followed only
within the configured origin.

This module must never write a request twice, never chain an exception of aiohttp (its repr may
hold headers), and knows nothing of MCP sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import select
import socket
import ssl
import urllib.request
import weakref
from collections.abc import Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import cache
from time import time
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.helpers import TimerNoop
from aiohttp.http import RawResponseMessage
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from yarl import URL

from toolkeep._rules.egress import EgressPolicy, NamedBy, check_address, check_host
from toolkeep._transport.base import (
    Attempt,
    Tap,
    WireFault,
    connection_fault,
    unreadable_fault,
)
from toolkeep._transport.redaction import KnownSecrets
from toolkeep._transport.tls import ssl_context_for
from toolkeep.config import ServerSpec, redact_url, secrets_of_url
from toolkeep.errors import ConfigError

_MAX_REDIRECTS = 5
_METHOD_PRESERVING_REDIRECTS = (307, 308)
_DISCARDED_BODY_LIMIT = 64 * 1024
_MAX_TARGETS = 8
"""URLs of one server whose request targets are kept: its own, and those it refers to."""
_REQUEST_ID_BITS = 31
"""Size of the first request id: a server may store ids in signed 32 bits."""
_EVIDENCE_HEADERS = ("retry-after", "www-authenticate")
_NO_TIMER = TimerNoop()

_KEEP_ALIVE_OPTIONS = [((socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1)] + [
    ((socket.IPPROTO_TCP, getattr(socket, name)), value)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
]
"""Detect within a minute that the peer of an idle stream is gone."""

_LARGE_CHUNK = 128 * 1024
"""Bytes from which glibc's malloc maps a block of its own."""
_MALLOC_BLOCK = 8 << 20


@cache
def _raise_malloc_threshold() -> None:
    """Free one large block, so that glibc serves later ones from its heap.

    Done once, in a process that reads large responses.
    """
    bytes(_MALLOC_BLOCK)


def proxy_for(configured: str | None, url: URL) -> str | None:
    """The proxy for a URL: the configured one ("" for none), else the environment's. Raises
    `ConfigError`."""
    if configured is not None:
        return configured or None
    if urllib.request.proxy_bypass(f"{url.host_subcomponent}:{url.port}"):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if proxy and urlsplit(proxy).scheme not in ("http", "https"):
        problem = f"the environment's proxy is not an http(s) URL: {redact_url(proxy)}"
        raise ConfigError(problem, key="proxy", remedy="Set NO_PROXY, or proxy: '' for none")
    return proxy


def proxy_for_server(spec: ServerSpec) -> str | None:
    """The proxy through which a server at a URL is reached. Raises `ConfigError`."""
    return proxy_for(spec.proxy, URL(spec.url).with_user(None))


def _redirect_target(url: URL, status: int, location: str, method: str) -> URL:
    """The URL of a redirect, if it has the same origin and preserves the method."""
    try:
        target = url.join(URL(location)).with_user(None)
        stays = bool(location) and target.origin() == url.origin()
    except ValueError:
        raise unreadable_fault("the server redirects to an invalid URL", status) from None
    shown = redact_url(str(target))
    if not stays:
        raise unreadable_fault(f"the server redirects to another origin: {shown}", status)
    if method == "POST" and status not in _METHOD_PRESERVING_REDIRECTS:
        detail = f"the server redirects to {shown} with a status that turns POST into GET"
        raise unreadable_fault(detail, status)
    return target


def _retry_after_seconds(retry_after: str) -> str:
    """A Retry-After header in seconds; a date is converted."""
    try:
        when = parsedate_to_datetime(retry_after)
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return str(max(0.0, when.timestamp() - time()))
    except (ValueError, OverflowError):
        return retry_after


class UnsolicitedBytes(aiohttp.ClientConnectionError):
    """The server sent bytes on a new connection before any request."""


def has_unread_bytes(protocol: ResponseHandler) -> bool:
    """Whether the connection's socket has bytes, or its end, that the event loop has not read."""
    transport = protocol.transport
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is None or (number := sock.fileno()) < 0:
        return False
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([number], [], [], 0)[0])
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(0))


class RequestTarget:
    """One URL: how to connect to it, and how to write the head of a request to it.

    Belongs to the event loop that runs when it is created.
    """

    def __init__(self, url: URL, proxy: str | None) -> None:
        self.connection_request = aiohttp.ClientRequest(
            "GET",
            url,
            proxy=URL(proxy) if proxy else None,
            loop=asyncio.get_running_loop(),
        )
        """Never sent. It tells aiohttp where to connect, and holds the headers of every request;
        aiohttp adds the proxy's credentials when it connects."""
        forwarded = proxy is not None and url.scheme == "http"
        self._target = (
            str(self.connection_request.url)
            if forwarded
            else self.connection_request.url.raw_path_qs
        )
        self._default_headers: dict[str, str] = {}

    def head(self, method: str, headers: Mapping[str, str], length: int | None) -> bytes:
        """The head of a request, as bytes. The names of `headers` are in lower case.

        Raises ValueError for an invalid header.
        """
        if not self._default_headers:
            defaults = self.connection_request.headers.items()
            self._default_headers = {name.lower(): f"{name}: {value}" for name, value in defaults}
        lines = [f"{method} {self._target} HTTP/1.1"]
        lines += [line for name, line in self._default_headers.items() if name not in headers]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if length is not None:
            lines.append(f"content-length: {length}")
        text = "\r\n".join(lines)
        breaks = len(lines) - 1
        if text.count("\n") != breaks or text.count("\r") != breaks or "\0" in text:
            raise ValueError("a header contains a line break or a NUL character")
        return f"{text}\r\n\r\n".encode()


class HttpExchange:
    """One request and its response on one connection.

    The connection returns to the pool as soon as both are complete. It is closed if one of them
    is given up.
    """

    __slots__ = ("_connection", "_on_end", "_protocol", "closed", "content")

    def __init__(
        self,
        connection: Connection,
        read_timeout: float | None,
        on_end: Callable[[HttpExchange], None],
    ) -> None:
        """`read_timeout`: seconds without data after which reading fails. `on_end`: called when
        the connection is released."""
        assert connection.protocol is not None
        self._on_end = on_end
        self._connection: Connection | None = connection
        self._protocol: ResponseHandler = connection.protocol
        self.closed = False
        """Whether the client was closed during the exchange."""
        self.content: StreamReader = EMPTY_PAYLOAD
        """The response's body, once its head was received."""
        self._protocol.set_response_params(
            timer=_NO_TIMER, read_until_eof=True, read_timeout=read_timeout
        )

    @property
    def can_write(self) -> bool:
        return self._protocol.is_connected()

    def write(self, request: bytes) -> None:
        assert self._protocol.transport is not None
        self._protocol.transport.write(request)

    async def read_head(self) -> RawResponseMessage:
        """The head of the response."""
        if not self._protocol.writing_paused:
            self._protocol.start_timeout()
            return await self._read_final_head()
        upload = asyncio.ensure_future(self._wait_for_upload())
        try:
            return await self._read_final_head()
        finally:
            upload.cancel()

    async def _read_final_head(self) -> RawResponseMessage:
        while True:
            message, content = await self._protocol.read()
            if not 100 <= message.code < 200 or message.code == 101:
                break
        self.content = content
        content.on_eof(self.release)
        return message

    async def _wait_for_upload(self) -> None:
        """Start the read timeout once a large request is written. Until then the server has no
        reason to send anything."""
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await self._protocol._drain_helper()  # pyright: ignore[reportPrivateUsage]
            self._protocol.start_timeout()

    def release(self) -> None:
        """Return the connection to aiohttp, which keeps it only if the response was read to its
        end. Close it if a part of the request is still unsent."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._on_end(self)
        if not self.content.is_eof():
            self.content.set_exception(aiohttp.ClientConnectionError())
        if self._abort_unsent():
            connection.close()
        else:
            connection.release()

    def abort(self) -> None:
        """Wake the task that reads: aiohttp leaves readers waiting when its connector closes."""
        if self._connection is not None:  # else another exchange may use the connection by now
            self.content.set_exception(aiohttp.ClientConnectionError())
            self._abort_unsent()

    def _abort_unsent(self) -> bool:
        """Drop the unsent part of the request. False: there is none."""
        transport = self._protocol.transport
        unsent = transport is not None and transport.get_write_buffer_size() > 0
        if transport is not None and unsent:
            transport.abort()  # `close` would go on sending
        return unsent

    def close(self) -> None:
        """Close the connection, unless it was released."""
        if self._connection is not None:
            self._protocol.force_close()
            self.release()

    def prevent_reuse(self) -> None:
        """Have the connection closed once it is idle, even if it was released: responses on it no
        longer match their requests."""
        self._protocol.force_close()


class HttpResponse:
    """An HTTP response whose body has not been read. Its receiver must `release` it in any case."""

    __slots__ = ("_attempt", "_exchange", "_head", "content_type", "headers", "status", "url")

    url: URL
    """The URL that responded, after redirects."""

    def __init__(self, exchange: HttpExchange, head: RawResponseMessage, attempt: Attempt) -> None:
        self._exchange, self._head, self._attempt = exchange, head, attempt
        self.status = head.code
        self.headers = head.headers
        self.content_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def evidence_headers(self) -> dict[str, str]:
        """The headers that matter for the classification of a failure."""
        kept = {
            name: ", ".join(self.headers.getall(name))
            for name in _EVIDENCE_HEADERS
            if name in self.headers
        }
        if "retry-after" in kept:
            kept["retry-after"] = _retry_after_seconds(kept["retry-after"])
        return kept

    @property
    def at_eof(self) -> bool:
        return self._exchange.content.at_eof()

    async def read_chunk(self) -> bytes:
        """The next bytes of the body; empty at its end."""
        try:
            chunk = await self._exchange.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            fault = to_fault(error, self._attempt, self.status, closed=self._exchange.closed)
        else:
            if len(chunk) > _LARGE_CHUNK:
                _raise_malloc_threshold()
            return chunk
        raise fault

    async def read(self, limit: int) -> bytes | None:
        """The whole body, or None when it is larger than the limit."""
        if int(self.headers.get("content-length", 0)) > limit:
            return None
        parts: list[bytes] = []
        size = 0
        while not self.at_eof:
            chunk = await self.read_chunk()
            size += len(chunk)
            if size > limit:
                return None
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self) -> None:
        """Keep the connection if the body was read to its end; close it otherwise."""
        self._exchange.release()

    def discard(self) -> None:
        """Close the connection: the rest of the body is unusable."""
        self._exchange.close()

    def prevent_reuse(self) -> None:
        """Send no further request on this connection: this response answers another request."""
        self._exchange.prevent_reuse()

    def abort(self) -> None:
        """Wake the task that reads, with an error."""
        self._exchange.abort()


def to_fault(error: Exception, attempt: Attempt, status: int | None, *, closed: bool) -> WireFault:
    """The fault for an exception of aiohttp. `closed`: closing the client caused it."""
    detail = "the client was closed" if closed else _describe_error(error)
    return connection_fault(detail, attempt, status)


def _describe_error(error: Exception) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"the certificate does not verify: {error.certificate_error}"
        case aiohttp.ClientSSLError():
            return f"TLS failed: {error.os_error.strerror or type(error.os_error).__name__}"
        case aiohttp.ClientConnectorDNSError():
            return f"the name {error.host!r} cannot be resolved"
        case aiohttp.ClientProxyConnectionError():
            return f"the proxy cannot be reached: {_os_reason(error.os_error)}"
        case aiohttp.ClientConnectorError():
            return f"cannot connect to {error.host}:{error.port}: {_os_reason(error.os_error)}"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy refused: HTTP {error.status}"
        case aiohttp.ConnectionTimeoutError():
            return "no connection within timeouts.connect"
        case aiohttp.SocketTimeoutError():
            return "the server sent no data within timeouts.read"
        case aiohttp.ServerDisconnectedError():
            return "the server closed the connection without a response"
        case UnsolicitedBytes():
            return "the server sent bytes before any request"
        case aiohttp.ClientPayloadError():
            return "the response is incomplete"
        case HttpProcessingError():
            return "the response is not valid HTTP"
        case RuntimeError():
            return "the client was closed"
        case OSError():
            return f"the connection broke: {error.strerror or type(error).__name__}"
        case _:
            return f"the connection failed: {type(error).__name__}"


def _os_reason(error: OSError) -> str:
    """The system's text. asyncio's text repeats the address, and is missing (with `errno`) when it
    tried several addresses."""
    return os.strerror(error.errno) if error.errno else "none of its addresses can be reached"


class HttpConnector(aiohttp.TCPConnector):
    """A connection pool that discards connections on which the server sent unsolicited bytes.

    Those bytes would be taken for the response to the next request. Bytes that the event loop has
    not read yet count too, and nothing is awaited between this check and the write.
    """

    async def _get(self, key: Any, traces: Any) -> Any:
        while (connection := await super()._get(key, traces)) is not None:
            protocol = connection.protocol
            if protocol is None or not (protocol.should_close or has_unread_bytes(protocol)):
                return connection
            connection.close()
        return None

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        protocol = await super()._create_connection(req, traces, timeout)
        # A new TLS connection, also one to a proxy, has unread bytes of its own: session tickets.
        encrypted = protocol.transport is None or protocol.transport.get_extra_info("ssl_object")
        if protocol.should_close or (not encrypted and has_unread_bytes(protocol)):
            protocol.close()
            raise UnsolicitedBytes
        return protocol


class HttpClient:
    """One HTTP client for one server. Used by any task of its event loop; closed once."""

    def __init__(self, spec: ServerSpec, tap: Tap | None = None) -> None:
        self.spec, self._tap = spec, tap or Tap()
        # Without credentials: they are a header by now, and aiohttp refuses to have both.
        self._url = URL(spec.url).with_user(None)
        self.secrets = KnownSecrets(secrets_of_url(spec.url))
        """The secrets of the URL, and those that were sent."""
        self.request_ids = itertools.count(secrets.randbelow(2**_REQUEST_ID_BITS - 2**24) + 1)
        """Request ids, unique on these sockets, so that a late or repeated response matches no
        other request. The first is random, because processes may share a session or a gateway."""
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._server, self._policy = spec.name, EgressPolicy(allow=spec.egress.allow)
        self._proxy = proxy_for(spec.proxy, self._url)
        self._refuse_if(check_host(*self._host, self._policy, NamedBy.CONFIGURATION))
        self._connector = _create_connector(spec, self._url, self._create_socket)
        self._targets: dict[URL, RequestTarget] = {}
        connect, read = spec.timeouts.connect, spec.timeouts.read
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=read)
        self._idle_timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect)
        self._exchanges: set[HttpExchange] = set()
        self._closed = asyncio.Event()

    def resolve_url(self, reference: str, base: URL | None = None) -> str | None:
        """The absolute URL of a reference in a response from `base` (by default the server's URL).
        None: it is invalid, or has another origin."""
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
        may_be_idle: bool = False,
    ) -> HttpResponse:
        """Send one request and read the head of its response. Raises `WireFault`.

        `to`: a URL that `resolve_url` returned, instead of the server's. `may_be_idle`: the
        response is a stream without a read timeout. Redirects are followed within the origin, for
        this request only. They are not remembered, because principals share this client and a
        redirect's URL may contain a secret of one of them, or be wrong.
        """
        timeout = self._idle_timeout if may_be_idle else self._timeout
        url = self._url if to is None else URL(to)
        send = self.send_once if self._tap.on_trace is None else self._send_traced
        for _ in range(_MAX_REDIRECTS):
            response = await send(method, url, headers, body, attempt, timeout)
            if not 300 <= response.status < 400:
                response.url = url
                return response
            await self._discard_body(response)
            url = _redirect_target(
                url, response.status, response.headers.get("location", ""), method
            )
        raise unreadable_fault(f"the server redirects more than {_MAX_REDIRECTS} times", None)

    async def _send_traced(self, *request: Any) -> HttpResponse:
        from toolkeep._transport.trace import send_traced

        return await send_traced(self, self._tap, *request)

    async def send_once(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: bytes | None,
        attempt: Attempt,
        timeout: aiohttp.ClientTimeout,
    ) -> HttpResponse:
        """The same without following redirects."""
        try:
            target = self._target_for(url)
            connection = await self._connect(target, timeout)
            exchange = HttpExchange(connection, timeout.sock_read, self._exchanges.discard)
            self._exchanges.add(exchange)
            try:
                head = target.head(method, headers, None if body is None else len(body))
                if attempt.revoked or not exchange.can_write:
                    raise ConnectionAbortedError
                attempt.sent = True
                exchange.write(head if body is None else head + body)
                response_head = await exchange.read_head()
            except BaseException:
                exchange.close()
                raise
        except (aiohttp.ClientError, HttpProcessingError, OSError, RuntimeError) as error:
            fault = to_fault(error, attempt, None, closed=self._closed.is_set())
        else:
            return HttpResponse(exchange, response_head, attempt)
        raise fault

    def _target_for(self, url: URL) -> RequestTarget:
        target = self._targets.get(url)
        if target is None:
            if len(self._targets) >= _MAX_TARGETS:
                self._targets.clear()
            target = self._targets[url] = RequestTarget(url, self._proxy)
        return target

    async def _connect(self, target: RequestTarget, timeout: aiohttp.ClientTimeout) -> Connection:
        if self._connector.closed:
            raise RuntimeError
        try:
            return await self._connector.connect(target.connection_request, [], timeout)
        except TimeoutError:
            raise aiohttp.ConnectionTimeoutError from None

    async def _discard_body(self, response: HttpResponse) -> None:
        """Read and drop a body, so that its TCP connection is kept."""
        try:
            with contextlib.suppress(WireFault):
                await response.read(_DISCARDED_BODY_LIMIT)
        finally:
            response.release()

    async def sleep(self, seconds: float) -> bool:
        """Sleep between two requests. False: the client was closed meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        return not self._closed.is_set()

    async def aclose(self) -> None:
        self._closed.set()
        for exchange in tuple(self._exchanges):
            exchange.closed = True
            exchange.abort()
        await self._connector.close()
        # aiohttp (3.14) leaves sockets open that still connect, or still have bytes to send.
        for sock in tuple(self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def detach(self) -> None:
        """Close the sockets without the event loop, which is gone or the parent process's.

        Closes this process's copies only; neither the loop nor its epoll is touched.
        """
        for sock in tuple(self._sockets):
            sock.close()
        self._connector._closed = True  # pyright: ignore[reportPrivateUsage]

    @property
    def _host(self) -> tuple[str, str]:
        return self._url.scheme, self._url.host or ""

    def _refuse_if(self, reason: str) -> None:
        """Raise `ConfigError` if there is a reason against connecting to the server."""
        if reason:
            raise ConfigError(
                f"connecting to {self._url.host} is refused: {reason}",
                server=self._server,
                key="egress",
                remedy="To allow it, add its host or network to egress.allow",
            )

    def _create_socket(self, address: tuple[Any, ...]) -> socket.socket:
        """A socket for this resolved address, if it may be dialled. Behind a proxy it is the
        proxy's, which the user or the environment named."""
        family, kind, protocol = address[:3]
        if self._proxy is None:
            dialled, by = str(address[4][0]), NamedBy.CONFIGURATION
            self._refuse_if(check_address(*self._host, dialled, self._policy, by))
        sock = socket.socket(family=family, type=kind, proto=protocol)
        for option, value in _KEEP_ALIVE_OPTIONS:
            sock.setsockopt(*option, value)
        self._sockets.add(sock)
        return sock


def _create_connector(
    spec: ServerSpec, url: URL, create_socket: Callable[[Any], socket.socket]
) -> HttpConnector:
    context: ssl.SSLContext | bool = ssl_context_for(spec.tls) if url.scheme == "https" else True
    return HttpConnector(
        limit=0, ssl=context, keepalive_timeout=spec.keep_alive, socket_factory=create_socket
    )
