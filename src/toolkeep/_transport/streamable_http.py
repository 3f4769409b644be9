"""Streamable HTTP: one POST per request, in the caller's task.

`StreamableHttpTransport` serves one connection: a legacy session or a modern conversation. Its
`HttpClient` outlives it. A fault fails its own request only. `ResponseReader` reads JSON or an
event stream; `RequestHeaders` builds the headers, from low to high precedence: the server's,
its credentials, the call's, the protocol's.

The eras differ in three things: legacy requests carry a session id, a broken legacy stream is
resumed by event id, and a legacy request is cancelled by a notification where a modern one is
cancelled by closing its stream. This module never sends a request again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from typing import Any, Protocol

from mcp_types import RequestId
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolkeep._rules.backoff import stream_reopen_delay
from toolkeep._rules.classify import Evidence, FaultKind, RpcError
from toolkeep._tasks import BackgroundTasks, PeriodicYield, foreign_code
from toolkeep._transport.base import (
    NO_HEADERS,
    Attempt,
    CredentialsFault,
    InboundHandler,
    OnLost,
    RequestFault,
    WireFault,
    connection_fault,
    tolerate_server_error,
    unreadable_fault,
)
from toolkeep._transport.framing import SseEvent, split_chunk
from toolkeep._transport.http_client import HttpClient, HttpResponse
from toolkeep._transport.jsonrpc import (
    InboundDispatcher,
    RpcExchange,
    decode_messages,
    encode_notification,
    encode_request,
    is_error_without_id,
    is_response_to,
    parse_error,
    parse_result,
)
from toolkeep._transport.redaction import KnownSecrets, redact_evidence
from toolkeep.errors import ToolkeepError

logger = logging.getLogger("toolkeep.transport")


class Credentials(Protocol):
    """Authorizes the requests of one client."""

    takes_responses: bool
    """Whether `answered` must be called."""

    @property
    def is_active(self) -> bool:
        """Whether there are headers to ask for."""
        ...

    async def headers(self, method: str, own: bool) -> Mapping[str, str]:
        """The headers that authorize a request. `own`: it belongs to a call that carries the
        credentials of its principal itself."""
        ...

    def answered(self, method: str, headers: Mapping[str, str]) -> None:
        """Take the headers of a response, by lower-case name."""
        ...


OnServerMessage = Callable[[Mapping[str, Any], RpcExchange], Awaitable[None]]
"""Takes the messages that belong to no pending request."""

VERSION_HEADER = "mcp-protocol-version"
_SESSION_HEADER = "mcp-session-id"
_SESSION_ID_PATTERN = re.compile(r"[\x21-\x7e]{1,4096}")
"""Visible ASCII, as the specification requires."""

_ERROR_BODY_LIMIT = 64 * 1024
_BODY_TEXT_KEPT = 500
_BODY_PROBLEMS = {
    FaultKind.STATUS: "",
    FaultKind.BROKEN: ", and its body was cut off",
    FaultKind.UNREADABLE: " with a body that cannot be read",
}
_NOTIFICATION_BODY_LIMIT = 64 * 1024
"""Bytes of the response to a notification, which should be empty."""
_STREAM_LINGER = 0.1
"""Seconds for which an event stream may stay open after its response until its socket is closed."""
_BEST_EFFORT_TIMEOUT, _MAX_BEST_EFFORT = 5.0, 8
"""Seconds for a message without a waiting caller (a cancellation, a reply to the server), and how
many are sent at once: they must not displace calls or use up the process's sockets."""
_MAX_FRUITLESS_RESUMES = 3
"""Consecutive attempts to resume a stream that bring no new event."""
_MAX_REOPEN_DELAY = 30.0
_SHORT_STREAM = 1.0
"""Seconds. A stream that ended sooner counts as ended at once."""


class RequestHeaders:
    """Builds the headers of requests and keeps the session id. Lives as long as its transport.

    `routing_id` goes where the session id would, with requests of the modern protocol, which has
    no sessions: some gateways route by that header.
    """

    def __init__(
        self,
        headers: Mapping[str, str],
        credentials: Credentials | None,
        secrets: KnownSecrets,
        routing_id: str | None = None,
    ) -> None:
        self._credentials, self._secrets = credentials, secrets
        self._routing_id = routing_id
        self._known_credentials: Mapping[str, str] = {}
        self._known_call_headers: Mapping[str, str] = {}
        self._base = {
            **headers,
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
        }
        self.session_id: str | None = None

    async def build(
        self, method: str, protocol: Mapping[str, str], call: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """The headers of one request. Raises `CredentialsFault`."""
        headers = dict(self._base)
        if self._credentials is not None and self._credentials.is_active:
            authorization = await self._authorize(self._credentials, method, call is not None)
            if authorization != self._known_credentials:
                self._secrets.add_headers(authorization)
                self._known_credentials = dict(authorization)
            headers.update(authorization)
        if call:
            if call != self._known_call_headers:
                self._secrets.add_headers(call)
                self._known_call_headers = call
            headers.update(call)
        headers.update(protocol)
        if self.session_id is not None:
            headers[_SESSION_HEADER] = self.session_id
        elif self._routing_id and protocol.get(VERSION_HEADER) in MODERN_PROTOCOL_VERSIONS:
            headers[_SESSION_HEADER] = self._routing_id
        return headers

    async def _authorize(
        self, credentials: Credentials, method: str, is_call: bool
    ) -> Mapping[str, str]:
        try:
            with foreign_code():
                return await credentials.headers(method, is_call)
        except ToolkeepError as error:
            raise CredentialsFault(str(error), error) from None
        except Exception as error:
            kind = type(error).__name__
        # Not chained: an authorizer's exception may quote its credentials.
        raise CredentialsFault(f"the authorizer failed with {kind}")

    def answered(self, method: str, response: HttpResponse) -> None:
        """Show a response to an authorizer that wants to see them."""
        credentials = self._credentials
        if credentials is not None and credentials.takes_responses:
            names = {name.lower() for name in response.headers}
            headers = {name: ", ".join(response.headers.getall(name)) for name in names}
            credentials.answered(method, headers)

    def resume(self, session_id: str, version: str) -> None:
        self.session_id = session_id
        self._secrets.add_headers({_SESSION_HEADER: session_id})
        self._base[VERSION_HEADER] = version

    def remember_version(self, protocol: Mapping[str, str]) -> None:
        """Keep the legacy protocol version for GET and DELETE, which the session does not stamp."""
        version = protocol.get(VERSION_HEADER)
        if version is not None and version not in MODERN_PROTOCOL_VERSIONS:
            self._base[VERSION_HEADER] = version

    def capture_session(self, response: HttpResponse) -> None:
        """Take the session id from the response to `initialize`. No other response sets it."""
        session_id = response.headers.get(_SESSION_HEADER)
        if session_id is not None and not _SESSION_ID_PATTERN.fullmatch(session_id):
            raise unreadable_fault(
                "the server sent a session id that is not visible ASCII", response.status
            )
        self.session_id = session_id
        if session_id is not None:
            self._secrets.add_headers({_SESSION_HEADER: session_id})


class ResponseReader:
    """Reads the responses of one transport, each in the task of its request."""

    def __init__(self, limit: int, on_server_message: OnServerMessage) -> None:
        self._limit, self._on_server_message = limit, on_server_message
        self._linger = _STREAM_LINGER

    async def read(self, response: HttpResponse, exchange: RpcExchange) -> dict[str, Any]:
        """The response message to the request."""
        if response.content_type == "application/json":
            return await self._read_json(response, exchange)
        if response.content_type == "text/event-stream":
            return await self.read_stream(response, exchange)
        found = response.content_type or "no content type"
        raise unreadable_fault(
            f"HTTP {response.status} with {found}, expected JSON or an event stream",
            response.status,
        )

    async def _read_json(self, response: HttpResponse, exchange: RpcExchange) -> dict[str, Any]:
        body = await response.read(self._limit)
        if body is None:
            detail = f"the response is larger than {self._limit} bytes"
            raise unreadable_fault(detail, response.status)
        try:
            messages = decode_messages(body)
        except ValueError:
            raise unreadable_fault("the response is not JSON", response.status) from None
        for message in messages:
            if is_response_to(message, exchange.request_id):
                return message
        for message in messages:  # the body is complete, so no other response can follow
            if is_error_without_id(message):
                return message
        response.prevent_reuse()
        raise unreadable_fault("the response belongs to another request", response.status)

    async def read_stream(self, response: HttpResponse, exchange: RpcExchange) -> dict[str, Any]:
        """Handle the messages before the response, and return the response."""
        decode, periodic_yield = exchange.decoder(self._limit), PeriodicYield()
        while True:
            chunk = await response.read_chunk()
            for piece in split_chunk(chunk):
                for event in decode(piece):
                    message = await self._handle_event(event, exchange, periodic_yield)
                    if message is not None:
                        exchange.attempt.mark_answered()
                        await self._drain(response)
                        return message
                if piece is not chunk:
                    await periodic_yield.tick()
            if not chunk:
                if exchange.error_without_id is not None and not exchange.resumable:
                    exchange.attempt.mark_answered()
                    return exchange.error_without_id
                if exchange.got_other_response:
                    response.prevent_reuse()
                raise connection_fault(
                    "the stream ended without a response", exchange.attempt, response.status
                )

    async def _handle_event(
        self, event: SseEvent, exchange: RpcExchange, periodic_yield: PeriodicYield
    ) -> dict[str, Any] | None:
        if not event.data:
            return None
        try:
            messages = decode_messages(event.data)
        except ValueError:
            if event.event != "message":
                return None  # such as keep-alives
            raise unreadable_fault("an event of the stream is not JSON", 200) from None
        for message in messages:
            if exchange.method and is_response_to(message, exchange.request_id):
                return message
            if is_error_without_id(message):
                exchange.error_without_id = exchange.error_without_id or message
            elif "method" not in message:
                exchange.got_other_response = True
            elif not await exchange.deliver(message):
                await self._on_server_message(message, exchange)
            await periodic_yield.tick()
        return None

    async def _drain(self, response: HttpResponse) -> None:
        """Read on to the end of the stream, so that its TCP connection can be used again.

        Servers end the stream right after the response. Each stream that stays open halves the
        time to wait for the next; one that ends in time restores it.
        """
        if response.at_eof:
            return
        # Not `asyncio.timeout`: setting it up takes as long as the rest of this method.
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._linger, response.abort)
        try:
            while await response.read_chunk():
                pass
            self._linger = _STREAM_LINGER
        except WireFault:  # the response is here, and `release` closes the socket
            if loop.time() >= timer.when():
                self._linger = max(self._linger / 2, _STREAM_LINGER / 32)
        finally:
            timer.cancel()


async def status_fault(
    response: HttpResponse, request_id: RequestId, *, session: bool, standard_codes: bool = False
) -> WireFault:
    """The fault for a status other than 2xx, with the error or the text of its body."""
    kind, body = await _read_error_body(response)
    return WireFault(
        Evidence(
            kind=kind,
            sent=True,
            detail=f"the server answered HTTP {response.status}{_BODY_PROBLEMS[kind]}",
            status=response.status,
            headers=response.evidence_headers,
            error=_error_in_body(body, request_id),
            text=body[:_BODY_TEXT_KEPT].decode("utf-8", "replace"),
            carried_session=session,
            standard_codes=standard_codes,
        )
    )


async def _read_error_body(response: HttpResponse) -> tuple[FaultKind, bytes]:
    """The body of an error, and whether it is all there: a response that was cut may have been
    that of a tool that ran."""
    try:
        body = await response.read(_ERROR_BODY_LIMIT)
    except WireFault:
        return FaultKind.BROKEN, b""
    if response.content_type == "text/event-stream":
        return FaultKind.UNREADABLE, b""
    if body is None:
        is_json = response.content_type == "application/json"
        return FaultKind.UNREADABLE if is_json else FaultKind.STATUS, b""
    if body.lstrip()[:1] in (b"{", b"["):
        try:
            decode_messages(body)
        except ValueError:
            return FaultKind.UNREADABLE, body
    return FaultKind.STATUS, body


def _error_in_body(body: bytes, request_id: RequestId) -> RpcError | None:
    """The error in a body. Of several in a batch, the one with this id."""
    try:
        found = [parse_error(message, request_id) for message in decode_messages(body)]
    except ValueError:
        return None
    ours = (error for error in found if error is not None and error.answers_request)
    return next(ours, found[0])


class StreamableHttpTransport:
    """A `Transport` over streamable HTTP. Lives from the handshake to the close of one connection.

    Any task of its event loop may send. The `HttpClient` belongs to the transport's creator.
    """

    def __init__(
        self,
        client: HttpClient,
        *,
        headers: Mapping[str, str],
        max_result_bytes: int,
        credentials: Credentials | None = None,
        on_lost: OnLost | None = None,
        routing_id: str | None = None,
    ) -> None:
        self._client, self._on_lost = client, on_lost
        self._headers = RequestHeaders(headers, credentials, client.secrets, routing_id)
        self._reader = ResponseReader(max_result_bytes, self._dispatch)
        self._inbound: InboundDispatcher | None = None
        self.background_tasks = BackgroundTasks()
        self._best_effort_slots = asyncio.Semaphore(_MAX_BEST_EFFORT)

    @property
    def session_id(self) -> str | None:
        return self._headers.session_id

    @property
    def stray_output(self) -> str:
        return ""

    async def open(self, handler: InboundHandler) -> None:
        """Opens no socket: the first request does."""
        self._inbound = InboundDispatcher(self, handler)

    async def close(self) -> None:
        """Closes no socket: they belong to the HTTP client."""
        self._inbound = None
        self.background_tasks.cancel()

    def resume(self, session_id: str, version: str) -> None:
        self._headers.resume(session_id, version)

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
        """POST a request and return its result."""
        request_id = next(self._client.request_ids) if request_id is None else request_id
        exchange = RpcExchange(request_id, method, attempt, headers, cancellable)
        body = encode_request(request_id, method, exchange.with_progress_token(params))
        try:
            message = await self._send_and_read(exchange, body)
            return parse_result(message, exchange, session=self.session_id is not None)
        except asyncio.CancelledError:
            self._notify_cancelled(exchange)
            raise
        except WireFault as fault:
            evidence = redact_evidence(fault.evidence, attempt.sent_headers, self._client.secrets)
        raise WireFault(evidence, attempt.sent_headers)

    async def notify(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        """POST a notification; any 2xx is fine. The modern era has none from client to server."""
        if headers.get(VERSION_HEADER) not in MODERN_PROTOCOL_VERSIONS:
            self._headers.remember_version(headers)
            with tolerate_server_error(method):
                await self._post(encode_notification(method, params), headers)

    def stop_replying(self) -> None:
        if self._inbound is not None:
            self._inbound.stop()

    async def terminate(self) -> None:
        """DELETE the session, if there is one. The response's status is ignored."""
        if self.session_id is not None:
            response = await self._send_bodyless("DELETE", {})
            response.release()

    # -- one exchange ---------------------------------------------------------------------------

    async def _send_and_read(self, exchange: RpcExchange, body: bytes) -> dict[str, Any]:
        attempt = exchange.attempt
        self._headers.remember_version(exchange.headers)
        headers = await self._headers.build("POST", exchange.headers, attempt.headers)
        attempt.sent_headers = headers
        may_be_idle = exchange.method == "subscriptions/listen"
        response = await self._client.send("POST", headers, body, attempt, may_be_idle=may_be_idle)
        self._headers.answered("POST", response)
        try:
            return await self._read_response(response, exchange)
        except WireFault as fault:
            if fault.evidence.kind is FaultKind.UNREADABLE:
                response.discard()
            if fault.evidence.kind is not FaultKind.BROKEN or not exchange.resumable:
                raise
            broken = fault
        finally:
            response.release()
        return await self._resume(exchange, broken)

    async def _read_response(self, response: HttpResponse, exchange: RpcExchange) -> dict[str, Any]:
        if not 200 <= response.status < 300:
            raise await status_fault(
                response,
                exchange.request_id,
                session=self.session_id is not None,
                standard_codes=exchange.standard_codes,
            )
        if exchange.method == "initialize":
            self._headers.capture_session(response)
        return await self._reader.read(response, exchange)

    async def _post(
        self, body: bytes, headers: Mapping[str, str], call: Mapping[str, str] | None = None
    ) -> None:
        """POST a message that gets no response message."""
        sent = await self._headers.build("POST", headers, call)
        try:
            response = await self._client.send("POST", sent, body, Attempt())
            self._headers.answered("POST", response)
            try:
                if not 200 <= response.status < 300:
                    raise await status_fault(response, 0, session=self.session_id is not None)
                await response.read(_NOTIFICATION_BODY_LIMIT)
                return
            finally:
                response.release()
        except WireFault as fault:
            evidence = redact_evidence(fault.evidence, sent, self._client.secrets)
        raise WireFault(evidence, sent)

    async def _send_bodyless(
        self,
        method: str,
        protocol: Mapping[str, str],
        call: Mapping[str, str] | None = None,
        *,
        may_be_idle: bool = False,
    ) -> HttpResponse:
        headers = await self._headers.build(method, protocol, call)
        del headers["content-type"]
        response = await self._client.send(
            method, headers, None, Attempt(), may_be_idle=may_be_idle
        )
        self._headers.answered(method, response)
        return response

    # -- messages without a waiting caller ------------------------------------------------------

    def _notify_cancelled(self, exchange: RpcExchange) -> None:
        """Send a cancellation notification to a legacy server, in the background."""
        running = exchange.attempt.sent and not exchange.attempt.answered
        if running and exchange.cancellable and not exchange.modern:
            params = {"requestId": exchange.request_id, "reason": "the caller went away"}
            body = encode_notification("notifications/cancelled", params)
            sending = self.send_best_effort(body, exchange.headers, exchange.attempt.headers)
            self.background_tasks.start(sending, context=Context())

    async def send_best_effort(
        self, body: bytes, headers: Mapping[str, str], call: Mapping[str, str] | None
    ) -> None:
        """POST a message without a waiting caller, in bounded time. A failure is only logged."""
        try:
            async with asyncio.timeout(_BEST_EFFORT_TIMEOUT), self._best_effort_slots:
                await self._post(body, headers, call)
        except (RequestFault, TimeoutError) as error:
            logger.debug("a background message could not be sent: %s", error)

    # -- resumption and the GET stream (legacy) -------------------------------------------------

    async def _resume(self, exchange: RpcExchange, fault: WireFault) -> dict[str, Any]:
        """Resume a broken response stream by GET. Raises `fault` if that fails."""
        fruitless = short = 0
        while fruitless < _MAX_FRUITLESS_RESUMES:
            events_before = exchange.events_received
            if not await self._client.sleep(
                stream_reopen_delay(exchange.resume_delay, short=short, empty=0)
            ):
                break
            started_at = time.monotonic()
            try:
                message = await self._read_get_stream(exchange)
            except WireFault as resume_fault:
                if resume_fault.evidence.kind not in (FaultKind.BROKEN, FaultKind.CONNECT):
                    break
            else:
                if message is None:
                    break
                return message
            fruitless = 0 if exchange.events_received > events_before else fruitless + 1
            short = short + 1 if time.monotonic() - started_at < _SHORT_STREAM else 0
        raise fault

    async def listen(self, on_open: Callable[[], None]) -> None:
        """Keep the legacy GET stream open, for the server's messages outside of requests."""
        exchange = RpcExchange(request_id="", method="", attempt=Attempt(), headers={})
        short = empty = 0
        while True:
            events_before, started_at = exchange.events_received, time.monotonic()
            try:
                if await self._read_get_stream(exchange, on_open) is None:
                    return
            except WireFault as fault:
                logger.debug("the GET stream ended: %s", fault)
            duration = time.monotonic() - started_at
            was_useful = exchange.events_received > events_before or duration > max(
                exchange.resume_delay, _SHORT_STREAM
            )
            empty = 0 if was_useful else empty + 1
            delay = stream_reopen_delay(exchange.resume_delay, short=short, empty=empty)
            short = short + 1 if duration < _SHORT_STREAM else 0
            await self._client.sleep(min(delay, _MAX_REOPEN_DELAY))

    async def _read_get_stream(
        self, exchange: RpcExchange, on_open: Callable[[], None] | None = None
    ) -> dict[str, Any] | None:
        """GET a stream and read it up to the response. None: the server offers no stream."""
        protocol = {"accept": "text/event-stream"}
        if exchange.last_event_id is not None:
            protocol["last-event-id"] = exchange.last_event_id
        response = await self._send_bodyless(
            "GET", protocol, exchange.attempt.headers, may_be_idle=not exchange.method
        )
        try:
            if response.status == 404 and exchange.attempt.sent and self._on_lost is not None:
                self._on_lost("the session is gone: HTTP 404 to a GET")
            if response.status >= 500:
                raise connection_fault(
                    f"HTTP {response.status} to a GET", exchange.attempt, response.status
                )
            if response.status != 200 or response.content_type != "text/event-stream":
                return None
            exchange.attempt.sent = True
            if on_open is not None and exchange.last_event_id is None:
                on_open()
            return await self._reader.read_stream(response, exchange)
        finally:
            response.release()

    async def _dispatch(self, message: Mapping[str, Any], exchange: RpcExchange) -> None:
        if self._inbound is not None:
            await self._inbound.dispatch(message, exchange)
