"""HTTP+SSE of 2024-11-05 as a `MessageChannel`: one GET stream, and a POST per message.

The stream brings every message of the server and is the session: its first event names the URL
to POST to, and the session ends with it. A failed POST fails its own message only. A response
may arrive on the stream before its POST ends. This module never POSTs to another origin than
the configured one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mcp_types import RequestId

from toolkeep._tasks import PeriodicYield
from toolkeep._transport.base import (
    Attempt,
    CloseReason,
    OversizedMessage,
    ReceivedMessage,
    WireFault,
    connection_fault,
    unreadable_fault,
)
from toolkeep._transport.framing import (
    SseDecoder,
    SseEvent,
    SseEventTooLarge,
    response_id,
    split_chunk,
)
from toolkeep._transport.http_client import HttpClient, HttpResponse
from toolkeep._transport.jsonrpc import decode_messages
from toolkeep._transport.redaction import redact_evidence, redact_text
from toolkeep._transport.streamable_http import Credentials, RequestHeaders, status_fault

logger = logging.getLogger("toolkeep.transport")

_EVENT_STREAM = "text/event-stream"
_SESSION_KEYS = ("sessionId", "session_id")  # as the TypeScript and the Python SDK name it
_POST_BODY_LIMIT = 64 * 1024
"""Bytes of a POST's response, which is "Accepted" or empty."""
_POST_BODY_TIMEOUT = 0.1
"""Seconds for the body of a POST's response, which has no meaning."""


class SseChannel:
    """One event stream, from its GET to its end. Its `HttpClient` outlives it."""

    replies_during_send = True
    last_received_at = 0.0
    stray_output = ""

    def __init__(
        self,
        client: HttpClient,
        *,
        headers: Mapping[str, str],
        credentials: Credentials | None,
        limit: int,
    ) -> None:
        self._client, self._limit = client, limit
        self._headers = RequestHeaders(headers, credentials, client.secrets)
        self._decoder = SseDecoder(limit)
        self._response: HttpResponse | None = None
        self._undecoded: deque[bytes] = deque()
        self._periodic_yield = PeriodicYield()
        self._early_events: list[SseEvent] = []
        """Events that arrived in the same chunk as the endpoint."""
        self._endpoint = ""
        self._session_id: str | None = None
        self._end_reason: str | None = None
        """Why the stream ended; None: it is open."""

    @property
    def session_id(self) -> str | None:
        return self._session_id

    async def open(self) -> None:
        sent = await self._headers.build("GET", {"accept": _EVENT_STREAM})
        del sent["content-type"]
        try:
            await self._connect(sent)
            return
        except WireFault as fault:
            self._release()
            evidence = redact_evidence(fault.evidence, sent, self._client.secrets)
        raise WireFault(evidence, sent)

    async def _connect(self, headers: Mapping[str, str]) -> None:
        attempt = Attempt()
        self._response = response = await self._client.send(
            "GET", headers, None, attempt, may_be_idle=True
        )
        self._headers.answered("GET", response)
        if not 200 <= response.status < 300:
            raise await status_fault(response, 0, session=False)
        if response.content_type != _EVENT_STREAM:
            found = response.content_type or "no content type"
            raise unreadable_fault(
                f"HTTP {response.status} with {found}, expected {_EVENT_STREAM}", response.status
            )
        self._resolve_endpoint(await self._read_endpoint_event(response, attempt), response)

    async def _read_endpoint_event(self, response: HttpResponse, attempt: Attempt) -> str:
        """The data of the `endpoint` event. Events before it are ignored."""
        while True:
            if not self._undecoded:
                self._undecoded.extend(split_chunk(await response.read_chunk()))
            await self._periodic_yield.tick()
            piece = self._undecoded.popleft()
            try:
                events = self._decoder.feed(piece) if piece else self._decoder.finish()
            except SseEventTooLarge as error:
                raise unreadable_fault(str(error), response.status) from None
            for index, event in enumerate(events):
                if event.event == "endpoint":
                    self._early_events = events[index + 1 :]
                    return event.data
            if not piece:
                raise connection_fault(
                    "the stream ended without an endpoint event", attempt, response.status
                )

    def _resolve_endpoint(self, reference: str, response: HttpResponse) -> None:
        endpoint = self._client.resolve_url(reference.strip(), response.url)
        if endpoint is None:
            # A server that could name another origin could have the credentials sent there.
            raise unreadable_fault(
                "the endpoint event names a URL outside the configured origin", response.status
            )
        query = parse_qs(urlsplit(endpoint).query)
        found = [query[key][0] for key in _SESSION_KEYS if key in query]
        self._endpoint, self._session_id = endpoint, found[0] if found else None
        if found:
            self._client.secrets.add_headers({"session": found[0]})

    # -- sending --------------------------------------------------------------------------------

    async def send(self, body: bytes, attempt: Attempt, headers: Mapping[str, str]) -> None:
        if self._end_reason is not None:
            raise connection_fault(self._end_reason, attempt)
        sent = await self._headers.build("POST", headers, attempt.headers)
        attempt.sent_headers = sent
        try:
            await self._post(body, attempt, sent)
            return
        except WireFault as fault:
            evidence = redact_evidence(fault.evidence, sent, self._secrets)
        raise WireFault(evidence, sent)

    async def _post(self, body: bytes, attempt: Attempt, headers: Mapping[str, str]) -> None:
        response = await self._client.send("POST", headers, body, attempt, to=self._endpoint)
        self._headers.answered("POST", response)
        try:
            if not 200 <= response.status < 300:
                raise await status_fault(response, _request_id_of(body), session=True)
            # The server has accepted the message, so a failure to read the body is ignored.
            with contextlib.suppress(WireFault, TimeoutError):
                async with asyncio.timeout(_POST_BODY_TIMEOUT):
                    await response.read(_POST_BODY_LIMIT)
        finally:
            response.release()

    @property
    def _secrets(self) -> tuple[str, ...]:
        """The client's secrets and the session id, which is part of the endpoint's URL."""
        return (*self._client.secrets, *([self._session_id] if self._session_id else []))

    # -- receiving ------------------------------------------------------------------------------

    async def receive(self) -> Sequence[ReceivedMessage] | None:
        while self._end_reason is None:
            events, self._early_events = self._early_events, []
            try:
                messages = _decode_events(events or await self._next_events())
            except SseEventTooLarge as error:
                request_id = response_id(error.head.partition(b"data:")[2])
                return [*_decode_events(error.events), OversizedMessage(request_id, self._limit)]
            if messages:
                return messages
        return None

    async def _next_events(self) -> list[SseEvent]:
        if self._undecoded:
            await self._periodic_yield.tick()
            return self._decoder.feed(self._undecoded.popleft())
        response = self._response
        if response is None:
            self._end_reason = "the event stream was closed"
            return []
        try:
            chunk = await response.read_chunk()
        except WireFault as fault:
            self._end_reason = f"the event stream broke: {fault.evidence.detail}"
            return []
        if chunk:
            self.last_received_at = time.monotonic()
            self._undecoded.extend(split_chunk(chunk))
            return []
        self._end_reason = "the event stream ended"
        return self._decoder.finish()

    async def close_reason(self) -> CloseReason:
        return CloseReason(
            redact_text(self._end_reason or "the event stream is open", self._secrets)
        )

    # -- closing --------------------------------------------------------------------------------

    async def close(self) -> None:
        self._end_reason = self._end_reason or "the event stream was closed"
        self._release()

    def detach(self, *, forked: bool) -> None:
        """Do nothing: the sockets belong to the HTTP client, which detaches them."""

    def _release(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.abort()
            response.discard()


def _decode_events(events: Sequence[SseEvent]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for event in events:
        if event.event != "message" or not event.data:
            continue  # such as keep-alives
        try:
            messages += decode_messages(event.data)
        except ValueError:
            logger.warning("skipped an event that is not JSON-RPC")
    return messages


def _request_id_of(body: bytes) -> RequestId:
    """The id of the request in a POST's body, to match an error response to it; 0: none."""
    found = decode_messages(body)[0].get("id")
    return found if isinstance(found, str | int) else 0
