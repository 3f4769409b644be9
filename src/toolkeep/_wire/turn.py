"""HTTP/1.1 on one of aiohttp's connections: a request that is written at once, an answer that is
read as it comes.

The pool, TLS, proxies, the parser and the streams are aiohttp's (3.14). Its `ClientSession.request`
is not used: cookies, redirects, form data, tracing and a task for every body cost as much as all
that is done here for a call, and it may send a request twice. What is written is in memory as a
whole, so one write is enough, and the moment before it is the last one at which nothing has left.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Callable, Mapping

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.helpers import TimerNoop
from aiohttp.http import RawResponseMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from yarl import URL

_UNTIMED = TimerNoop()


class SpokeFirst(aiohttp.ClientConnectionError):
    """The server sent bytes on a new connection before it was asked for anything."""


def has_unread(protocol: ResponseHandler) -> bool:
    """Whether something has come on this connection that the event loop has not read: bytes, or
    its end."""
    transport = protocol.transport
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is None or (number := sock.fileno()) < 0:
        return False
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([number], [], [], 0)[0])
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(0))


class Address:
    """One URL, as it is asked for: on which connections, and with which head."""

    def __init__(self, url: URL, proxy: str | None) -> None:
        """Belongs to the running loop."""
        self.connects = aiohttp.ClientRequest(
            "GET",
            url,
            proxy=URL(proxy) if proxy else None,
            loop=asyncio.get_running_loop(),
        )
        """Never sent. It says to aiohttp where a connection leads, and has the headers that go with
        every request; one of them, the proxy's credentials, only once it has been connected."""
        forwarded = proxy is not None and url.scheme == "http"
        self._target = str(self.connects.url) if forwarded else self.connects.url.raw_path_qs
        self._own: dict[str, str] = {}

    def head(self, method: str, headers: Mapping[str, str], length: int | None) -> bytes:
        """To be written on a connection. The names of `headers` are in lower case.

        Raises ValueError for what is no header.
        """
        if not self._own:
            own = self.connects.headers.items()
            self._own = {name.lower(): f"{name}: {value}" for name, value in own}
        lines = [f"{method} {self._target} HTTP/1.1"]
        lines += [line for name, line in self._own.items() if name not in headers]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if length is not None:
            lines.append(f"content-length: {length}")
        text = "\r\n".join(lines)
        breaks = len(lines) - 1
        if text.count("\n") != breaks or text.count("\r") != breaks or "\0" in text:
            raise ValueError("a header holds a line break")
        return f"{text}\r\n\r\n".encode()


class Turn:
    """A connection for the time of one request and its answer. It is given back when both are
    whole, at the very moment; and closed when one of them never will be.
    """

    __slots__ = ("_connection", "_forget", "_protocol", "closed", "content")

    def __init__(
        self, connection: Connection, silence: float | None, forget: Callable[[Turn], None]
    ) -> None:
        """After so many seconds of silence, reading fails. At its end, it asks to be forgotten."""
        assert connection.protocol is not None
        self._forget = forget
        self._connection: Connection | None = connection
        self._protocol: ResponseHandler = connection.protocol
        self.closed = False
        """Whether the client was closed in its course."""
        self.content: StreamReader = EMPTY_PAYLOAD
        """The answer's body, once its head has come."""
        self._protocol.set_response_params(
            timer=_UNTIMED, read_until_eof=True, read_timeout=silence
        )

    @property
    def can_write(self) -> bool:
        return self._protocol.is_connected()

    def write(self, request: bytes) -> None:
        assert self._protocol.transport is not None
        self._protocol.transport.write(request)

    async def answered(self) -> RawResponseMessage:
        """The head of the answer."""
        if not self._protocol.writing_paused:
            self._protocol.start_timeout()
            return await self._head()
        upload = asyncio.ensure_future(self._wait_for_upload())
        try:
            return await self._head()
        finally:
            upload.cancel()

    async def _head(self) -> RawResponseMessage:
        while True:
            message, content = await self._protocol.read()
            if not 100 <= message.code < 200 or message.code == 101:
                break
        self.content = content
        content.on_eof(self.end)
        return message

    async def _wait_for_upload(self) -> None:
        """While a large request is on its way, the server's silence says nothing."""
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await self._protocol._drain_helper()  # pyright: ignore[reportPrivateUsage]
            self._protocol.start_timeout()

    def end(self) -> None:
        """aiohttp keeps the connection if the answer was read to its end, and closes it otherwise.
        If a part of the request is still unsent, there is nothing to keep.
        """
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._forget(self)
        if not self.content.is_eof():
            self.content.set_exception(aiohttp.ClientConnectionError())
        if self._cut_off():
            connection.close()
        else:
            connection.release()

    def abandon(self) -> None:
        """Wake whoever reads: aiohttp lets readers sleep when its connector is closed."""
        if self._connection is not None:  # it may be another's by now
            self.content.set_exception(aiohttp.ClientConnectionError())
            self._cut_off()

    def _cut_off(self) -> bool:
        """Drop what has not left yet, if there is any."""
        transport = self._protocol.transport
        unsent = transport is not None and transport.get_write_buffer_size() > 0
        if transport is not None and unsent:
            transport.abort()  # one that is only closed goes on sending
        return unsent

    def close(self) -> None:
        """Keep nothing, whatever has been read; unless it has been given back."""
        if self._connection is not None:
            self._protocol.force_close()
            self.end()

    def never_reuse(self) -> None:
        """Have the connection closed once it is idle, also if it has been given back: answers on
        it no longer belong to the requests they follow."""
        self._protocol.force_close()
