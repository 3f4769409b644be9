"""From a name to a connection: lookup, TCP, and a proxy's tunnel. Bounded; leaves nothing open.

With a proxy it is the proxy that is looked up and connected to: nobody else is, by the client.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import ipaddress
import socket
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from toolkeep._doctor.case import Case
from toolkeep._doctor.faults import Fault, Step
from toolkeep._doctor.finding import Seen, Trouble
from toolkeep._wire.routes import proxy_of
from toolkeep.config import redact_url

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_SHOWN_ADDRESSES = 4


@dataclass(frozen=True, slots=True)
class Way:
    """Whom we connect to."""

    host: str
    port: int
    proxy: str = ""
    """Its URL, if it is one."""

    @property
    def what(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"the proxy {redact_url(self.proxy)}" if self.proxy else f"{host}:{self.port}"


def way_to(case: Case) -> Way:
    """Raises `ConfigError`."""
    proxy = proxy_of(case.spec)
    if proxy is None:
        return Way(case.host, case.port)
    parts = urlsplit(proxy)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Way(parts.hostname or "", port, proxy)


async def look_up(case: Case, way: Way) -> Seen:
    key = "proxy" if way.proxy else "url"
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(way.host)
        return Seen(f"{way.host} is an address", skipped=True)
    try:
        async with asyncio.timeout(case.wait):
            found = await _addresses(way)
    except TimeoutError:
        cause = f"the name {way.host!r} was not resolved within {case.wait:g} s"
        remedy = f"See whether the network or a VPN is up, or correct {case.place(key)}"
        raise Trouble(Fault.DNS_FAILURE, cause, remedy) from None
    except OSError as error:
        cause = f"the name {way.host!r} cannot be resolved: {error.strerror or 'no answer'}"
        remedy = f"Correct the host in {case.place(key)}; if it is right, see whether the network "
        raise Trouble(Fault.DNS_FAILURE, cause, f"{remedy}or a VPN is up") from None
    shown = ", ".join(found[:_SHOWN_ADDRESSES])
    return Seen(f"{way.host} is {shown}" + (f"; {way.what}" if way.proxy else ""))


async def _addresses(way: Way) -> list[str]:
    """In a thread of its own: the loop's would hold up the end of the program for as long as a
    resolver likes."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[str]] = loop.create_future()

    def settle(found: list[str] | OSError) -> None:
        if future.done():
            return
        if isinstance(found, OSError):
            future.set_exception(found)
        else:
            future.set_result(found)

    def ask() -> None:
        found: list[str] | OSError
        try:
            rows = socket.getaddrinfo(way.host, way.port, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(row[4][0]) for row in rows))
        except OSError as error:
            found = error
        except UnicodeError:  # a label that is too long
            found = OSError(0, "it is no host's name")
        with contextlib.suppress(RuntimeError):  # the loop is closed by now
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=ask, name="toolkeep lookup", daemon=True).start()
    return await future


async def connect(case: Case, way: Way) -> Seen:
    async with connected(case, way) as (_, writer):
        peer = writer.get_extra_info("peername")
    return Seen(f"{way.what} answers" + (f" at {peer[0]}" if peer and not way.proxy else ""))


@contextlib.asynccontextmanager
async def connected(case: Case, way: Way) -> AsyncGenerator[Streams]:
    """A TCP connection. Raises `Trouble`."""
    try:
        async with asyncio.timeout(case.wait):
            reader, writer = await asyncio.open_connection(way.host, way.port)
    except TimeoutError:
        cause = (
            f"no connection to {way.what} within {case.wait:g} s: packets are dropped on the way"
        )
        raise Trouble(Fault.NO_CONNECTION, cause, _reach(case, way)) from None
    except ConnectionRefusedError:
        raise _closed(case, way) from None
    except OSError as error:
        # Of several addresses that failed, asyncio (3.11) gives the errors as one text.
        if error.errno is None and f"[Errno {errno.ECONNREFUSED}]" in str(error):
            raise _closed(case, way) from None
        cause = f"no connection to {way.what}: {error.strerror or error}"
        raise Trouble(Fault.NO_CONNECTION, cause, _reach(case, way)) from None
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        # Not wait_closed(): it never returns after a TLS handshake that was given up (3.11).
        await asyncio.sleep(0)  # the round of the loop in which the socket is closed


def _closed(case: Case, way: Way) -> Trouble:
    key = case.place("proxy" if way.proxy else "url")
    cause = f"nothing listens on port {way.port} of {way.host}"
    whom = "the proxy" if way.proxy else "the server"
    return Trouble(Fault.PORT_CLOSED, cause, f"Start {whom}, or correct the port in {key}")


def _reach(case: Case, way: Way) -> str:
    if way.proxy:
        return f"See whether the proxy can be reached from here; it is set by {_proxy_from(case)}"
    return (
        f"See whether {way.host} can be reached from here (firewall, VPN); "
        f"correct {case.place('url')}, or set 'proxy'"
    )


def _proxy_from(case: Case) -> str:
    return case.place("proxy") if case.spec.proxy else "HTTP_PROXY or HTTPS_PROXY"


async def tunnel(case: Case, way: Way, streams: Streams) -> None:
    """Have the proxy connect us with the server. Raises `Trouble`."""
    reader, writer = streams
    host = f"[{case.host}]" if ":" in case.host else case.host
    head = f"CONNECT {host}:{case.port} HTTP/1.1\r\nHost: {host}:{case.port}\r\n"
    writer.write((head + _proxy_credentials(way.proxy) + "\r\n").encode("latin-1"))
    try:
        async with asyncio.timeout(case.wait):
            answer = await reader.readuntil(b"\r\n\r\n")
    except (TimeoutError, OSError, EOFError, asyncio.LimitOverrunError):
        answer = b""
    status = answer.split(b"\r\n")[0].decode("latin-1")
    if " 200" not in status[:13]:
        raise proxy_refused(case, status or "no answer", Step.TLS)


def proxy_refused(case: Case, said: str, step: Step) -> Trouble:
    cause = f"{way_to(case).what} does not let us through to {case.host}:{case.port}: {said}"
    remedy = f"Correct {_proxy_from(case)}, give it credentials, or name the host in NO_PROXY"
    return Trouble(Fault.PROXY_REFUSED, cause, remedy, step=step)


def _proxy_credentials(proxy: str) -> str:
    parts = urlsplit(proxy)
    if parts.username is None:
        return ""
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Proxy-Authorization: Basic {base64.b64encode(user.encode()).decode()}\r\n"
