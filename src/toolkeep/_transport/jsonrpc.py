"""JSON-RPC: message encoding, one request with its response, and the server's own messages.

`RpcExchange` lives as long as one request. `InboundDispatcher` hands notifications to their
handler and answers the server's requests, each in its own task. The functions tolerate what
servers really send. This module knows no transport and does no network I/O.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from mcp_types import INTERNAL_ERROR, RequestId
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import from_json, to_json, to_jsonable_python

from toolkeep._rules.classify import Evidence, FaultKind, RpcError
from toolkeep._tasks import BackgroundTasks
from toolkeep._transport.base import (
    Attempt,
    ErrorReply,
    InboundHandler,
    InvalidResponse,
    WireFault,
    unreadable_fault,
)
from toolkeep._transport.framing import SseDecoder, SseEvent, SseEventTooLarge

logger = logging.getLogger("toolkeep.transport")

_DEFAULT_RESUME_DELAY = 1.0
"""Seconds, unless the server's `retry` field says otherwise. The SDKs wait as long."""
_CALL_NOTIFICATIONS = ("notifications/progress", "notifications/message")
_RESULT_TYPES = ("complete", "input_required")
_LONE_SURROGATE = re.compile(
    r"(?P<whole>\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|\\u[dD][89abcdefABCDEF][0-9a-fA-F]{2}"
)
_encode_strictly = json.JSONEncoder(allow_nan=False).encode


def encode_request(request_id: RequestId, method: str, params: Mapping[str, Any] | None) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return _encode_with_params(message, params)


def encode_notification(method: str, params: Mapping[str, Any] | None) -> bytes:
    return _encode_with_params({"jsonrpc": "2.0", "method": method}, params)


def encode_response(request_id: RequestId, result: Mapping[str, Any]) -> bytes:
    return _encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def encode_error(request_id: RequestId, code: int, message: str, data: Any = None) -> bytes:
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return _encode({"jsonrpc": "2.0", "id": request_id, "error": error})


def _encode_with_params(message: dict[str, Any], params: Mapping[str, Any] | None) -> bytes:
    if params is not None:
        message["params"] = params
    return _encode(message)


def _encode(message: dict[str, Any]) -> bytes:
    """Encode everything for which pydantic has a JSON form, such as dates and sets. Raises
    ValueError for other types, and for numbers that JSON cannot represent."""
    # In two steps: the second alone would wrap an exception of the caller's iterator.
    plain = to_jsonable_python(message, inf_nan_mode="constants")
    encoded = to_json(plain, inf_nan_mode="constants")
    if b"NaN" in encoded or b"Infinity" in encoded:  # a number, or the word in a string
        _encode_strictly(plain)
    return encoded


def _decode_json(body: bytes | str) -> Any:
    try:
        return from_json(body)
    except ValueError:
        text = body if isinstance(body, str) else body.decode("utf-8")
        text = text.removeprefix("\ufeff")  # .NET programs send a byte-order mark
        # JavaScript leaves a lone surrogate when it cuts a string inside a character.
        repaired = _LONE_SURROGATE.sub(
            lambda match: match[0] if match["whole"] else r"\ufffd", text
        )
        return from_json(repaired)


def decode_messages(body: bytes | str) -> list[dict[str, Any]]:
    """The JSON objects in a body: one, or several where a 2025-03-26 server sends a batch.

    Raises ValueError when the body is not JSON or contains anything but objects.
    """
    decoded = _decode_json(body)
    batch = cast("list[Any]", decoded) if isinstance(decoded, list) else [decoded]
    if not batch or not all(isinstance(message, dict) for message in batch):
        raise ValueError("not a JSON object")
    return cast("list[dict[str, Any]]", batch)


def as_request_id(received: object) -> RequestId | None:
    """A received value as a request id; None if it is none. True would equal the id 1."""
    if isinstance(received, bool) or not isinstance(received, str | int):
        return None
    return received


def canonical_id(request_id: RequestId) -> RequestId:
    """The form in which ids are compared: "7" becomes 7, because some servers change the type."""
    try:
        return int(request_id)
    except ValueError:
        return request_id


def is_rpc_message(decoded: Mapping[str, Any]) -> bool:
    """Whether an object is a JSON-RPC message, and not, for example, a log line in JSON."""
    is_response = "id" in decoded and ("result" in decoded or "error" in decoded)
    return decoded.get("jsonrpc") == "2.0" or is_response


def is_response_to(message: Mapping[str, Any], request_id: RequestId) -> bool:
    """Whether this message is the response to that request: same id, and no method."""
    return "method" not in message and same_id(message.get("id"), request_id)


def is_error_without_id(message: Mapping[str, Any]) -> bool:
    """Whether this message is an error without a valid request id.

    Servers send one for a message whose id they could not read, and many servers for a
    notification they do not know. It answers a request only if no other response can follow.
    """
    if "method" in message or not isinstance(message.get("error"), dict):
        return False
    return as_request_id(message.get("id")) is None


def same_id(received: object, request_id: RequestId) -> bool:
    """Whether a received id equals this one."""
    found = as_request_id(received)
    return found is not None and canonical_id(found) == canonical_id(request_id)


def parse_error(message: Mapping[str, Any], request_id: RequestId) -> RpcError | None:
    """The error of a message, if it has one. Missing or invalid fields get defaults."""
    error = message.get("error")
    if not isinstance(error, dict):
        return None
    fields = cast("dict[str, Any]", error)
    code, text = fields.get("code"), fields.get("message")
    return RpcError(
        code=code if isinstance(code, int) and not isinstance(code, bool) else 0,
        message=text if isinstance(text, str) else "an error without a message",
        data=fields.get("data"),
        answers_request=same_id(message.get("id"), request_id),
    )


@dataclass(slots=True)
class RpcExchange:
    """One request and what arrives for it. Belongs to the task that sends the request."""

    request_id: RequestId
    method: str
    attempt: Attempt
    headers: Mapping[str, str]
    """The protocol's headers for this request."""
    cancellable: bool = True
    """False for the handshake: the protocol forbids its cancellation."""
    context: Context = field(default_factory=copy_context)
    """The caller's context, in which the server's requests during this one are handled."""
    started_at: float = field(default_factory=time.monotonic)
    events_received: int = 0
    """The number of events with data or an event id."""
    last_event_id: str | None = None
    retry_delay: float | None = None
    error_without_id: dict[str, Any] | None = None
    """An error without an id on this request's stream. It is the response if the stream ends
    without another."""
    got_other_response: bool = False
    """Whether a response to another request arrived on this request's stream."""

    @property
    def modern(self) -> bool:
        return self.headers.get("mcp-protocol-version") in MODERN_PROTOCOL_VERSIONS

    @property
    def resumable(self) -> bool:
        """Whether a broken response stream can be resumed: a legacy one with event ids."""
        return self.last_event_id is not None and not self.modern

    @property
    def standard_codes(self) -> bool:
        """Whether -32020 and -32022 have the meaning of 2026-07-28 (`Evidence.standard_codes`)."""
        return self.modern or self.method == "initialize"

    @property
    def resume_delay(self) -> float:
        """Seconds to wait before resuming a broken stream."""
        return _DEFAULT_RESUME_DELAY if self.retry_delay is None else self.retry_delay

    def with_progress_token(self, params: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """The parameters, with a progress token if the caller wants progress notifications."""
        if not self.attempt.wants_progress:
            return params
        params = params or {}
        return {**params, "_meta": {**params.get("_meta", {}), "progressToken": self.request_id}}

    def decoder(self, limit: int) -> Callable[[bytes], list[SseEvent]]:
        """A decoder for this request's stream that records the last event id, for resuming. An
        empty chunk ends the stream."""
        decoder = SseDecoder(limit)

        def decode(chunk: bytes) -> list[SseEvent]:
            try:
                events = decoder.feed(chunk) if chunk else decoder.finish()
            except SseEventTooLarge as error:
                raise unreadable_fault(str(error), 200) from None
            for event in events:
                self.events_received += bool(event.data or event.id)
                self.last_event_id = event.id or self.last_event_id
                self.retry_delay = self.retry_delay if event.retry is None else event.retry
            return events

        return decode

    async def deliver(self, message: Mapping[str, Any]) -> bool:
        """Hand a notification to its call. False: it does not belong to this request."""
        method = message.get("method")
        if "id" in message or method not in _CALL_NOTIFICATIONS or not self.method:
            return False
        if method == "notifications/message" and self.attempt.on_notification is None:
            return False
        found = message.get("params")
        params = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        is_progress = method == "notifications/progress"
        if is_progress and not same_id(params.get("progressToken"), self.request_id):
            return True  # late progress of an earlier request
        if self.attempt.on_notification is not None:
            await self.attempt.on_notification(method, params)
        return True


class ReplySender(Protocol):
    """What an `InboundDispatcher` needs of its transport."""

    background_tasks: BackgroundTasks

    async def send_best_effort(
        self, body: bytes, headers: Mapping[str, str], call: Mapping[str, str] | None
    ) -> None: ...


class InboundDispatcher:
    """Hands the server's notifications and requests to their handler.

    Belongs to one open transport. Each request is answered in its own task.
    """

    def __init__(self, sender: ReplySender, handler: InboundHandler) -> None:
        self._sender, self._handler = sender, handler
        self._replying: dict[RequestId, asyncio.Task[Any]] = {}

    async def dispatch(self, message: Mapping[str, Any], exchange: RpcExchange) -> None:
        method = message.get("method")
        if not isinstance(method, str):
            logger.debug("dropped a response that matches no pending request")
            return
        found = message.get("params")
        params = cast("dict[str, Any]", found) if isinstance(found, dict) else None
        request_id = as_request_id(message.get("id"))
        if request_id is not None:
            reply = self._reply(request_id, method, params, exchange)
            self._sender.background_tasks.start(reply, context=exchange.context.copy())
            return
        if method == "notifications/cancelled":
            self._cancel(params or {})
        await self._handler.on_notification(method, params)

    def stop(self) -> None:
        """Cancel all replies in progress: the connection is closing."""
        for task in tuple(self._replying.values()):
            task.cancel()

    def _cancel(self, params: Mapping[str, Any]) -> None:
        request_id = as_request_id(params.get("requestId"))
        task = self._replying.get(request_id) if request_id is not None else None
        if task is not None:
            task.cancel()

    async def _reply(
        self,
        request_id: RequestId,
        method: str,
        params: Mapping[str, Any] | None,
        exchange: RpcExchange,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._replying[request_id] = task
        try:
            result = await self._handler.on_request(method, params, exchange.attempt)
            body = encode_response(request_id, result)
        except ErrorReply as error:
            body = encode_error(request_id, error.code, error.message, error.data)
        except Exception:
            logger.exception("the handler for the server's request %s failed", method)
            body = encode_error(request_id, INTERNAL_ERROR, "the client's handler failed")
        finally:
            self._replying.pop(request_id, None)
        await self._sender.send_best_effort(body, exchange.headers, exchange.attempt.headers)


def parse_result(
    message: dict[str, Any], exchange: RpcExchange, *, session: bool, status: int | None = 200
) -> dict[str, Any]:
    """The result of a response. Raises `WireFault` for an error response, and `InvalidResponse`."""
    error = parse_error(message, exchange.request_id)
    if error is not None:
        raise WireFault(
            Evidence(
                kind=FaultKind.ERROR,
                sent=True,
                detail=error.message,
                status=status,
                error=error,
                carried_session=session,
                standard_codes=exchange.standard_codes,
            )
        )
    result = message.get("result")
    if not isinstance(result, dict):
        raise InvalidResponse("the response has neither a result nor an error", message)
    raw = cast("dict[str, Any]", result)
    exchange.attempt.raw_result = raw
    # 2026-07-28: an absent resultType means complete, an unknown one is invalid.
    if exchange.modern and "resultType" not in raw:
        return {**raw, "resultType": "complete"}
    if exchange.modern and raw["resultType"] not in _RESULT_TYPES:
        raise InvalidResponse(f"unknown resultType {str(raw['resultType'])[:80]!r}", raw)
    return raw
