"""HTTP+SSE, the transport of 2024-11-05: a GET opens the stream, which names the address of POSTs.

A session lasts as long as its stream. `forget_sessions` makes the address unknown and leaves the
stream open, as a restarted server behind a proxy does.
"""

from __future__ import annotations

from collections.abc import Mapping

from toolkeep.testing._duplex import Channel
from toolkeep.testing._http import (
    LAST_CHUNK,
    SSE_HEADERS,
    Exchange,
    Head,
    HttpConnection,
    Response,
    acknowledge,
    call_ended,
    chunk,
    head_bytes,
    response_of,
    send_response,
)
from toolkeep.testing._protocol import Refusal, is_request
from toolkeep.testing._state import EventLog, Listener, ServerState
from toolkeep.testing.script import CORRECT, Behaviour, JsonObject

STREAM, MESSAGES = "/sse", "/messages"


class SseWriter:
    """Writes one stream. Its log holds the bytes as they are sent."""

    tail = b"\n\n"

    def __init__(self, connection: HttpConnection, how: Behaviour) -> None:
        self._connection, self._how = connection, how
        self._log = EventLog("")
        self._reset = how.reset
        self.broken = False
        """Whether the server broke the stream."""
        self.head = b"event: message\ndata: "
        if how.retry_ms is not None:
            self.head = b"retry: %d\n" % how.retry_ms + self.head

    def append(self, payload: bytes) -> None:
        self.write(self.head + payload + self.tail)

    def write(self, data: bytes) -> None:
        self._log.append(data.replace(b"\n", b"\r\n") if self._how.crlf else data)

    def cut(self, data: bytes, how: Behaviour) -> None:
        self.write(data)
        self.broken, self._reset = True, how.reset
        self._log.finish()

    def break_stream(self, reset: bool) -> None:
        self.broken = True
        self._connection.break_stream(reset)

    async def send(self, headers: Mapping[str, str]) -> None:
        """Send the log as it grows, until either side ends the stream."""
        connection, how = self._connection, self._how
        chunked = {**SSE_HEADERS, **headers, "transfer-encoding": "chunked"}
        await connection.send(head_bytes(how.status or 200, chunked))
        position = 0
        while position != how.cut_stream_after_events:
            if not await self._log.has_event(position, connection.gone):
                break
            if data := self._log.events[position]:
                await connection.send(chunk(data))
            position += 1
        if connection.gone.done():
            return
        if not self.broken and not self._reset:
            await connection.send(LAST_CHUNK)
        self.broken = True
        await connection.close(reset=self._reset)


class HttpSse:
    """The transport of one server, with the channel of each session."""

    paths = frozenset({STREAM, MESSAGES})

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._channels: dict[str, Channel] = {}

    def check(self, head: Head, message: JsonObject | None, *, modern: bool) -> Refusal | None:
        verb = "GET" if head.path == STREAM else "POST"
        if head.method != verb:
            return Refusal(405, b"", headers={"allow": verb})
        if head.method == "GET":
            return None
        if head.session is None:
            return Refusal(400, b"session_id is required", "text/plain")
        if head.session not in self._state.sessions:
            return Refusal(404, b"Could not find session", "text/plain")
        return None

    def answers_on_stream(self, exchange: Exchange) -> bool:
        how = exchange.how
        return (
            exchange.head.method == "POST"
            and is_request(exchange.message or {})
            and (how.status, how.redirect, how.drop) == (None, None, None)
            and not how.hang
        )

    async def handle(self, exchange: Exchange) -> bool:
        return await (self._post if exchange.head.method == "POST" else self._open)(exchange)

    async def _open(self, exchange: Exchange) -> bool:
        state, how, connection = self._state, exchange.how, exchange.connection
        if how.delay and await connection.pause(how.delay):
            return False
        if how.body is not None:
            return await send_response(connection, response_of(exchange, b"", 200, {}), how)
        session, writer = state.new_session(), SseWriter(connection, how)
        channel = Channel(state, session, writer, connection.gone)
        self._channels[session] = channel
        if not how.hang:
            address = state.settings.endpoint or f"{MESSAGES}?sessionId={{session}}"
            event = f"event: endpoint\ndata: {address.replace('{session}', session)}\n\n"
            writer.write(((how.sse_prefix or "") + event).encode())
        stream = Listener(writer, session, end=writer.break_stream, receives=False)
        state.listeners.add(stream)
        try:
            await writer.send(how.headers or {})
        finally:
            state.listeners.remove(stream)
            state.sessions.discard(session)
            del self._channels[session]
            if not writer.broken:
                channel.client_left()
            await channel.close()
        return False

    async def _post(self, exchange: Exchange) -> bool:
        channel = self._channels[exchange.head.session or ""]
        message, how, connection = exchange.message or {}, exchange.how, exchange.connection
        if not is_request(message):
            channel.receive(message)
            return await acknowledge(exchange)
        call = channel.begin(message, how, exchange.headers)
        if how.drop == "after_run":
            await call_ended(call, connection)
            channel.discard(call)
            await connection.close(reset=how.reset)
            return False
        channel.answer(call, message, how)
        if how.sse_linger and await connection.pause(how.sse_linger):
            return False
        response = Response(how.status or 202, b"Accepted", {"content-type": "text/plain"})
        response.headers |= how.headers or {}
        return await send_response(connection, response, CORRECT)
