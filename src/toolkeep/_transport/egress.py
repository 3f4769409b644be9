"""`fetch`: one guarded HTTP request, for everything that toolkeep fetches by itself.

The policy checks the host name, then every resolved address, and only a checked address is
dialled, so a second DNS answer changes nothing. Redirects are followed for GET only; each hop
is checked as a host that a server named. Behind a proxy the target's address is unknown: names
and literal addresses are checked, and the proxy resolves the rest. This module keeps no cookies
and no connections, and its errors hold no secrets.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from toolkeep._rules.egress import (
    EgressPolicy,
    NamedBy,
    check_address,
    check_addresses,
    check_host,
    origin,
    range_of,
)
from toolkeep._transport.http_client import proxy_for
from toolkeep._transport.tls import ssl_context_for
from toolkeep._version import __version__
from toolkeep.config import TLS, redact_url
from toolkeep.errors import ToolkeepError

MAX_REDIRECTS = 3
REDIRECT_STATUSES = (301, 302, 303, 307, 308)

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""Resolves a host and a port to IP addresses."""


class FetchFailed(ToolkeepError):
    """A fetch got no usable response. The message contains no secret."""


class EgressRefused(FetchFailed):
    """The egress policy forbids this connection. Nothing was sent to the host."""

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(
            f"connecting to {url} is refused: {reason}. To allow it, add its host or network to "
            "egress.allow"
        )


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """An HTTP response with its whole body."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    """By lower-case name. Repeated headers are joined with a comma."""
    body: bytes = field(repr=False)
    url: str
    """The URL that responded, after redirects."""
    peer: str = ""
    """The IP address that responded. Empty when unknown: behind a proxy, or if addresses of
    several ranges were dialled."""


async def fetch(
    method: str,
    url: str,
    *,
    policy: EgressPolicy,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    timeout: float = 15.0,
    max_bytes: int = 256 * 1024,
    tls: TLS | None = None,
    proxy: str | None = None,
    resolve: Resolver | None = None,
) -> FetchResponse:
    """Send one request and read its response. Raises `FetchFailed`, or its `EgressRefused`."""
    target = _parse_url(url)
    try:
        async with asyncio.timeout(timeout):
            for _ in range(MAX_REDIRECTS + 1):
                hop = _Hop(target, policy, tls or TLS(), proxy, resolve or resolve_with_system)
                response = await hop.send(method, headers or {}, body, max_bytes)
                if method != "GET" or response.status not in REDIRECT_STATUSES:
                    return response
                target = _redirect_target(target, response)
    except TimeoutError:
        raise FetchFailed(f"{_display_url(target)} did not answer within {timeout:g} s") from None
    raise FetchFailed(f"{_display_url(_parse_url(url))} redirects more than {MAX_REDIRECTS} times")


async def resolve_with_system(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class _Hop:
    """One request to one URL. Used once."""

    def __init__(
        self, url: URL, policy: EgressPolicy, tls: TLS, proxy: str | None, resolve: Resolver
    ) -> None:
        self.url, self._policy, self._tls, self._resolve = url, policy, tls, resolve
        self._scheme, self._host = url.scheme, url.host or ""
        self._named_by = policy.named_by(url.scheme, self._host, url.port or 0)
        self._raise_if_refused(check_host(self._scheme, self._host, policy, self._named_by))
        self._proxy = proxy_for(proxy, url)
        self._dialled_addresses: list[str] = []

    async def send(
        self, method: str, headers: Mapping[str, str], body: bytes | None, max_bytes: int
    ) -> FetchResponse:
        connector = aiohttp.TCPConnector(
            ssl=ssl_context_for(self._tls) if self._scheme == "https" else True,
            resolver=_GuardedResolver(self._addresses),
            use_dns_cache=False,
            force_close=True,
            socket_factory=self._socket,
        )
        ours = {"user-agent": f"toolkeep/{__version__}", "accept-encoding": "identity"}
        try:
            async with (
                aiohttp.ClientSession(
                    connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
                ) as session,
                session.request(
                    method,
                    self.url,
                    data=body,
                    headers={**ours, **headers},
                    allow_redirects=False,
                    proxy=self._proxy,
                    timeout=aiohttp.ClientTimeout(total=None),
                ) as response,
            ):
                content = await self._read(response, max_bytes)
                return FetchResponse(
                    response.status, _plain_headers(response), content, str(self.url), self._peer()
                )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failed = _to_error(self.url, error)
        # Not chained: aiohttp's exceptions hold the request's headers.
        raise failed

    async def _read(self, response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
        content = bytearray()
        async for chunk in response.content.iter_chunked(16 * 1024):
            content += chunk
            if len(content) > max_bytes:
                raise FetchFailed(
                    f"the response of {_display_url(self.url)} has more than {max_bytes} bytes"
                )
        return bytes(content)

    async def _addresses(self, host: str, port: int) -> list[str]:
        found = await self._resolve(host, port)
        if self._is_target(host):
            reason = check_addresses(self._scheme, host, found, self._policy, self._named_by)
            self._raise_if_refused(reason)
        return found

    def _is_target(self, host: str) -> bool:
        """False for the proxy, which is trusted: the user or the environment named it."""
        return self._proxy is None or host == self._host

    def _socket(self, info: tuple[Any, ...]) -> socket.socket:
        """Check the address that is dialled. aiohttp never resolves literal addresses, so they
        are checked here only."""
        family, kind, protocol, _, address = info
        if self._proxy is None:
            host, policy = self._host, self._policy
            self._raise_if_refused(
                check_address(self._scheme, host, address[0], policy, self._named_by)
            )
            self._dialled_addresses.append(address[0])
        return socket.socket(family, kind, protocol)

    def _peer(self) -> str:
        """The address that responded, if known: aiohttp races addresses and hides the winner."""
        ranges = {range_of(address) for address in self._dialled_addresses}
        return self._dialled_addresses[-1] if len(ranges) == 1 else ""

    def _raise_if_refused(self, reason: str) -> None:
        if reason:
            raise EgressRefused(_display_url(self.url), reason)


class _GuardedResolver(AbstractResolver):
    """Gives aiohttp the checked addresses, as literals."""

    def __init__(self, addresses: Resolver) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in await self._addresses(host, port)
        ]

    async def close(self) -> None:
        """Do nothing: the resolver holds no resources."""


def _parse_url(url: str) -> URL:
    try:
        if not url.isprintable() or "\\" in url or " " in url:
            raise ValueError
        parsed = URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host or not parsed.port:
            raise ValueError
    except ValueError:
        raise EgressRefused(redact_url(url)[:200], "it is not an http(s) URL") from None
    if parsed.user is not None or parsed.password is not None:
        raise EgressRefused(_display_url(parsed), "the URL contains a user name or a password")
    return parsed.with_fragment(None)


def _redirect_target(url: URL, response: FetchResponse) -> URL:
    location = response.headers.get("location", "")
    try:
        target = _parse_url(str(url.join(URL(location))))
    except ValueError:
        raise FetchFailed(f"{_display_url(url)} redirects to an invalid URL") from None
    if not location or (url.scheme == "https" and target.scheme != "https"):
        raise EgressRefused(
            _display_url(target), f"{_display_url(url)} redirects to it without https"
        )
    return target


def _to_error(url: URL, error: Exception) -> FetchFailed:
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return FetchFailed(f"{_display_url(url)}: the TLS certificate is not trusted")
    what = error.strerror if isinstance(error, OSError) and error.strerror else ""
    return FetchFailed(f"{_display_url(url)} cannot be reached: {what or type(error).__name__}")


def _display_url(url: URL) -> str:
    """The URL without its query, which may contain secrets."""
    return redact_url(str(url.with_query(None).with_fragment(None)))


def _plain_headers(response: aiohttp.ClientResponse) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in response.headers.items():
        key = name.lower()
        found[key] = f"{found[key]}, {value}" if key in found else value
    return found


def is_configured(url: str, policy: EgressPolicy) -> bool:
    """Whether the configuration names the origin of this URL."""
    parsed = _parse_url(url)
    named_by = policy.named_by(parsed.scheme, parsed.host or "", parsed.port or 0)
    return named_by is NamedBy.CONFIGURATION


def policy_for(*urls: str, allow: tuple[str, ...] = ()) -> EgressPolicy:
    """The policy for what servers at these configured URLs refer to. Empty URLs are ignored."""
    parsed = [URL(url) for url in urls if url]
    named = {origin(one.scheme, one.host or "", one.port or 0) for one in parsed}
    return EgressPolicy(origins=frozenset(named), allow=allow)
