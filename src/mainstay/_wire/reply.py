"""One HTTP request's body on its way out, and the answer on its way in."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import BytesPayload, Payload

from mainstay._rules.classify import Evidence, Trouble
from mainstay._wire.attempt import Attempt
from mainstay._wire.fault import WireFault
from mainstay._wire.routes import seconds_of

_KEPT_HEADERS = ("retry-after", "www-authenticate")


class Body(BytesPayload):
    """A request body that notes the moment at which it is written."""

    def __init__(self, value: bytes, attempt: Attempt) -> None:
        # Not BytesPayload's: it warns of bodies over 1 MiB, as if one could do something about it.
        Payload.__init__(self, value, content_type="application/json")
        self._size = len(value)
        self._transport: asyncio.WriteTransport | None = None
        self._attempt = attempt

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        if self._attempt.revoked:
            raise ConnectionAbortedError  # aiohttp gives the connection up; the head is unsent, too
        self._attempt.sent = True
        self._transport = writer.transport
        await writer.write(self._value)

    def cut_off(self) -> None:
        """Drop what has not left yet. A transport that is only closed goes on sending it."""
        if self._transport is not None and self._transport.get_write_buffer_size():
            self._transport.abort()


class Reply:
    """An HTTP answer whose body has not been read. Must be `released`, whatever happens."""

    __slots__ = ("_attempt", "_body", "_forget", "_response", "content_type", "headers", "status")

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        attempt: Attempt,
        forget: Callable[[Reply], None],
        body: Body | None,
    ) -> None:
        self._response, self._attempt, self._forget = response, attempt, forget
        self._body = body
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
            fault = fault_of(error, self._attempt, self.status)
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
        if self._body is not None:
            self._body.cut_off()
        self._response.release()

    def discard(self) -> None:
        """Closes the connection: what comes on it cannot be told apart any more."""
        self._forget(self)
        self._response.close()

    def abandon(self) -> None:
        """Wake whoever reads: aiohttp (3.14) lets readers sleep when its session is closed."""
        self._response.content.set_exception(aiohttp.ClientConnectionError())


def fault_of(error: Exception, attempt: Attempt, status: int | None) -> WireFault:
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
            return f"the proxy cannot be reached: {_reason(error.os_error)}"
        case aiohttp.ClientConnectorError():
            return f"cannot connect to {error.host}:{error.port}: {_reason(error.os_error)}"
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


def _reason(error: OSError) -> str:
    """In the system's words: asyncio's own repeat the address, and are none for several at once."""
    return os.strerror(error.errno) if error.errno else "none of its addresses answers"
