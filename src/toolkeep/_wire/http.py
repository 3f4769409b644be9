"""Streamable HTTP: the SDK's `Dispatcher`, one request at a time, in the caller's own task.

Each request is a POST whose answer is JSON or an event stream. A fault fails that request and
nothing else: there is no shared read loop that could die. One dispatcher serves one connection
(one legacy session, or one modern conversation) and is never revived; the `Link` under it, and so
its TCP connections, outlives it.

Legacy and modern differ here in three things only: legacy requests carry a session id, broken
legacy streams are resumed by event id, and a legacy request is cancelled by a notification where
a modern one is by closing its stream. The era of a request is read off its version header.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextvars import Context
from typing import Any

import anyio
import anyio.abc
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolkeep._rules.budget import reopening_pause
from toolkeep._rules.classify import Trouble
from toolkeep._wire import jsonrpc
from toolkeep._wire.answers import AnswerReader, refusal, result_of
from toolkeep._wire.attempt import Attempt
from toolkeep._wire.errands import Errands
from toolkeep._wire.exchange import Exchange, broken, within
from toolkeep._wire.fault import WireFault, tolerating
from toolkeep._wire.heading import VERSION, Credentials, Heading
from toolkeep._wire.hush import hushed
from toolkeep._wire.inbound import Inbox
from toolkeep._wire.link import Link
from toolkeep._wire.reply import Reply
from toolkeep._wire.wire import OnLost

logger = logging.getLogger("toolkeep.wire")

_COURTESY, _MOST_COURTESIES = 5.0, 8
"""Seconds for a message that nobody waits for (a cancellation, an answer to the server), and how
many at once: they must not crowd out calls, nor run the process out of sockets."""
_BODY_LIMIT = 64 * 1024
"""Of a notification's answer, which is empty by rights."""
_MOST_RESUMES = 3
"""Consecutive attempts to resume a stream that bring no new event."""
_LONGEST_PAUSE = 30.0
_SHORT_STREAM = 1.0
"""Seconds: a stream that ended sooner ended at once."""


class HttpDispatcher:
    """Sends for any task of its loop. Lives from handshake to close of one connection."""

    def __init__(
        self,
        link: Link,
        *,
        headers: Mapping[str, str],
        max_result_bytes: int,
        credentials: Credentials | None = None,
        on_lost: OnLost | None = None,
    ) -> None:
        self._link, self._on_lost = link, on_lost
        self._heading = Heading(headers, credentials, link.secrets)
        self._reader = AnswerReader(max_result_bytes, self._hand_on)
        self._inbox: Inbox | None = None
        self.errands = Errands()
        self._courtesies = asyncio.Semaphore(_MOST_COURTESIES)

    @property
    def session_id(self) -> str | None:
        return self._heading.session_id

    @property
    def said(self) -> str:
        return ""

    async def open(self) -> None:
        """The first request opens what it needs."""

    async def close(self) -> None:
        """The sockets are the link's."""

    def resume(self, session_id: str, version: str) -> None:
        self._heading.resume(session_id, version)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Stands ready to hand on what the server sends, until cancelled."""
        self._inbox = Inbox(self, on_request, on_notify, on_notify_intercept, "streamable-http")
        task_status.started()
        try:
            await anyio.sleep_forever()
        finally:
            self._inbox = None
            self.errands.cancel()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """POST, and the result that answers it. Raises `WireFault` or `InvalidAnswer`."""
        exchange = Exchange.of(method, opts or {}, self._link.ids)
        body = jsonrpc.request(exchange.request_id, method, exchange.stamped(params))
        if (seconds := (opts or {}).get("timeout")) is not None:
            return await within(seconds, self._exchange(exchange, body), exchange.attempt)
        return await self._exchange(exchange, body)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """POST a notification; any 2xx is fine. The modern wire has none from client to server."""
        headers = (opts or {}).get("headers") or {}
        if headers.get(VERSION) not in MODERN_PROTOCOL_VERSIONS:
            self._heading.remember_version(headers)
            with tolerating(method):
                await self._post(jsonrpc.notification(method, params), headers)

    def stop_answering(self) -> None:
        if self._inbox is not None:
            self._inbox.stop()

    async def terminate(self) -> None:
        """DELETE the session. Whatever the server answers, it is forgotten here."""
        if self.session_id is not None:
            reply = await self._send_bodyless("DELETE", {})
            reply.release()

    # -- one exchange ---------------------------------------------------------------------------

    async def _exchange(self, exchange: Exchange, body: bytes) -> dict[str, Any]:
        try:
            message = await self._converse(exchange, body)
            return result_of(message, exchange, session=self.session_id is not None)
        except asyncio.CancelledError:
            self._abandon(exchange)
            raise
        except WireFault as fault:
            evidence = hushed(fault.evidence, exchange.attempt.sent_headers, self._link.secrets)
        raise WireFault(evidence)

    async def _converse(self, exchange: Exchange, body: bytes) -> dict[str, Any]:
        attempt = exchange.attempt
        self._heading.remember_version(exchange.headers)
        headers = await self._heading.write("POST", exchange.headers, attempt.headers)
        attempt.sent_headers = headers
        may_idle = exchange.method == "subscriptions/listen"
        reply = await self._link.send("POST", headers, body, attempt, may_idle=may_idle)
        try:
            return await self._answer(reply, exchange)
        except WireFault as fault:
            if fault.evidence.trouble is Trouble.UNREADABLE:
                reply.discard()
            if fault.evidence.trouble is not Trouble.BROKEN or not exchange.resumable:
                raise
            broken_off = fault
        finally:
            reply.release()
        return await self._resume(exchange, broken_off)

    async def _answer(self, reply: Reply, exchange: Exchange) -> dict[str, Any]:
        if not 200 <= reply.status < 300:
            session = self.session_id is not None
            fixed = exchange.fixed_codes
            raise await refusal(reply, exchange.request_id, session=session, fixed_codes=fixed)
        if exchange.method == "initialize":
            self._heading.capture_session(reply)
        return await self._reader.answer(reply, exchange)

    async def _post(
        self, body: bytes, headers: Mapping[str, str], call: Mapping[str, str] | None = None
    ) -> None:
        """POST a message that has no answer."""
        sent = await self._heading.write("POST", headers, call)
        try:
            reply = await self._link.send("POST", sent, body, Attempt())
            try:
                if not 200 <= reply.status < 300:
                    raise await refusal(reply, 0, session=self.session_id is not None)
                await reply.read(_BODY_LIMIT)
                return
            finally:
                reply.release()
        except WireFault as fault:
            evidence = hushed(fault.evidence, sent, self._link.secrets)
        raise WireFault(evidence)

    async def _send_bodyless(
        self,
        method: str,
        protocol: Mapping[str, str],
        call: Mapping[str, str] | None = None,
        *,
        may_idle: bool = False,
    ) -> Reply:
        headers = await self._heading.write(method, protocol, call)
        del headers["content-type"]
        return await self._link.send(method, headers, None, Attempt(), may_idle=may_idle)

    # -- what nobody waits for ------------------------------------------------------------------

    def _abandon(self, exchange: Exchange) -> None:
        """Tell a legacy server that nobody waits any more; off the caller's path."""
        running = exchange.attempt.sent and not exchange.attempt.answered
        if running and exchange.cancellable and not exchange.modern:
            params = {"requestId": exchange.request_id, "reason": "the caller went away"}
            body = jsonrpc.notification("notifications/cancelled", params)
            sending = self.send_in_courtesy(body, exchange.headers, exchange.attempt.headers)
            self.errands.start(sending, context=Context())

    async def send_in_courtesy(
        self, body: bytes, headers: Mapping[str, str], call: Mapping[str, str] | None
    ) -> None:
        """POST a message that nobody waits for. Bounded; what goes wrong is only noted."""
        try:
            async with asyncio.timeout(_COURTESY), self._courtesies:
                await self._post(body, headers, call)
        except (MCPError, TimeoutError) as error:
            logger.debug("a message that nobody waits for was not taken: %s", error)

    # -- resumption and the GET stream (legacy) -------------------------------------------------

    async def _resume(self, exchange: Exchange, fault: WireFault) -> dict[str, Any]:
        """Fetch the rest of a broken answer stream. When it cannot be had, the fault stands."""
        fruitless = short = 0
        while fruitless < _MOST_RESUMES:
            heard = exchange.heard
            if not await self._link.pause(reopening_pause(exchange.pause, short=short, empty=0)):
                break
            begun = time.monotonic()
            try:
                message = await self._read_on(exchange)
            except WireFault as again:
                if again.evidence.trouble not in (Trouble.BROKEN, Trouble.CONNECT):
                    break
            else:
                if message is None:
                    break
                return message
            fruitless = 0 if exchange.heard > heard else fruitless + 1
            short = short + 1 if time.monotonic() - begun < _SHORT_STREAM else 0
        raise fault

    async def listen(self, on_open: Callable[[], None]) -> None:
        """Keep the legacy GET stream open, for whatever the server says outside of a request."""
        exchange = Exchange(request_id="", method="", attempt=Attempt(), headers={})
        short = empty = 0
        while True:
            heard, begun = exchange.heard, time.monotonic()
            try:
                if await self._read_on(exchange, on_open) is None:
                    return
            except WireFault as fault:
                logger.debug("the GET stream ended: %s", fault)
            lasted = time.monotonic() - begun
            lasting = lasted > max(exchange.pause, _SHORT_STREAM)
            empty = 0 if exchange.heard > heard or lasting else empty + 1
            pause = reopening_pause(exchange.pause, short=short, empty=empty)
            short = short + 1 if lasted < _SHORT_STREAM else 0
            await self._link.pause(min(pause, _LONGEST_PAUSE))

    async def _read_on(
        self, exchange: Exchange, on_open: Callable[[], None] | None = None
    ) -> dict[str, Any] | None:
        """GET a stream and read it to its answer. None: the server has none to offer."""
        protocol = {"accept": "text/event-stream"}
        if exchange.last_event_id is not None:
            protocol["last-event-id"] = exchange.last_event_id
        reply = await self._send_bodyless(
            "GET", protocol, exchange.attempt.headers, may_idle=not exchange.method
        )
        try:
            if reply.status == 404 and exchange.attempt.sent and self._on_lost is not None:
                self._on_lost("a GET found no session")
            if reply.status >= 500:
                raise broken(f"HTTP {reply.status} to a GET", exchange.attempt, reply.status)
            if reply.status != 200 or reply.content_type != "text/event-stream":
                return None
            exchange.attempt.sent = True
            if on_open is not None and exchange.last_event_id is None:
                on_open()
            return await self._reader.in_stream(reply, exchange)
        finally:
            reply.release()

    async def _hand_on(self, message: Mapping[str, Any], exchange: Exchange) -> None:
        if self._inbox is not None:
            await self._inbox.take(message, exchange)
