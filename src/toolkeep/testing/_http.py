"""HTTP for the scripted server: HTTP/1.1 on asyncio sockets, and the transport streamable HTTP.

`HttpServer` owns the listening socket and every connection. Each connection has a task that reads a
request, records it, and lets rules and protocol decide how to answer. Functions that answer return
whether the connection can be used for another request. Every wait for the client ends when the
client leaves (`HttpConnection.gone`) or when the server aborts the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol, cast
from urllib.parse import parse_qs

from toolkeep.testing import _protocol
from toolkeep.testing._protocol import Refusal, cut_position, encode, is_request
from toolkeep.testing._state import (
    SUBSCRIPTION_ID,
    Call,
    EventLog,
    Listener,
    ServerState,
    parse_event_id,
)
from toolkeep.testing.script import (
    CORRECT,
    Behaviour,
    JsonObject,
    Recorded,
    RequestName,
    params_of,
)

MAX_HEAD = 1 << 20
SSE_HEADERS = {"content-type": "text/event-stream", "cache-control": "no-cache, no-transform"}
LAST_CHUNK = b"0\r\n\r\n"
_CLOSE_TIMEOUT = 5.0
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_LINGER_ZERO = struct.pack("ii", 1, 0)


# -- connections --------------------------------------------------------------------------------


@dataclass(slots=True)
class Head:
    """Request line and headers. Header names are lower case."""

    method: str
    target: str
    headers: dict[str, str]

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def session(self) -> str | None:
        """From the header of streamable HTTP, or from the query of HTTP+SSE."""
        query = parse_qs(self.target.partition("?")[2])
        return self.headers.get("mcp-session-id") or query.get("sessionId", [None])[0]


class WatchedReader(asyncio.StreamReader):
    """A reader whose future `gone` is done when the peer leaves, also while no read is pending."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit=limit)
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def feed_eof(self) -> None:
        super().feed_eof()
        self._mark_gone()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self._mark_gone()

    def _mark_gone(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)


class HttpConnection:
    """One TCP connection. Used by the task that serves it; any task may `abort` it."""

    __slots__ = ("gone", "number", "reader", "writer")

    def __init__(self, reader: WatchedReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader, self.writer, self.number = reader, writer, number
        self.gone = reader.gone

    async def read_head(self, keep_alive: float | None) -> Head | None:
        """The next request's head, or None when the client leaves or is idle for too long."""
        timer = None
        if keep_alive is not None:
            timer = asyncio.get_running_loop().call_later(keep_alive, self.writer.close)
        try:
            raw = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            return None
        finally:
            if timer is not None:
                timer.cancel()
        return parse_head(raw)

    async def read_body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("expect", "").lower() == "100-continue":
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return b"".join([chunk async for chunk in self._chunks()])
        length = int(headers.get("content-length") or 0)
        return await self.reader.readexactly(length) if length else b""

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        while await self.reader.readuntil(b"\r\n") != b"\r\n":
            pass

    async def send(self, data: bytes) -> None:
        """Write, and wait only if the peer is slow. Raises ConnectionError when it has left."""
        self.writer.write(data)
        if self.writer.transport.get_write_buffer_size() > 65536 or self.gone.done():
            await self.writer.drain()

    async def pause(self, seconds: float | None) -> bool:
        """Wait (None: for ever); True if the client left meanwhile."""
        await asyncio.wait((self.gone,), timeout=seconds)
        return self.gone.done()

    async def close(self, *, reset: bool) -> None:
        if reset:
            self.reset()
            return
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def break_stream(self, reset: bool) -> None:
        """Close in the middle of an answer. What was written before is still sent, unless reset."""
        if reset:
            self.reset()
        else:
            self.writer.close()

    def reset(self) -> None:
        reset_transport(self.writer.transport)

    def abort(self) -> None:
        self.writer.transport.abort()


def reset_transport(transport: asyncio.WriteTransport) -> None:
    """Close with RST: with linger zero the kernel drops unsent data and resets the connection."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    transport.abort()


def parse_head(raw: bytes) -> Head | None:
    lines = raw.decode("latin-1").split("\r\n")
    start = lines[0].split(" ")
    if len(start) != 3:
        return None
    headers: dict[str, str] = {}
    for line in lines[1:-2]:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Head(start[0], start[1], headers)


def head_bytes(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


# -- answers ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Response:
    """An HTTP response whose body is known."""

    status: int
    body: bytes
    headers: dict[str, str]

    def __post_init__(self) -> None:
        self.headers = {name.lower(): value for name, value in self.headers.items()}


def refusal_response(refused: Refusal) -> Response:
    kind = {"content-type": refused.content_type} if refused.content_type else {}
    return Response(refused.status, refused.body, {**kind, **refused.headers})


async def send_response(connection: HttpConnection, response: Response, how: Behaviour) -> bool:
    """Send a JSON or text answer, framed and cut as the behaviour says."""
    framing = how.framing or "length"
    headers = {**response.headers, **_framing_headers(framing, len(response.body))}
    head = head_bytes(response.status, headers)
    cut = cut_position(how, len(response.body))
    if cut is not None:
        part = response.body[:cut]
        await connection.send(head + (chunk(part) if framing == "chunked" and part else part))
        await connection.close(reset=how.reset)
        return False
    if framing == "chunked":
        await connection.send(head + (chunk(response.body) if response.body else b"") + LAST_CHUNK)
        return True
    await connection.send(head + response.body)
    if how.repeat_after is not None and not await connection.pause(how.repeat_after):
        await connection.send(head + response.body)
    return framing == "length" and not how.reset


def _framing_headers(framing: str, length: int) -> Mapping[str, str]:
    if framing == "length":
        return {"content-length": str(length)}
    return {"transfer-encoding": "chunked"} if framing == "chunked" else {"connection": "close"}


async def send_large(connection: HttpConnection, request_id: object, how: Behaviour) -> bool:
    """Send a text result of `body_bytes`, piece by piece as the client takes it."""
    parts = _protocol.large_answer(request_id, how.body_bytes or 0)
    length = sum(map(len, parts))
    headers = {"content-type": "application/json", **(how.headers or {})}
    headers |= _framing_headers(how.framing or "length", length)
    await connection.send(head_bytes(how.status or 200, headers))
    left = length if (cut := cut_position(how, length)) is None else min(cut, length)
    for part in parts:
        piece = part[:left]
        left -= len(piece)
        if piece:
            await connection.send(chunk(piece) if how.framing == "chunked" else piece)
    if cut is not None:
        await connection.close(reset=how.reset)
        return False
    if how.framing == "chunked":
        await connection.send(LAST_CHUNK)
    return how.framing != "close"


class EventStream:
    """The SSE answer of one exchange: follows a log and writes it as the behaviour says."""

    def __init__(self, connection: HttpConnection, log: EventLog, how: Behaviour) -> None:
        self._connection, self._log, self._how = connection, log, how
        self._newline = b"\r\n" if how.crlf else b"\n"

    async def open(
        self, headers: Mapping[str, str], position: int = 0, *, last: bool = True
    ) -> bool:
        """Write the head and then every event from `position` on, until the log ends or is cut.

        `last` says that the log's last event is the answer, to which `sse_prefix` and the cuts
        apply.
        """
        connection, log, how = self._connection, self._log, self._how
        extra = {**SSE_HEADERS, **headers, **(how.headers or {}), "transfer-encoding": "chunked"}
        pending = head_bytes(how.status or 200, extra)
        if how.prime and position == 0:
            pending += chunk(self._event(-1, b""))
        sent = 0
        while sent != how.cut_stream_after_events:
            if position >= len(log.events) and not log.done:
                await connection.send(pending)
                pending = b""
            if not await log.has_event(position, connection.gone):
                break
            final = last and log.done and position == len(log.events) - 1
            pending += self._chunk(position, final=final)
            position, sent = position + 1, sent + 1
            if final and cut_position(how, 0) is not None:
                return await self._break(pending)
            if len(pending) > 65536:
                await connection.send(pending)
                pending = b""
        return await self._end(pending)

    def _chunk(self, position: int, *, final: bool) -> bytes:
        data = self._event(position, self._log.events[position])
        if final:
            data = (self._how.sse_prefix or "").encode() + data
            cut = cut_position(self._how, len(data))
            data = data if cut is None else data[:cut]
        return chunk(data) if data else b""

    def _event(self, position: int, payload: bytes) -> bytes:
        lines = [b"event: message"] if payload else []
        if self._how.event_ids or self._how.prime:
            lines.append(f"id: {self._log.event_id(position)}".encode())
        if self._how.retry_ms is not None:
            lines.append(b"retry: %d" % self._how.retry_ms)
        return self._newline.join((*lines, b"data: " + payload, b"", b""))

    async def _break(self, pending: bytes) -> bool:
        await self._connection.send(pending)
        await self._connection.close(reset=self._how.reset)
        return False

    async def _end(self, pending: bytes) -> bool:
        connection, how = self._connection, self._how
        if how.reset and how.cut_stream_after_events is not None:
            return await self._break(pending)
        if how.sse_linger and self._log.done:
            await connection.send(pending)
            pending = b""
            await connection.pause(how.sse_linger)
        if connection.gone.done():
            return False
        await connection.send(pending + LAST_CHUNK)
        return True


async def send_endless(
    connection: HttpConnection, how: Behaviour, headers: Mapping[str, str]
) -> bool:
    """Send comments and log notifications until the client leaves."""
    await connection.send(
        head_bytes(how.status or 200, {**SSE_HEADERS, **headers, "transfer-encoding": "chunked"})
    )
    params = {"level": "debug", "data": "still here"}
    note = encode({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
    beats = (b": still here\n\n", b"event: message\ndata: " + note + b"\n\n")
    beat = 0
    while not await connection.pause(how.endless_gap):
        await connection.send(chunk(beats[beat % 2]))
        beat += 1
    return False


@dataclass(slots=True)
class Exchange:
    """One request, with what is known about it once it has been read."""

    state: ServerState
    connection: HttpConnection
    head: Head
    message: JsonObject | None
    modern: bool
    how: Behaviour

    @property
    def headers(self) -> dict[str, str]:
        return self.head.headers

    @property
    def session(self) -> str | None:
        return None if self.modern else self.headers.get("mcp-session-id")

    @property
    def asks_client(self) -> bool:
        """Whether the answer must be a stream, because the tool asks the client on it."""
        return not self.modern and params_of(self.message).get("name") == "ask"

    def new_call(self, name: str = "") -> Call:
        return Call(self.message or {}, modern=self.modern, session=self.session, name=name)


async def answer_without_run(exchange: Exchange) -> bool:
    """Answer as a behaviour says that does not run the tool."""
    how, connection = exchange.how, exchange.connection
    if how.delay and await connection.pause(how.delay):
        return _client_left(exchange)
    if how.drop in ("before_body", "after_body", "after_run"):
        await connection.close(reset=how.reset)
        return False
    if how.hang or how.endless:
        return await _hold_open(exchange, {})
    message = exchange.message or {}
    if how.body_bytes:
        return await send_large(connection, message.get("id"), how)
    if how.error is not None and "method" in message and _is_streamed(exchange):
        call = exchange.new_call()
        call.succeed({})
        return await _send_stream(exchange, call, {})
    return await send_response(connection, response_of(exchange, b"", 200, {}), how)


def _is_streamed(exchange: Exchange) -> bool:
    how = exchange.how
    if how.body is not None or how.body_bytes or (how.status or 200) >= 300:
        return False
    return exchange.asks_client or (how.encoding or exchange.state.settings.encoding) == "sse"


def _client_left(exchange: Exchange, call: Call | None = None) -> bool:
    if call is None and is_request(exchange.message or {}):
        call = exchange.new_call()
    if call is not None:
        exchange.state.client_left(call)
    return False


async def _hold_open(exchange: Exchange, headers: dict[str, str], call: Call | None = None) -> bool:
    with contextlib.suppress(ConnectionError):
        if exchange.how.endless:
            await send_endless(exchange.connection, exchange.how, headers)
        else:
            await exchange.connection.pause(None)
    return _client_left(exchange, call)


def response_of(exchange: Exchange, body: bytes, status: int, headers: dict[str, str]) -> Response:
    """The answer, with everything that the behaviour overrides."""
    how = exchange.how
    merged = {"content-type": "application/json", **headers}
    if how.content_type is not None:
        merged["content-type"] = how.content_type
    elif how.body is not None and not how.body.lstrip().startswith(("{", "[")):
        merged["content-type"] = "text/plain"
    if how.redirect is not None:
        merged["location"], status = how.redirect, 307
    if how.body is not None:
        body = how.body.encode()
    elif override := _protocol.override(how, exchange.message):
        body = override
    elif (how.status or 200) >= 300:
        body = b""
    if not body and how.content_type is None:
        del merged["content-type"]
    return Response(how.status or status, body, {**merged, **(how.headers or {})})


async def acknowledge(exchange: Exchange) -> bool:
    """Answer a message that has no result."""
    if exchange.how.delay:
        await exchange.connection.pause(exchange.how.delay)
    if exchange.how.drop is not None:
        await exchange.connection.close(reset=exchange.how.reset)
        return False
    if exchange.how.hang:
        return await _hold_open(exchange, {})
    response = response_of(exchange, b"", 202, {})
    return await send_response(exchange.connection, response, exchange.how)


# -- streamable HTTP ----------------------------------------------------------------------------


class HttpTransport(Protocol):
    """What streamable HTTP and HTTP+SSE do differently."""

    paths: frozenset[str]

    def check(self, head: Head, message: JsonObject | None, *, modern: bool) -> Refusal | None: ...
    def answers_on_stream(self, exchange: Exchange) -> bool:
        """Whether `handle` also answers this request if its behaviour does not run the tool."""
        ...

    async def handle(self, exchange: Exchange) -> bool: ...


class StreamableHttp:
    """The transport of 2025-03-26 and later, in both eras."""

    paths = frozenset({"/mcp"})

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._verbs = {"POST": _post, "GET": _get, "DELETE": _delete}

    def check(self, head: Head, message: JsonObject | None, *, modern: bool) -> Refusal | None:
        state = self._state
        if head.method not in self._verbs or (modern and head.method != "POST"):
            return Refusal(405, b"", headers={"allow": "POST"})
        if head.method == "GET" and not state.settings.get_stream:
            return Refusal(405, b"", headers={"allow": "POST, DELETE"})
        if modern:
            return _protocol.check_envelope(state.settings, head.headers, message or {})
        if head.headers.get("mcp-session-id") in state.stranded:
            return Refusal(502, b"<html>", "text/html")
        return _protocol.check_session(state.settings, head.headers, message or {}, state.sessions)

    def answers_on_stream(self, exchange: Exchange) -> bool:
        return False

    async def handle(self, exchange: Exchange) -> bool:
        return await self._verbs[exchange.head.method](exchange)


async def _get(exchange: Exchange) -> bool:
    """The legacy listening stream, or the rest of a broken one."""
    state, how = exchange.state, exchange.how
    if how.delay and await exchange.connection.pause(how.delay):
        return False
    headers = {"mcp-session-id": exchange.session} if exchange.session else {}
    resumed = parse_event_id(exchange.headers.get("last-event-id", ""))
    if resumed is not None and (log := state.logs.get(resumed[0])) is not None:
        numbered = Behaviour(event_ids=True) if how is CORRECT else how
        stream = EventStream(exchange.connection, log, numbered)
        return await stream.open(headers, resumed[1])
    log = EventLog(state.new_stream())
    if how.event_ids:
        state.logs[log.name] = log
    return await _listen(exchange, log, None, headers)


async def _listen(
    exchange: Exchange, log: EventLog, request: JsonObject | None, headers: dict[str, str]
) -> bool:
    listeners, connection = exchange.state.listeners, exchange.connection
    listener = Listener(log, exchange.session, request, connection.break_stream)
    listeners.add(listener)
    try:
        return await EventStream(connection, log, exchange.how).open(headers, last=False)
    finally:
        listeners.remove(listener)


async def _delete(exchange: Exchange) -> bool:
    exchange.state.sessions.discard(exchange.session or "")
    response = response_of(exchange, b"", 200, {})
    return await send_response(exchange.connection, response, exchange.how)


async def _post(exchange: Exchange) -> bool:
    state, message = exchange.state, exchange.message or {}
    if not is_request(message):
        if message.get("method") == "notifications/cancelled":
            state.cancel(params_of(message).get("requestId"), exchange.session)
        elif "method" not in message:
            state.client_requests.answered(message)
        return await acknowledge(exchange)
    call = exchange.new_call(state.new_stream())
    if call.method == "subscriptions/listen" and call.modern:
        return await _subscribe(exchange, call)
    headers = {"mcp-session-id": exchange.session} if exchange.session else {}
    if call.method == "initialize" and state.settings.sessions:
        headers = {"mcp-session-id": state.new_session()}
    state.run(call, params_of(message), exchange.headers)
    return await _respond(exchange, call, headers)


async def _subscribe(exchange: Exchange, call: Call) -> bool:
    wanted: JsonObject = params_of(exchange.message).get("notifications") or {}
    params: JsonObject = {"notifications": wanted, "_meta": {SUBSCRIPTION_ID: call.request_id}}
    call.emit("notifications/subscriptions/acknowledged", params)
    return await _listen(exchange, call.log, {"id": call.request_id, "filter": wanted}, {})


async def _respond(exchange: Exchange, call: Call, headers: dict[str, str]) -> bool:
    """Answer a call that runs, as the behaviour says."""
    how, connection, settings = exchange.how, exchange.connection, exchange.state.settings
    if how.event_ids or how.prime:
        exchange.state.logs[call.log.name] = call.log
    delay = settings.initialize_delay + how.delay if call.method == "initialize" else how.delay
    if delay and await connection.pause(delay):
        return _client_left(exchange, call)
    if how.hang or how.endless:
        return await _hold_open(exchange, headers, call)
    if how.drop == "after_run":
        await call_ended(call, connection)
        await connection.close(reset=how.reset)
        return False
    if _is_streamed(exchange):
        return await _send_stream(exchange, call, headers)
    if not await call_ended(call, connection):
        return _client_left(exchange, call)
    if how.body_bytes:
        return await send_large(connection, call.request_id, how)
    response = response_of(exchange, call.answer, call.status, headers)
    return await send_response(connection, response, how)


async def call_ended(call: Call, connection: HttpConnection) -> bool:
    """Wait until the call has ended; False if the client left first."""
    if call.task is None:
        return True
    await asyncio.wait((call.task, connection.gone), return_when=asyncio.FIRST_COMPLETED)
    return call.task.done()


async def _send_stream(exchange: Exchange, call: Call, headers: dict[str, str]) -> bool:
    log, connection, how = call.log, exchange.connection, exchange.how
    if (override := _protocol.override(how, exchange.message)) is not None:
        if not await call_ended(call, connection):
            return _client_left(exchange, call)
        log.events[-1] = override
    elif log.done and call.status >= 400 and how.encoding is None:
        response = response_of(exchange, call.answer, call.status, headers)
        return await send_response(connection, response, how)
    reusable = False
    with contextlib.suppress(ConnectionError):
        reusable = await EventStream(connection, log, how).open(headers)
    if connection.gone.done() and not log.done:
        return _client_left(exchange, call)
    return reusable


# -- the server ---------------------------------------------------------------------------------


class HttpServer:
    """The listening socket and the connections of one server."""

    def __init__(self, state: ServerState, transport: HttpTransport) -> None:
        self.state, self._transport = state, transport
        self.port = state.settings.port
        self._connections: dict[HttpConnection, asyncio.Task[None]] = {}
        self._listener: asyncio.Server | None = None

    async def listen(self) -> None:
        context = None
        if self.state.settings.tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.state.settings.tls)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self._protocol, "127.0.0.1", self.port, ssl=context, backlog=1024
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(WatchedReader(MAX_HEAD), self._connected)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.state.accepted += 1
        connection = HttpConnection(cast(WatchedReader, reader), writer, self.state.accepted)
        self._connections[connection] = asyncio.create_task(self._serve(connection))
        self.state.open_connections = len(self._connections)

    async def _serve(self, connection: HttpConnection) -> None:
        """Serve requests until one of them, or the client, ends the connection."""
        try:
            while (head := await connection.read_head(self.state.settings.keep_alive)) is not None:
                if not await self._serve_request(connection, head):
                    return
                if head.headers.get("connection", "").lower() == "close":
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.pop(connection, None)
            self.state.open_connections = len(self._connections)
            connection.writer.close()

    async def _serve_request(self, connection: HttpConnection, head: Head) -> bool:
        state, settings = self.state, self.state.settings
        announced = (head.headers.get("mcp-method"), head.headers.get("mcp-name"))
        early = state.rules.pick_before_body(head.method, announced)
        if early is not None:
            self._record(connection, head, None, announced)
            await connection.close(reset=early.reset)
            return False
        message, broken = _protocol.decode(await connection.read_body(head.headers))
        name = _protocol.request_name(message)
        modern = _protocol.is_modern(settings, head.headers)
        denied = self._check_path(head) or _protocol.check_credentials(settings, head.headers)
        refused = denied or broken or self._transport.check(head, message, modern=modern)
        how = None
        if denied is None:
            how = state.pick_behaviour(
                head.method, message, name, refused=refused is not None, announced=announced
            )
        unread = how is not None and how.drop == "before_body"
        self._record(connection, head, None if unread else message, name)
        exchange = Exchange(state, connection, head, message, modern, how or CORRECT)
        if how is not None and not how.runs and not self._transport.answers_on_stream(exchange):
            return await answer_without_run(exchange)
        if refused is not None:
            return await send_response(connection, refusal_response(refused), CORRECT)
        return await self._transport.handle(exchange)

    def _check_path(self, head: Head) -> Refusal | None:
        # Before the credentials: clients look for metadata, which must not depend on them.
        if head.path in self._transport.paths:
            return None
        return Refusal(404, b"Not Found", "text/plain")

    def _record(
        self, connection: HttpConnection, head: Head, body: JsonObject | None, name: RequestName
    ) -> None:
        self.state.record(
            lambda number, at: Recorded(
                *(number, head.method, *name, head.headers, body),
                *(connection.number, head.session, at),
            )
        )

    async def restart(self) -> None:
        await self.close()
        self.state.reset()
        await self.listen()

    async def close(self) -> None:
        """Stop listening, break every connection, end every call."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        tasks = list(self._connections.values())
        for connection in self._connections:
            connection.abort()
        await self.state.close(tasks)
        if listener is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(listener.wait_closed(), _CLOSE_TIMEOUT)
        await asyncio.sleep(0)
