"""What a server sends on its own account: notifications, and requests that want an answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import anyio
from mcp.shared.dispatcher import (
    CallOptions,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    as_request_id,
    run_notify_intercept,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.transport_context import TransportContext
from mcp_types import INTERNAL_ERROR, RequestId

from toolkeep._wire import jsonrpc
from toolkeep._wire.errands import Errands
from toolkeep._wire.exchange import Exchange

logger = logging.getLogger("toolkeep.wire")


class Replies(Protocol):
    """What an inbox needs of its dispatcher."""

    errands: Errands

    async def send_in_courtesy(
        self, body: bytes, headers: Mapping[str, str], call: Mapping[str, str] | None
    ) -> None: ...

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]: ...

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None: ...


@dataclass
class Inbound:
    """The SDK's `DispatchContext` for one message from the server."""

    outbound: Replies
    request_id: RequestId | None
    transport: TransportContext
    can_send_request: bool = True
    message_metadata: None = None
    cancel_requested: anyio.Event = field(default_factory=anyio.Event)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        return await self.outbound.send_raw_request(method, params, opts)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        await self.outbound.notify(method, params, opts)

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """The server asked us for no progress token, so there is nobody to tell."""


class Inbox:
    """Hands on what the server sends. Requests are answered in tasks of their own."""

    def __init__(
        self,
        outbound: Replies,
        on_request: OnRequest,
        on_notify: OnNotify,
        intercept: OnNotifyIntercept | None,
        kind: str,
    ) -> None:
        self._outbound = outbound
        self._transport = TransportContext(kind=kind, can_send_request=True)
        self._on_request, self._on_notify, self._intercept = on_request, on_notify, intercept
        self._answering: dict[RequestId, asyncio.Task[Any]] = {}

    async def take(self, message: Mapping[str, Any], exchange: Exchange) -> None:
        method = message.get("method")
        if not isinstance(method, str):
            logger.debug("an answer to no request of ours was dropped")
            return
        found = message.get("params")
        params = cast("dict[str, Any]", found) if isinstance(found, dict) else None
        request_id = as_request_id(message.get("id"))
        if request_id is not None:
            reply = self._reply(request_id, method, params, exchange)
            self._outbound.errands.start(reply, context=exchange.context.copy())
            return
        if method == "notifications/cancelled":
            self._cancel(params or {})
        if not run_notify_intercept(self._intercept, method, params):
            await self._on_notify(Inbound(self._outbound, None, self._transport), method, params)

    def stop(self) -> None:
        """Answer nothing any more: nobody is there to hear it."""
        for task in tuple(self._answering.values()):
            task.cancel()

    def _cancel(self, params: Mapping[str, Any]) -> None:
        request_id = as_request_id(params.get("requestId"))
        task = self._answering.get(request_id) if request_id is not None else None
        if task is not None:
            task.cancel()

    async def _reply(
        self,
        request_id: RequestId,
        method: str,
        params: Mapping[str, Any] | None,
        exchange: Exchange,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering[request_id] = task
        try:
            inbound = Inbound(self._outbound, request_id, self._transport)
            result = await self._on_request(inbound, method, params)
            body = jsonrpc.response(request_id, result)
        except MCPError as error:
            body = jsonrpc.error_response(request_id, error.code, error.message, error.data)
        except Exception:
            logger.exception("the handler of %s failed", method)
            body = jsonrpc.error_response(request_id, INTERNAL_ERROR, "the client's handler failed")
        finally:
            self._answering.pop(request_id, None)
        await self._outbound.send_in_courtesy(body, exchange.headers, exchange.attempt.headers)
