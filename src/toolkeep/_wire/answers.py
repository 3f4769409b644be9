"""From an HTTP answer to the JSON-RPC message in it.

The answer is one JSON body, or an event stream with other messages before it. Whatever else comes
is a `WireFault` that keeps the status and the headers that matter.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from mcp_types import RequestId

from toolkeep._rules.classify import Evidence, RpcError, Trouble
from toolkeep._wire import jsonrpc
from toolkeep._wire.eventstream import ServerEvent
from toolkeep._wire.exchange import Exchange, FairShare, broken, unreadable
from toolkeep._wire.fault import InvalidAnswer, WireFault
from toolkeep._wire.process_lines import slices
from toolkeep._wire.reply import Reply

_RESULT_TYPES = ("complete", "input_required")
_ERROR_BODY_LIMIT = 64 * 1024
_TEXT_KEPT = 500
_LINGER = 0.1
"""How long an event stream may stay open after its answer before its socket is given up."""

HandOn = Callable[[Mapping[str, Any], Exchange], Awaitable[None]]
"""Takes the messages that belong to no request of ours."""


class AnswerReader:
    """Reads the answers of one dispatcher, each in the task of its request."""

    def __init__(self, limit: int, hand_on: HandOn) -> None:
        self._limit, self._hand_on = limit, hand_on
        self._patience = _LINGER

    async def answer(self, reply: Reply, exchange: Exchange) -> dict[str, Any]:
        """The message that answers the request."""
        if reply.content_type == "application/json":
            return await self._in_json(reply, exchange)
        if reply.content_type == "text/event-stream":
            return await self.in_stream(reply, exchange)
        what = reply.content_type or "no content type"
        raise unreadable(f"HTTP {reply.status} with {what} is no answer", reply.status)

    async def _in_json(self, reply: Reply, exchange: Exchange) -> dict[str, Any]:
        body = await reply.read(self._limit)
        if body is None:
            raise unreadable(f"the answer is larger than {self._limit} bytes", reply.status)
        try:
            found = jsonrpc.messages(body)
        except ValueError:
            raise unreadable("the answer is not JSON", reply.status) from None
        for message in found:
            if jsonrpc.answers(message, exchange.request_id):
                return message
        for message in found:  # the body is whole: nothing else can follow
            if jsonrpc.is_unaddressed_error(message):
                return message
        reply.distrust()
        raise unreadable("the answer belongs to another request", reply.status)

    async def in_stream(self, reply: Reply, exchange: Exchange) -> dict[str, Any]:
        """Hand on what comes before the answer; return the answer."""
        decode, fair_share = exchange.decoder(self._limit), FairShare()
        while True:
            chunk = await reply.chunk()
            for piece in slices(chunk):
                for event in decode(piece):
                    message = await self._take(event, exchange, fair_share)
                    if message is not None:
                        exchange.attempt.on_answer()
                        await self._drain(reply)
                        return message
                if piece is not chunk:
                    await fair_share.used()
            if not chunk:
                if exchange.unaddressed is not None and not exchange.resumable:
                    exchange.attempt.on_answer()
                    return exchange.unaddressed
                if exchange.misaddressed:
                    reply.distrust()
                raise broken("the stream ended without an answer", exchange.attempt, reply.status)

    async def _take(
        self, event: ServerEvent, exchange: Exchange, fair_share: FairShare
    ) -> dict[str, Any] | None:
        if not event.data:
            return None
        try:
            found = jsonrpc.messages(event.data)
        except ValueError:
            if event.event != "message":
                return None  # keep-alives and the like
            raise unreadable("an event is not JSON", 200) from None
        for message in found:
            if exchange.method and jsonrpc.answers(message, exchange.request_id):
                return message
            if jsonrpc.is_unaddressed_error(message):
                exchange.unaddressed = exchange.unaddressed or message
            elif "method" not in message:
                exchange.misaddressed = True
            elif not await exchange.take(message):
                await self._hand_on(message, exchange)
            await fair_share.used()
        return None

    async def _drain(self, reply: Reply) -> None:
        """Read on to the end of the stream, so that its TCP connection can be used again.

        Servers end the stream right after the answer. With one that does not, patience wears
        thin; a stream that ends in time restores it.
        """
        if reply.at_end:
            return
        # Not `asyncio.timeout`, which takes as long to set as the rest of this does.
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._patience, reply.abandon)
        try:
            while await reply.chunk():
                pass
            self._patience = _LINGER
        except WireFault:  # the answer is here; the socket closes by itself
            if loop.time() >= timer.when():
                self._patience = max(self._patience / 2, _LINGER / 32)
        finally:
            timer.cancel()


def result_of(
    message: dict[str, Any], exchange: Exchange, *, session: bool, status: int | None = 200
) -> dict[str, Any]:
    """The result in an answer. Raises the error in it, and what the protocol does not allow."""
    error = jsonrpc.error_in(message, exchange.request_id)
    if error is not None:
        raise WireFault(
            Evidence(
                trouble=Trouble.ERROR,
                sent=True,
                detail=error.message,
                status=status,
                error=error,
                carried_session=session,
                fixed_codes=exchange.fixed_codes,
            )
        )
    result = message.get("result")
    if not isinstance(result, dict):
        raise InvalidAnswer("the answer holds neither a result nor an error", message)
    raw = cast("dict[str, Any]", result)
    exchange.attempt.answer = raw
    # 2026-07-28: an absent type means complete, an unknown one is invalid. The SDK (2.3.0) has it
    # the other way round.
    if exchange.modern and "resultType" not in raw:
        return {**raw, "resultType": "complete"}
    if exchange.modern and raw["resultType"] not in _RESULT_TYPES:
        raise InvalidAnswer(f"unknown resultType {str(raw['resultType'])[:80]!r}", raw)
    return raw


async def refusal(
    reply: Reply, request_id: RequestId, *, session: bool, fixed_codes: bool = False
) -> WireFault:
    """A status other than 2xx, with what its body says."""
    body = b""
    with contextlib.suppress(WireFault):
        body = await reply.read(_ERROR_BODY_LIMIT) or b""
    return WireFault(
        Evidence(
            trouble=Trouble.STATUS,
            sent=True,
            detail=f"the server answered HTTP {reply.status}",
            status=reply.status,
            headers=reply.kept_headers,
            error=_error_in(body, request_id),
            text=body[:_TEXT_KEPT].decode("utf-8", "replace"),
            carried_session=session,
            fixed_codes=fixed_codes,
        )
    )


def _error_in(body: bytes, request_id: RequestId) -> RpcError | None:
    """The error in a body: of several in a batch, the one with our id."""
    try:
        found = [jsonrpc.error_in(message, request_id) for message in jsonrpc.messages(body)]
    except ValueError:
        return None
    ours = (error for error in found if error is not None and error.answers_request)
    return next(ours, found[0])
