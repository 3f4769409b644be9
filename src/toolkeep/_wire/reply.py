"""An HTTP answer on its way in, and what its failures mean."""

from __future__ import annotations

import os

import aiohttp
from aiohttp.http import RawResponseMessage
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from toolkeep._rules.classify import Evidence, Trouble
from toolkeep._wire.attempt import Attempt
from toolkeep._wire.fault import WireFault
from toolkeep._wire.roominess import LARGE, make_room
from toolkeep._wire.routes import seconds_of
from toolkeep._wire.turn import SpokeFirst, Turn

_KEPT_HEADERS = ("retry-after", "www-authenticate")


class Reply:
    """An HTTP answer whose body has not been read. Must be `released`, whatever happens."""

    __slots__ = ("_answer", "_attempt", "_turn", "content_type", "headers", "status", "url")

    url: URL
    """Where it came from, after redirects."""

    def __init__(self, turn: Turn, answer: RawResponseMessage, attempt: Attempt) -> None:
        self._turn, self._answer, self._attempt = turn, answer, attempt
        self.status = answer.code
        self.headers = answer.headers
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
        return self._turn.content.at_eof()

    async def chunk(self) -> bytes:
        """The next bytes of the body; empty at its end."""
        try:
            chunk = await self._turn.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            fault = fault_of(error, self._attempt, self.status, closed=self._turn.closed)
        else:
            if len(chunk) > LARGE:
                make_room()
            return chunk
        raise fault

    async def read(self, limit: int) -> bytes | None:
        """The whole body, or None when it is larger than the limit."""
        if int(self.headers.get("content-length", 0)) > limit:
            return None
        parts: list[bytes] = []
        size = 0
        while not self.at_end:
            chunk = await self.chunk()
            size += len(chunk)
            if size > limit:
                return None
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self) -> None:
        """Keeps the connection if the body was read to its end, closes it otherwise."""
        self._turn.end()

    def discard(self) -> None:
        """Closes the connection: what comes on it cannot be told apart any more."""
        self._turn.close()

    def distrust(self) -> None:
        """It is the answer to another request: no further request goes on this connection."""
        self._turn.never_reuse()

    def abandon(self) -> None:
        """Wake whoever reads; there is no time left for more."""
        self._turn.abandon()


def fault_of(error: Exception, attempt: Attempt, status: int | None, *, closed: bool) -> WireFault:
    """`closed`: the client was, which is what ended it, whatever the HTTP library says."""
    trouble = Trouble.BROKEN if attempt.sent else Trouble.CONNECT
    detail = "the client was closed" if closed else _describe(error)
    return WireFault(Evidence(trouble=trouble, sent=attempt.sent, detail=detail, status=status))


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
        case SpokeFirst():
            return "the server sent bytes before it was asked for anything"
        case aiohttp.ClientPayloadError():
            return "the answer broke off"
        case HttpProcessingError():
            return "the answer is not HTTP"
        case RuntimeError():
            return "the client was closed"
        case OSError():
            return f"the connection broke: {error.strerror or type(error).__name__}"
        case _:
            return f"the connection failed: {type(error).__name__}"


def _reason(error: OSError) -> str:
    """In the system's words: asyncio's own repeat the address, and are none for several at once."""
    return os.strerror(error.errno) if error.errno else "none of its addresses answers"
