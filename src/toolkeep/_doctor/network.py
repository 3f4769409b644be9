"""The steps from a host name to a TLS connection: DNS, TCP, the proxy's tunnel and certificates.

Every wait is bounded and no connection stays open. With a proxy the client resolves and connects to
the proxy only, so the steps do the same. Certificates are judged by OpenSSL's own error codes.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import contextlib
import errno
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from toolkeep._doctor.report import Fault, Problem, StepFailed, StepResult
from toolkeep._doctor.target import Target
from toolkeep._rules.egress import EgressPolicy, NamedBy, check_address
from toolkeep._transport.http_client import proxy_for_server
from toolkeep._transport.tls import ssl_context_for
from toolkeep.config import redact_url

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Certificate = dict[str, Any]
"""As `ssl.SSLObject.getpeercert` returns it."""

PROBE_WAIT = 3.0
"""Seconds for a connection or a request that only tests what answers: there may be several."""
SHOWN_ADDRESSES, SHOWN_NAMES = 4, 6

# X509_V_ERR_* of OpenSSL, the same since 1.0.2.
CERT_NOT_YET_VALID, CERT_EXPIRED = 9, 10
CERT_SELF_SIGNED = (18, 19)
CERT_NAME_MISMATCH = (62, 64)
# X509_V_FLAG_* of OpenSSL.
NO_CHECK_TIME, PARTIAL_CHAIN = 0x200000, 0x80000


@dataclass(frozen=True, slots=True)
class Peer:
    """What the client connects to: the server, or the proxy before it."""

    host: str
    port: int
    proxy: str = ""
    """The proxy's URL, if it is one."""

    @property
    def label(self) -> str:
        if self.proxy:
            return f"the proxy {redact_url(self.proxy)}"
        return f"{_bracketed(self.host)}:{self.port}"


def peer_of(target: Target) -> Peer:
    proxy = proxy_for_server(target.spec)
    if proxy is None:
        return Peer(target.host, target.port)
    parts = urlsplit(proxy)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Peer(parts.hostname or "", port, proxy)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# -- DNS ----------------------------------------------------------------------------------------


async def resolve_host(target: Target) -> StepResult:
    peer = peer_of(target)
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(peer.host)
        if not peer.proxy:
            check_egress(target, peer.host)
        return StepResult(f"{peer.host} is an IP address", skipped=True)
    key = target.key("proxy" if peer.proxy else "url")
    remedy = f"Correct the host in {key}; if it is right, check that the network or the VPN is up"
    try:
        async with asyncio.timeout(target.wait):
            addresses = await _addresses(peer)
    except TimeoutError:
        cause = f"the host name {peer.host!r} was not resolved within {target.wait:g} s"
        raise StepFailed(Problem(Fault.DNS_FAILURE, cause, remedy)) from None
    except OSError as error:
        why = error.strerror or "no answer"
        cause = f"the host name {peer.host!r} cannot be resolved: {why}"
        raise StepFailed(Problem(Fault.DNS_FAILURE, cause, remedy)) from None
    if not peer.proxy:
        for address in addresses:
            check_egress(target, address)
    shown = ", ".join(addresses[:SHOWN_ADDRESSES])
    return StepResult(f"{peer.host} is {shown}" + (f"; {peer.label}" if peer.proxy else ""))


def check_egress(target: Target, address: str) -> None:
    """Raise `StepFailed` if the egress policy forbids this address of the server."""
    policy = EgressPolicy(allow=target.spec.egress.allow)
    scheme = "https" if target.is_https else "http"
    reason = check_address(scheme, target.host, address, policy, NamedBy.CONFIGURATION)
    if reason:
        cause = f"connecting to {target.host} ({address}) is refused: {reason}"
        remedy = f"To allow it, add its host or network to {target.key('egress.allow')}"
        raise StepFailed(Problem(Fault.EGRESS_REFUSED, cause, remedy))


async def _addresses(peer: Peer) -> list[str]:
    """Resolve in a daemon thread.

    The loop's own executor would delay the end of the program for as long as the resolver takes.
    """
    resolving: concurrent.futures.Future[list[str]] = concurrent.futures.Future()
    resolving.set_running_or_notify_cancel()  # so that a timeout leaves the thread's result valid

    def resolve() -> None:
        try:
            rows = socket.getaddrinfo(peer.host, peer.port, type=socket.SOCK_STREAM)
            resolving.set_result(list(dict.fromkeys(str(row[4][0]) for row in rows)))
        except OSError as error:
            resolving.set_exception(error)
        except UnicodeError:  # a label that is too long
            resolving.set_exception(OSError(0, "it is not a valid host name"))

    threading.Thread(target=resolve, name="toolkeep lookup", daemon=True).start()
    return await asyncio.wrap_future(resolving)


# -- TCP ----------------------------------------------------------------------------------------


async def connect(target: Target) -> StepResult:
    peer = peer_of(target)
    async with tcp_connection(target) as (_, writer):
        address = writer.get_extra_info("peername")
    resolved = address and not peer.proxy and address[0] != peer.host
    return StepResult(f"connected to {peer.label}" + (f" ({address[0]})" if resolved else ""))


@contextlib.asynccontextmanager
async def tcp_connection(target: Target) -> AsyncGenerator[Streams]:
    """A TCP connection to the server or its proxy. Raises `StepFailed`."""
    peer = peer_of(target)
    try:
        async with asyncio.timeout(target.wait):
            reader, writer = await asyncio.open_connection(peer.host, peer.port)
    except TimeoutError:
        why = f"no answer within {target.wait:g} s; a firewall may drop the packets"
        raise StepFailed(_no_connection(target, peer, why)) from None
    except OSError as error:
        # Of several addresses that failed, asyncio (3.11) gives the errors as one text.
        several = error.errno is None and f"[Errno {errno.ECONNREFUSED}]" in str(error)
        if several or isinstance(error, ConnectionRefusedError):
            raise StepFailed(_port_closed(target, peer)) from None
        why = error.strerror or str(error)
        raise StepFailed(_no_connection(target, peer, why)) from None
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        # Not wait_closed(): it never returns after a TLS handshake that was given up (3.11).
        await asyncio.sleep(0)  # the loop closes the socket in this round


def _port_closed(target: Target, peer: Peer) -> Problem:
    what, key = ("the proxy", "proxy") if peer.proxy else ("the server", "url")
    cause = f"nothing listens on port {peer.port} of {peer.host}"
    remedy = f"Start {what}, or correct the port in {target.key(key)}"
    return Problem(Fault.PORT_CLOSED, cause, remedy)


def _no_connection(target: Target, peer: Peer, why: str) -> Problem:
    if peer.proxy:
        remedy = f"Check that this machine can reach the proxy; {_proxy_key(target)} sets it"
    else:
        remedy = (
            f"Check that this machine can reach {peer.host} (firewall, VPN); "
            f"correct {target.key('url')}, or set 'proxy'"
        )
    return Problem(Fault.NO_CONNECTION, f"no connection to {peer.label}: {why}", remedy)


# -- the proxy ----------------------------------------------------------------------------------


def _proxy_key(target: Target) -> str:
    return target.key("proxy") if target.spec.proxy else "HTTP_PROXY or HTTPS_PROXY"


async def _open_tunnel(target: Target, peer: Peer, streams: Streams) -> None:
    """Ask the proxy to connect to the server. Raises `StepFailed`."""
    reader, writer = streams
    address = f"{_bracketed(target.host)}:{target.port}"
    head = f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n"
    writer.write((head + _proxy_credentials(peer.proxy) + "\r\n").encode("latin-1"))
    try:
        async with asyncio.timeout(target.wait):
            answer = await reader.readuntil(b"\r\n\r\n")
    except (TimeoutError, OSError, EOFError, asyncio.LimitOverrunError):
        answer = b""
    status = answer.split(b"\r\n")[0].decode("latin-1")
    if " 200" not in status[:13]:
        raise StepFailed(proxy_refused(target, status or "no answer"))


def proxy_refused(target: Target, why: str) -> Problem:
    cause = f"{peer_of(target).label} refuses to connect to {target.host}:{target.port}: {why}"
    remedy = f"Correct {_proxy_key(target)}, give it credentials, or add the host to NO_PROXY"
    return Problem(Fault.PROXY_REFUSED, cause, remedy)


def _proxy_credentials(proxy: str) -> str:
    parts = urlsplit(proxy)
    if parts.username is None:
        return ""
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Proxy-Authorization: Basic {base64.b64encode(user.encode()).decode()}\r\n"


# -- TLS ----------------------------------------------------------------------------------------


async def check_tls(target: Target) -> StepResult:
    if peer_of(target).proxy.startswith("https:"):
        return StepResult("inside the proxy's TLS; tested in the HTTP step", skipped=True)
    try:
        async with _tls_connection(target, ssl_context_for(target.spec.tls)) as (_, writer):
            tls = _tls_of(writer)
            version, certificate = tls.version() or "TLS", _certificate(tls)
    except TimeoutError:
        why = f"no TLS handshake within {target.wait:g} s"
    except ssl.SSLCertVerificationError as error:
        raise StepFailed(await _untrusted(target, error)) from None
    except (OSError, EOFError) as error:
        why = f"TLS failed: {_reason(error) or 'the connection ended'}"
    else:
        verified = "" if target.spec.tls.verify else "; not verified, because of tls.verify"
        return StepResult(f"{version}{_validity(certificate)}{verified}")
    if await _speaks_plain_http(target):
        raise StepFailed(_plain_port(target), seen=why)
    raise StepFailed(_tls_failed(target, why))


@contextlib.asynccontextmanager
async def _tls_connection(target: Target, context: ssl.SSLContext) -> AsyncGenerator[Streams]:
    """A TLS connection to the server, through the proxy's tunnel if there is a proxy."""
    peer = peer_of(target)
    async with tcp_connection(target) as streams:
        if peer.proxy:
            await _open_tunnel(target, peer, streams)
        async with asyncio.timeout(target.wait):
            await streams[1].start_tls(context, server_hostname=target.host)
        yield streams


def _tls_of(writer: asyncio.StreamWriter) -> ssl.SSLObject:
    return cast("ssl.SSLObject", writer.get_extra_info("ssl_object"))


def _certificate(tls: ssl.SSLObject) -> Certificate:
    """Empty if the certificate was not verified."""
    return cast("Certificate", tls.getpeercert() or {})


def _reason(error: OSError | EOFError) -> str:
    if isinstance(error, EOFError):
        return ""
    return getattr(error, "reason", None) or error.strerror or ""


def _validity(certificate: Certificate) -> str:
    until = certificate.get("notAfter")
    if not until:
        return ""
    days = (ssl.cert_time_to_seconds(until) - time.time()) / 86400
    return f", certificate valid for {days:.0f} more days"


def _plain_port(target: Target) -> Problem:
    cause = f"port {target.port} of {target.host} speaks plain HTTP, but 'url' says https"
    remedy = f"Write http:// in {target.key('url')}, or use the server's TLS port"
    return Problem(Fault.TLS_TO_PLAIN, cause, remedy)


def _tls_failed(target: Target, cause: str) -> Problem:
    remedy = (
        f"Check whether the server requires a client certificate "
        f"({target.key('tls.client_cert')}), and which TLS versions it supports"
    )
    return Problem(Fault.TLS_FAILED, cause, remedy)


# -- certificates -------------------------------------------------------------------------------


async def _untrusted(target: Target, error: ssl.SSLCertVerificationError) -> Problem:
    certificate = await _peer_certificate(target)
    code = error.verify_code
    if code in CERT_NAME_MISMATCH:
        return _name_mismatch(target, certificate)
    if code == CERT_EXPIRED:
        return _expired(target, certificate)
    if code == CERT_NOT_YET_VALID:
        return _not_yet_valid(target, certificate)
    file = f"file in {target.key('tls.ca_file')}, or in SSL_CERT_FILE"
    if code in CERT_SELF_SIGNED and certificate.get("issuer") == certificate.get("subject"):
        cause = f"the certificate of {target.host} is self-signed, and this machine does not "
        cause += "trust it"
        return Problem(Fault.TLS_SELF_SIGNED, cause, f"Name the certificate's {file}")
    issuer = _common_name(certificate.get("issuer"))
    cause = f"this machine does not trust the issuer of the certificate of {target.host}"
    cause += f", {issuer!r}" if issuer else f": {error.verify_message}"
    remedy = f"Name the authority's {file}; or configure the server to send its whole chain"
    return Problem(Fault.TLS_ISSUER, cause, remedy)


def _common_name(parts: Any) -> str:
    """The common name, or the organisation, of a name as `getpeercert` returns it."""
    fields = dict(pair for part in parts or () for pair in part)
    return str(fields.get("commonName") or fields.get("organizationName") or "")


def _name_mismatch(target: Target, certificate: Certificate) -> Problem:
    names = [str(value) for _, value in certificate.get("subjectAltName", ())]
    listed = ", ".join(names[:SHOWN_NAMES]) or "no name at all"
    cause = f"the certificate is not valid for {target.host!r}: it is for {listed}"
    remedy = f"Use one of these names in {target.key('url')}, or issue a certificate for "
    return Problem(Fault.TLS_NAME, cause, f"{remedy}{target.host!r}")


def _expired(target: Target, certificate: Certificate) -> Problem:
    day = certificate.get("notAfter")
    cause = f"the certificate of {target.host} " + (f"expired on {day}" if day else "has expired")
    remedy = f"Renew the certificate; if it is still valid, correct this machine's clock ({_now()})"
    return Problem(Fault.TLS_EXPIRED, cause, remedy)


def _not_yet_valid(target: Target, certificate: Certificate) -> Problem:
    day = certificate.get("notBefore")
    cause = f"the certificate of {target.host} is not valid " + (f"before {day}" if day else "yet")
    return Problem(Fault.TLS_NOT_YET, cause, f"Correct this machine's clock: it says {_now()}")


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


async def _peer_certificate(target: Target) -> Certificate:
    """The fields of a certificate that is not trusted; empty if it cannot be read.

    Python parses verified certificates only. So the first connection fetches the certificate, and a
    second one trusts it as its own authority. Neither of them carries a request.
    """
    with contextlib.suppress(OSError, EOFError, TimeoutError, StepFailed, ValueError):
        async with _tls_connection(target, _unverified()) as (_, writer):
            der = _tls_of(writer).getpeercert(binary_form=True) or b""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= NO_CHECK_TIME | PARTIAL_CHAIN
        context.load_verify_locations(cadata=ssl.DER_cert_to_PEM_cert(der))
        async with _tls_connection(target, context) as (_, writer):
            return _certificate(_tls_of(writer))
    return {}


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


# -- how a port speaks --------------------------------------------------------------------------


async def _speaks_plain_http(target: Target) -> bool:
    if peer_of(target).proxy:
        return False
    with contextlib.suppress(OSError, EOFError, TimeoutError, StepFailed):
        async with tcp_connection(target) as (reader, writer):
            writer.write(f"HEAD / HTTP/1.0\r\nHost: {target.host}\r\n\r\n".encode("latin-1"))
            async with asyncio.timeout(min(target.wait, PROBE_WAIT)):
                return (await reader.readexactly(5)) == b"HTTP/"
    return False


async def tls_required(target: Target) -> Problem | None:
    """Whether the port of an http URL speaks TLS."""
    if target.is_https or peer_of(target).proxy:
        return None
    with contextlib.suppress(OSError, EOFError, TimeoutError, StepFailed):
        async with asyncio.timeout(min(target.wait, PROBE_WAIT)):
            async with _tls_connection(target, _unverified()):
                pass
            cause = f"port {target.port} of {target.host} speaks TLS, but 'url' says http"
            return Problem(Fault.PLAIN_TO_TLS, cause, f"Write https:// in {target.key('url')}")
    return None


async def rejected_after_tls(target: Target) -> Problem | None:
    """Whether the server closes a TLS connection before the first request.

    With TLS 1.3 a server judges the client's certificate after the client's side of the handshake
    is over. A server that accepts it keeps the connection open and waits for a request.
    """
    why = "no reason given"
    try:
        async with asyncio.timeout(min(target.wait, PROBE_WAIT)):
            async with _tls_connection(target, ssl_context_for(target.spec.tls)) as (reader, _):
                if await reader.read(1):
                    return None
    except (TimeoutError, StepFailed):
        return None
    except OSError as error:
        why = _reason(error) or why
    cause = f"the server closes the TLS connection before the first request: {why}"
    return _tls_failed(target, cause)
