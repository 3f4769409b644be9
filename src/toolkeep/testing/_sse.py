"""HTTP+SSE, the transport of 2024-11-05: a GET opens the stream, POSTs go to the address it names.

A stream is a session, and ends it; `forget_sessions` makes its address unknown and leaves the
stream open, as a restarted server behind a proxy does. Runs in the connections' own tasks.
"""

from __future__ import annotations

import asyncio

from toolkeep.testing._admission import Refusal
from toolkeep.testing._answer import SSE_HEADERS, Plain, send_plain
from toolkeep.testing._duplex import Channel
from toolkeep.testing._events import EventLog
from toolkeep.testing._http import LAST_CHUNK, Connection, Head, chunk, head_bytes
from toolkeep.testing._listening import Listener
from toolkeep.testing._replies import PLAIN, Exchange, acknowledged, plain_of
from toolkeep.testing.script import Behaviour, JsonObject

STREAM, MESSAGES = "/sse", "/messages"
PATHS = {STREAM: "GET", MESSAGES: "POST"}


class StreamMouth:
    """What one stream says. Its log holds the bytes as they go out."""

    tail = b"\n\n"

    def __init__(self, connection: Connection, how: Behaviour) -> None:
        self._connection, self._how = connection, how
        self._log = EventLog("")
        self._reset = how.reset
        self.broken = False
        """Whether it was the server that broke off."""
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

    def break_off(self, reset: bool) -> None:
        self.broken = True
        self._connection.break_off(reset)

    async def pour(self, headers: dict[str, str]) -> None:
        """Write all there is, until the stream ends from either side."""
        connection, how = self._connection, self._how
        chunked = {**SSE_HEADERS, **headers, "transfer-encoding": "chunked"}
        await connection.send(head_bytes(how.status or 200, chunked))
        position = 0
        while position != how.cut_stream_after_events:
            if not await self._log.beyond(position, connection.gone):
                break
            if data := self._log.events[position]:
                await connection.send(chunk(data))
            position += 1
        if connection.gone.done():
            return
        if not self.broken and not self._reset:
            await connection.send(LAST_CHUNK)
        self.broken = True
        await connection.hang_up(reset=self._reset)


def refused(sessions: set[str], head: Head, message: JsonObject | None) -> Refusal | None:
    if head.method != PATHS[head.path]:
        return Refusal(405, b"", headers={"allow": PATHS[head.path]})
    if head.method == "GET":
        return None
    if head.session is None:
        return Refusal(400, b"session_id is required", "text/plain")
    if head.session not in sessions:
        return Refusal(404, b"Could not find session", "text/plain")
    return None


def speaks(exchange: Exchange) -> bool:
    """Whether a behaviour that runs nothing still answers on the stream, not on the POST."""
    how, message = exchange.how, exchange.message or {}
    return (
        exchange.head.method == "POST"
        and {"id", "method"} <= set(message)
        and (how.status, how.redirect, how.drop) == (None, None, None)
        and not how.hang
    )


async def open_stream(exchange: Exchange) -> bool:
    engine, how, connection = exchange.engine, exchange.how, exchange.connection
    if how.delay and await connection.pause(how.delay):
        return False
    if how.body is not None:
        return await send_plain(connection, plain_of(exchange, b"", 200, {}), how)
    session, mouth = engine.new_session(), StreamMouth(connection, how)
    channel = Channel(engine, session, mouth, connection.gone)
    engine.channels[session] = channel
    if not how.hang:
        address = engine.settings.endpoint or f"{MESSAGES}?sessionId={{session}}"
        event = f"event: endpoint\ndata: {address.replace('{session}', session)}\n\n"
        mouth.write(((how.sse_prefix or "") + event).encode())
    stream = Listener(mouth, session, end=mouth.break_off, hears=False)
    engine.audience.join(stream)
    try:
        await mouth.pour({**(how.headers or {})})
    finally:
        engine.audience.leave(stream)
        engine.sessions.discard(session)
        del engine.channels[session]
        if not mouth.broken:
            channel.give_up()
        await channel.leave()
    return False


async def post(exchange: Exchange) -> bool:
    channel = exchange.engine.channels[exchange.head.session or ""]
    message, how, connection = exchange.message or {}, exchange.how, exchange.connection
    if "id" not in message or "method" not in message:
        channel.hear(message)
        return await acknowledged(exchange)
    call = channel.begin(message, how, exchange.headers)
    if how.drop == "after_run":
        if call.task is not None:
            await asyncio.wait((call.task, connection.gone), return_when=asyncio.FIRST_COMPLETED)
        channel.forget(call)
        await connection.hang_up(reset=how.reset)
        return False
    channel.answer(call, message, how)
    if how.sse_linger and await connection.pause(how.sse_linger):
        return False
    plain = Plain(how.status or 202, b"Accepted", {"content-type": "text/plain"})
    plain.headers |= how.headers or {}
    return await send_plain(connection, plain, PLAIN)


VERBS = {"GET": open_stream, "POST": post}
