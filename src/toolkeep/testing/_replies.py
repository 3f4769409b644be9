"""Answering: what a behaviour does with a request, and what each HTTP verb means when nothing else
is said.

Runs in the connection's own task, and returns whether the connection may be used again.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from toolkeep.testing import _answer
from toolkeep.testing._answer import EventStream, Plain, override_of
from toolkeep.testing._calls import Call
from toolkeep.testing._engine import Engine
from toolkeep.testing._events import EventLog, parse_event_id
from toolkeep.testing._http import Connection, Head
from toolkeep.testing._listening import SUBSCRIPTION, Listener
from toolkeep.testing.script import Behaviour, JsonObject, params_of

PLAIN = Behaviour()
_JSON = {"content-type": "application/json"}


@dataclass(slots=True)
class Exchange:
    """One request, with what is known about it once it has been read."""

    engine: Engine
    connection: Connection
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
    def asks(self) -> bool:
        """Whether the answer must be a stream, because the client is asked something on it."""
        return not self.modern and params_of(self.message).get("name") == "ask"


async def scripted(exchange: Exchange) -> bool:
    """A behaviour that answers by itself: nothing runs."""
    how, connection = exchange.how, exchange.connection
    if how.delay and await connection.pause(how.delay):
        return _left(exchange)
    if how.drop in ("before_body", "after_body", "after_run"):
        await connection.hang_up(reset=how.reset)
        return False
    if how.hang or how.endless:
        return await _withheld(exchange, {})
    message = exchange.message or {}
    if how.body_bytes:
        return await _answer.send_large(connection, message.get("id"), how)
    if how.error is not None and "method" in message and _is_stream(exchange):
        call = Call(message, modern=exchange.modern, session=exchange.session, name="")
        call.succeed({})
        return await _stream(exchange, call, {})
    return await _answer.send_plain(connection, plain_of(exchange, b"", 200, {}), how)


def _is_stream(exchange: Exchange) -> bool:
    how = exchange.how
    if how.body is not None or how.body_bytes or (how.status or 200) >= 300:
        return False
    return exchange.asks or (how.encoding or exchange.engine.settings.encoding) == "sse"


def _left(exchange: Exchange, call: Call | None = None) -> bool:
    message = exchange.message
    if call is None and message is not None and "id" in message and "method" in message:
        call = Call(message, modern=exchange.modern, session=exchange.session, name="")
    if call is not None:
        exchange.engine.gave_up(call)
    return False


async def _withheld(exchange: Exchange, headers: dict[str, str], call: Call | None = None) -> bool:
    with contextlib.suppress(ConnectionError):
        if exchange.how.endless:
            await _answer.send_endless(exchange.connection, exchange.how, headers)
        else:
            await exchange.connection.pause(None)
    return _left(exchange, call)


def plain_of(exchange: Exchange, body: bytes, status: int, headers: dict[str, str]) -> Plain:
    """The answer with everything the behaviour overrides."""
    how = exchange.how
    merged = {**_JSON, **headers}
    if how.content_type is not None:
        merged["content-type"] = how.content_type
    elif how.body is not None and not how.body.lstrip().startswith(("{", "[")):
        merged["content-type"] = "text/plain"
    if how.redirect is not None:
        merged["location"], status = how.redirect, 307
    if how.body is not None:
        body = how.body.encode()
    elif override := override_of(how, exchange.message):
        body = override
    elif (how.status or 200) >= 300:
        body = b""
    if not body and how.content_type is None:
        del merged["content-type"]
    return Plain(how.status or status, body, {**merged, **(how.headers or {})})


async def _get(exchange: Exchange) -> bool:
    """The legacy listening stream, or the rest of a broken one."""
    engine, how = exchange.engine, exchange.how
    if how.delay and await exchange.connection.pause(how.delay):
        return False
    headers = {"mcp-session-id": exchange.session} if exchange.session else {}
    resumed = parse_event_id(exchange.headers.get("last-event-id", ""))
    if resumed is not None and (log := engine.logs.get(resumed[0])) is not None:
        numbered = Behaviour(event_ids=True) if how is PLAIN else how
        stream = EventStream(exchange.connection, log, numbered)
        return await stream.open(headers, resumed[1])
    log = EventLog(engine.new_stream())
    if how.event_ids:
        engine.logs[log.name] = log
    return await _listen(exchange, log, None, headers)


async def _listen(
    exchange: Exchange, log: EventLog, asked: JsonObject | None, headers: dict[str, str]
) -> bool:
    audience, connection = exchange.engine.audience, exchange.connection
    listener = Listener(log, exchange.session, asked, connection.break_off)
    audience.join(listener)
    try:
        return await EventStream(connection, log, exchange.how).open(headers, last=False)
    finally:
        audience.leave(listener)


async def _delete(exchange: Exchange) -> bool:
    exchange.engine.sessions.discard(exchange.session or "")
    plain = plain_of(exchange, b"", 200, {})
    return await _answer.send_plain(exchange.connection, plain, exchange.how)


async def _post(exchange: Exchange) -> bool:
    message = exchange.message or {}
    if "id" not in message or "method" not in message:
        return await _accepted(exchange, message)
    call = Call(
        message,
        modern=exchange.modern,
        session=exchange.session,
        name=exchange.engine.new_stream(),
    )
    if call.method == "subscriptions/listen" and call.modern:
        return await _subscribe(exchange, call)
    headers = {"mcp-session-id": exchange.session} if exchange.session else {}
    if call.method == "initialize" and exchange.engine.settings.sessions:
        headers = {"mcp-session-id": exchange.engine.new_session()}
    exchange.engine.run(call, params_of(message), exchange.headers)
    return await _respond(exchange, call, headers)


async def _accepted(exchange: Exchange, message: JsonObject) -> bool:
    if message.get("method") == "notifications/cancelled":
        request_id = params_of(message).get("requestId")
        exchange.engine.cancel(request_id, exchange.session)
    elif "method" not in message:
        exchange.engine.desk.answered(message)
    return await acknowledged(exchange)


async def acknowledged(exchange: Exchange) -> bool:
    """The answer to what needs none."""
    if exchange.how.delay:
        await exchange.connection.pause(exchange.how.delay)
    if exchange.how.drop is not None:
        await exchange.connection.hang_up(reset=exchange.how.reset)
        return False
    if exchange.how.hang:
        return await _withheld(exchange, {})
    plain = plain_of(exchange, b"", 202, {})
    return await _answer.send_plain(exchange.connection, plain, exchange.how)


async def _subscribe(exchange: Exchange, call: Call) -> bool:
    wish: JsonObject = params_of(exchange.message).get("notifications") or {}
    asked: JsonObject = {"id": call.request_id, "filter": wish}
    params: JsonObject = {"notifications": wish, "_meta": {SUBSCRIPTION: call.request_id}}
    call.emit("notifications/subscriptions/acknowledged", params)
    return await _listen(exchange, call.log, asked, {})


async def _respond(exchange: Exchange, call: Call, headers: dict[str, str]) -> bool:
    """The call has begun: answer it as the behaviour says."""
    how, connection, settings = exchange.how, exchange.connection, exchange.engine.settings
    if how.event_ids or how.prime:
        exchange.engine.logs[call.log.name] = call.log
    delay = settings.initialize_delay + how.delay if call.method == "initialize" else how.delay
    if delay and await connection.pause(delay):
        return _left(exchange, call)
    if how.hang or how.endless:
        return await _withheld(exchange, headers, call)
    if how.drop == "after_run":
        return await _dropped(exchange, call)
    if _is_stream(exchange):
        return await _stream(exchange, call, headers)
    if call.task is not None and not await _ran(call.task, connection):
        return _left(exchange, call)
    if how.body_bytes:
        return await _answer.send_large(connection, call.request_id, how)
    return await _answer.send_plain(
        connection, plain_of(exchange, call.answer, call.status, headers), how
    )


async def _ran(task: asyncio.Task[None], connection: Connection) -> bool:
    await asyncio.wait((task, connection.gone), return_when=asyncio.FIRST_COMPLETED)
    return task.done()


async def _dropped(exchange: Exchange, call: Call) -> bool:
    if call.task is not None:
        await _ran(call.task, exchange.connection)
    await exchange.connection.hang_up(reset=exchange.how.reset)
    return False


async def _stream(exchange: Exchange, call: Call, headers: dict[str, str]) -> bool:
    log = call.log
    if (override := override_of(exchange.how, exchange.message)) is not None:
        if call.task is not None and not await _ran(call.task, exchange.connection):
            return _left(exchange, call)
        log.events[-1] = override
    elif log.done and call.status >= 400 and exchange.how.encoding is None:
        plain = plain_of(exchange, call.answer, call.status, headers)
        return await _answer.send_plain(exchange.connection, plain, exchange.how)
    kept = False
    with contextlib.suppress(ConnectionError):
        kept = await EventStream(exchange.connection, log, exchange.how).open(headers)
    if exchange.connection.gone.done() and not log.done:
        return _left(exchange, call)
    return kept


VERBS = {"POST": _post, "GET": _get, "DELETE": _delete}
