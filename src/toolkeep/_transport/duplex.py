"""Requests and responses over one `MessageChannel`: stdio, HTTP+SSE or in-process.

One task reads the channel and hands each message to the request it belongs to; the request's
own task takes it from there, so a slow consumer delays itself only. When the channel ends,
every pending request fails with what is true of itself: not sent, or outcome unknown. This
module never opens a second channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextvars import Context
from typing import TYPE_CHECKING, Any, cast

from mcp_types import INVALID_REQUEST, ErrorData, RequestId

from toolkeep._rules.classify import Evidence, FaultKind
from toolkeep._rules.limits import MAX_BUFFERED_BYTES, REPORT_OVERHEAD, ReportBuffer, json_size
from toolkeep._tasks import BackgroundTasks, PeriodicYield, finish_or_cancel, foreign_code
from toolkeep._transport.base import (
    NO_HEADERS,
    Attempt,
    CloseReason,
    InboundHandler,
    MessageChannel,
    OnLost,
    OversizedMessage,
    ReceivedMessage,
    RequestFault,
    Tap,
    WireFault,
    connection_fault,
    tolerate_server_error,
    unreadable_fault,
    with_sent_state,
)
from toolkeep._transport.jsonrpc import (
    InboundDispatcher,
    RpcExchange,
    as_request_id,
    canonical_id,
    encode_notification,
    encode_request,
    is_error_without_id,
    parse_error,
    parse_result,
)
from toolkeep._transport.redaction import redact_evidence, redact_text

if TYPE_CHECKING:
    from toolkeep._transport.trace import ChannelTrace

logger = logging.getLogger("toolkeep.transport")

_CLOSE_REASON_GRACE = 1.5
"""Seconds to wait after a failed write for the channel's end, which tells the reason."""
_CLOSED = "the client was closed"
_STRAY_CANCELLATION = "a library cancelled the request"
_PING_TIMEOUT = 5.0
_ERROR_TEXT_KEPT = 500
_BEST_EFFORT_TIMEOUT = 5.0
"""Seconds for a message without a waiting caller: a cancellation, a reply to the server."""
_MAX_ABANDONED = 10_000
_ABANDONED_GRACE = 60.0
"""Seconds for which an abandoned request may still be the origin of a server's request: a server
does not confirm a cancellation."""
_METHODS_WITH_SERVER_REQUESTS = ("tools/call", "prompts/get", "resources/read")
"""Methods during which a server may send requests of its own."""


class PendingRequest:
    """A request without a response yet, and the messages that have arrived for it."""

    __slots__ = ("_has_messages", "_messages", "exchange")

    def __init__(self, exchange: RpcExchange) -> None:
        self.exchange = exchange
        self._messages = ReportBuffer[dict[str, Any] | BaseException](_notification_size)
        self._has_messages = asyncio.Event()

    def put(self, item: dict[str, Any] | BaseException) -> None:
        self._messages.append(item)
        self._has_messages.set()

    async def take(self) -> dict[str, Any]:
        """The next message. Raises the fault that was put instead."""
        while not self._messages:
            self._has_messages.clear()
            await self._has_messages.wait()
        item = self._messages.popleft()
        if isinstance(item, BaseException):
            raise item
        return item


class PendingRequests(dict[RequestId, PendingRequest]):
    """The pending requests of one transport by request id; "7" and 7 are the same id."""

    def __init__(self) -> None:
        super().__init__()
        self._abandoned: dict[RequestId, float] = {}
        """Requests without a waiting caller on which the server may still work, and since when."""

    def mark_abandoned(self, exchange: RpcExchange) -> None:
        """Remember a request that the server may still work on and send requests for."""
        if (
            exchange.method in _METHODS_WITH_SERVER_REQUESTS
            and len(self._abandoned) < _MAX_ABANDONED
        ):
            self._abandoned[canonical_id(exchange.request_id)] = time.monotonic()

    def owner_of(self, message: ReceivedMessage) -> PendingRequest | None:
        """The request that a response or a progress notification belongs to."""
        if isinstance(message, OversizedMessage):
            request_id = message.request_id
        elif "method" not in message:
            request_id = as_request_id(message.get("id"))
        elif message["method"] == "notifications/progress":
            return self._find(_progress_token(message))
        else:
            return None
        if request_id is not None:
            self._abandoned.pop(canonical_id(request_id), None)
            return self._find(request_id)
        # An error without an id may be about a notification, so the response can still follow. An
        # oversized message leaves the outcome unknown, so it may end the only pending request.
        return self._single() if isinstance(message, OversizedMessage) else None

    def _find(self, request_id: RequestId | None) -> PendingRequest | None:
        return None if request_id is None else self.get(canonical_id(request_id))

    def _single(self) -> PendingRequest | None:
        return next(iter(self.values())) if len(self) == 1 else None

    def exchange_for(self, message: Mapping[str, Any]) -> RpcExchange:
        """The exchange during which the server sent this request, if that is certain.

        A channel does not name it. With exactly one candidate it is certain. With several, or
        with one that was abandoned recently, a neutral exchange is returned.
        """
        candidates = [
            pending.exchange
            for pending in self.values()
            if pending.exchange.method in _METHODS_WITH_SERVER_REQUESTS
        ]
        since = time.monotonic() - _ABANDONED_GRACE
        self._abandoned = {id_: at for id_, at in self._abandoned.items() if at > since}
        if len(candidates) == 1 and "id" in message and not self._abandoned:
            return candidates[0]
        only_abandoned = self._abandoned and not candidates
        attempt = Attempt(on_server_request=_decline_server_request if only_abandoned else None)
        return RpcExchange(
            request_id="", method="", attempt=attempt, headers=NO_HEADERS, context=Context()
        )


def _notification_size(item: dict[str, Any] | BaseException) -> int | None:
    """The size of a notification; None for responses and faults, which are never dropped."""
    if isinstance(item, BaseException) or "method" not in item:
        return None
    return REPORT_OVERHEAD + json_size(item, MAX_BUFFERED_BYTES)


async def _decline_server_request(method: str, params: Mapping[str, Any]) -> ErrorData:
    """Refuse a request that belongs to an abandoned call."""
    return ErrorData(code=INVALID_REQUEST, message="the call is over")


def _progress_token(message: Mapping[str, Any]) -> RequestId | None:
    params = message.get("params")
    if not isinstance(params, dict):
        return None
    return as_request_id(cast("dict[str, Any]", params).get("progressToken"))


class _ChannelUnusable(Exception):
    """Messages arrive, but a response can no longer be matched to its request."""


class DuplexTransport:
    """A `Transport` over one `MessageChannel`, which it owns and closes.

    Any task of its event loop may send. It lives as long as its channel.
    """

    def __init__(
        self,
        channel: MessageChannel,
        *,
        secrets: Iterable[str],
        read_timeout: float | None,
        on_lost: OnLost,
        request_ids: Iterator[int] | None = None,
        tap: Tap | None = None,
    ) -> None:
        """`request_ids`: the source of request ids, if other transports share the HTTP client.
        `tap`: where the messages of the channel are reported."""
        self._channel, self._secrets, self._on_lost = channel, secrets, on_lost
        self._tap = tap or Tap()
        self._channel_trace: ChannelTrace | None = None
        self._read_timeout = read_timeout
        self._request_ids = request_ids or itertools.count(1)
        self._pending = PendingRequests()
        self._close_reason: CloseReason | None = None
        self._ended = asyncio.Event()
        self._checking_liveness = False
        self._last_error_without_id = ""
        """The text of the last error without an id, for a handshake that gets no response."""
        self._inbound: InboundDispatcher | None = None
        self._reader: asyncio.Task[None] | None = None
        self.background_tasks = BackgroundTasks()

    @property
    def session_id(self) -> str | None:
        return self._channel.session_id

    @property
    def stray_output(self) -> str:
        return self._channel.stray_output or self._last_error_without_id

    async def open(self, handler: InboundHandler) -> None:
        await self._channel.open()
        if self._tap.on_trace is not None:
            self._trace.opened()
        self._inbound = InboundDispatcher(self, handler)
        reading = self._run_reader()
        self._reader = asyncio.get_running_loop().create_task(reading, context=Context())

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        attempt: Attempt,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        request_id: RequestId | None = None,
        cancellable: bool = True,
    ) -> dict[str, Any]:
        """Send a request and wait for its result."""
        request_id = next(self._request_ids) if request_id is None else request_id
        exchange = RpcExchange(request_id, method, attempt, headers, cancellable)
        body = encode_request(request_id, method, exchange.with_progress_token(params))
        return await self._run_exchange(exchange, body)

    async def notify(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        with tolerate_server_error(method):
            await self._send(encode_notification(method, params), Attempt(), headers)

    def resume(self, session_id: str, version: str) -> None:
        """Never called: the session ends with the channel (`TransportFactory.resumable`)."""

    async def listen(self, on_open: Callable[[], None]) -> None:
        """Return at once: the channel already carries all messages of the server."""
        on_open()

    def stop_replying(self) -> None:
        if self._inbound is not None:
            self._inbound.stop()

    async def terminate(self) -> None:
        """Do nothing: closing the channel ends the session."""

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait((self._reader,))
        self._fail_pending(self._close_reason or CloseReason(_CLOSED))
        self._inbound = None
        self.background_tasks.cancel()
        if self._tap.on_trace is not None:
            self._trace.stray_output(self._channel.stray_output)
        await self._channel.close()

    # -- tracing --------------------------------------------------------------------------------

    @property
    def _trace(self) -> ChannelTrace:
        from toolkeep._transport.trace import ChannelTrace

        if self._channel_trace is None:
            self._channel_trace = ChannelTrace(self._tap, self._secrets)
        return self._channel_trace

    def _traced_reason(self, reason: CloseReason) -> CloseReason:
        if self._tap.on_trace is not None:
            self._trace.stray_output(self._channel.stray_output)
            self._trace.closed(reason)
        return reason

    # -- one exchange ---------------------------------------------------------------------------

    async def _run_exchange(self, exchange: RpcExchange, body: bytes) -> dict[str, Any]:
        key = canonical_id(exchange.request_id)
        pending = self._pending[key] = PendingRequest(exchange)
        try:
            sending = self._send(body, exchange.attempt, exchange.headers)
            if self._channel.replies_during_send:
                message = await self._read_during_send(sending, pending)
            else:
                await sending
                message = await self._read_response(pending)
            return parse_result(message, exchange, session=False, status=None)
        except asyncio.CancelledError:
            self._notify_cancelled(exchange)
            raise
        except WireFault as fault:
            evidence = with_sent_state(fault.evidence, exchange.attempt)
            evidence = redact_evidence(evidence, exchange.attempt.sent_headers, self._secrets)
        finally:
            del self._pending[key]
        raise WireFault(evidence, exchange.attempt.sent_headers)

    async def _send(self, body: bytes, attempt: Attempt, headers: Mapping[str, str]) -> None:
        if self._close_reason is not None:
            raise self._close_fault(self._close_reason, attempt)
        if self._tap.on_trace is not None:
            self._trace.sent(body)
        try:
            await self._channel.send(body, attempt, headers)
        except WireFault:
            if attempt.sent or self._channel.replies_during_send:
                raise
            # The channel has just ended, and its reader is about to learn the reason.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_REASON_GRACE):
                    await self._ended.wait()
            if self._close_reason is None:
                raise
        else:
            return
        raise self._close_fault(self._close_reason, attempt)

    async def _read_during_send(
        self, sending: Coroutine[Any, Any, None], pending: PendingRequest
    ) -> dict[str, Any]:
        """Send and read at once: the response may arrive before `send` returns. Whichever ends
        first, the response or a failed send, decides."""

        def on_sent(sent: asyncio.Task[None]) -> None:
            if sent.cancelled():  # by a library: after our own cancel the request is not pending
                pending.put(connection_fault(_STRAY_CANCELLATION, pending.exchange.attempt))
            elif (fault := sent.exception()) is not None:
                pending.put(fault)

        task = asyncio.ensure_future(sending)
        task.add_done_callback(on_sent)
        try:
            message = await self._read_response(pending)
        except BaseException:
            # A cancelled aiohttp request may still write in this turn of the event loop.
            pending.exchange.attempt.revoked = True
            task.cancel()
            raise
        if not task.done():  # a POST that ends by itself keeps its TCP connection
            self.background_tasks.start(
                finish_or_cancel(task, _BEST_EFFORT_TIMEOUT), flushable=False
            )
        return message

    async def _read_response(self, pending: PendingRequest) -> dict[str, Any]:
        exchange = pending.exchange
        while True:
            try:
                async with asyncio.timeout(self._read_timeout):
                    message = await pending.take()
            except TimeoutError:
                self._notify_cancelled(exchange)
                raise connection_fault(
                    "the server sent no data within timeouts.read", exchange.attempt
                ) from None
            if "method" not in message:
                exchange.attempt.mark_answered()
                return message
            await exchange.deliver(message)

    def _notify_cancelled(self, exchange: RpcExchange) -> None:
        """Send a cancellation notification in the background, in both eras."""
        attempt = exchange.attempt
        if not attempt.sent or attempt.answered or not exchange.cancellable or self._close_reason:
            return
        self._pending.mark_abandoned(exchange)
        received_nothing = (
            self._channel.replies_during_send
            and self._channel.last_received_at < exchange.started_at
        )
        if received_nothing and not self._checking_liveness:
            self._checking_liveness = True
            self.background_tasks.start(self._check_liveness(), context=Context(), flushable=False)
        params = {"requestId": exchange.request_id, "reason": "the caller went away"}
        body = encode_notification("notifications/cancelled", params)
        sending = self.send_best_effort(body, exchange.headers, attempt.headers)
        self.background_tasks.start(sending, context=Context())

    async def _check_liveness(self) -> None:
        """Ping the server, and report the connection as lost if nothing at all arrives.

        A stream that broke silently (a gateway, a suspended laptop) looks like a slow server. Any
        bytes count as life, even an error. Pending requests keep waiting in either case.
        """
        pinged_at = time.monotonic()
        body = encode_request(f"life-{next(self._request_ids)}", "ping", None)
        await self.send_best_effort(body, {}, None)
        await asyncio.sleep(_PING_TIMEOUT)
        self._checking_liveness = self._channel.last_received_at < pinged_at
        if self._checking_liveness and self._close_reason is None:
            self._on_lost("the server does not respond to a ping")

    async def send_best_effort(
        self, body: bytes, headers: Mapping[str, str], call: Mapping[str, str] | None
    ) -> None:
        """Send a message without a waiting caller, in bounded time. A failure is only logged."""
        try:
            async with asyncio.timeout(_BEST_EFFORT_TIMEOUT):
                await self._send(body, Attempt(call), headers)
        except (RequestFault, TimeoutError) as error:
            logger.debug("a background message could not be sent: %s", error)

    # -- reading --------------------------------------------------------------------------------

    async def _run_reader(self) -> None:
        """Read until the channel ends. No request is pending after that."""
        reason = CloseReason(_CLOSED)
        try:
            reason = await self._read()
        finally:
            self._fail_pending(reason)
        self._on_lost(reason.detail)

    async def _read(self) -> CloseReason:
        periodic_yield = PeriodicYield()
        try:
            with foreign_code():
                while (received := await self._channel.receive()) is not None:
                    if self._tap.on_trace is not None:
                        self._trace.stray_output(self._channel.stray_output)
                        self._trace.received(received)
                    for message in received:
                        await self._route(message)
                        await periodic_yield.tick()
                return self._traced_reason(await self._channel.close_reason())
        except _ChannelUnusable as lost:
            return CloseReason(str(lost))
        except Exception as error:
            logger.exception("reading from a server failed")
            return CloseReason(f"reading failed with {type(error).__name__}")

    async def _route(self, message: ReceivedMessage) -> None:
        pending = self._pending.owner_of(message)
        if isinstance(message, OversizedMessage):
            text = f"a message is larger than {message.limit} bytes"
            if pending is None:
                raise _ChannelUnusable(f"{text}, and its request is unknown")
            pending.put(unreadable_fault(text, None))
        elif pending is not None:
            pending.put(message)
        elif is_error_without_id(message):
            self._record_error_without_id(message)
        elif self._inbound is not None:
            await self._inbound.dispatch(message, self._pending.exchange_for(message))

    def _record_error_without_id(self, message: Mapping[str, Any]) -> None:
        error = parse_error(message, "")
        text = f"error {error.code}: {error.message}" if error else "an error without a code"
        self._last_error_without_id = redact_text(text, self._secrets)[:_ERROR_TEXT_KEPT]
        logger.debug("ignored an error that names no request: %r", self._last_error_without_id)

    # -- the channel's end ----------------------------------------------------------------------

    def _fail_pending(self, reason: CloseReason) -> None:
        self._close_reason = reason
        self._ended.set()
        for pending in tuple(self._pending.values()):
            pending.put(self._close_fault(reason, pending.exchange.attempt))

    def _close_fault(self, reason: CloseReason, attempt: Attempt) -> WireFault:
        return WireFault(
            Evidence(
                kind=FaultKind.BROKEN if attempt.sent else FaultKind.CONNECT,
                sent=attempt.sent,
                detail=reason.detail,
                exit_code=reason.exit_code,
                stderr=reason.stderr,
            )
        )
