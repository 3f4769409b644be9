"""Requests and answers over one duct: the SDK's `Dispatcher` for stdio, HTTP+SSE and in-process.

One loop reads what comes and hands each message to the request it belongs to; the request's own
task takes it from there, so a slow consumer holds up nobody but itself. When the duct ends, every
request that waits is told so, each with what is true of itself: a request of which no byte left
did not run, the others may have.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextvars import Context
from typing import Any

import anyio
import anyio.abc
from mcp.shared.dispatcher import (
    CallOptions,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    coerce_request_id,
)
from mcp.shared.exceptions import MCPError

from toolkeep._rules.classify import Evidence, Trouble
from toolkeep._wire import jsonrpc
from toolkeep._wire.answers import result_of
from toolkeep._wire.attempt import Attempt
from toolkeep._wire.duct import Duct, Epitaph, Oversized, Received
from toolkeep._wire.errands import Errands, outlive
from toolkeep._wire.exchange import (
    Exchange,
    FairShare,
    broken,
    unreadable,
    up_to_date,
    within,
)
from toolkeep._wire.fault import WireFault, tolerating
from toolkeep._wire.hush import hushed, quiet
from toolkeep._wire.inbound import Inbox
from toolkeep._wire.waiting import Waiters, Waiting
from toolkeep._wire.wire import OnLost

logger = logging.getLogger("toolkeep.wire")

_LAST_WORD = 1.5
"""Seconds from a failed write to the news that the duct has ended, and why."""
_ASTRAY = "something on the way cancelled the request by itself"
_SIGN_OF_LIFE = 5.0
_TEXT_KEPT = 500
_COURTESY = 5.0
"""Bound of the messages that nobody waits for: cancellations, answers to the server."""


class PipeDispatcher:
    """Sends for any task of its loop. Lives as long as its duct."""

    def __init__(
        self,
        duct: Duct,
        *,
        private: Iterable[str],
        silence: float | None,
        on_lost: OnLost,
        ids: Iterator[int] | None = None,
    ) -> None:
        """`ids`: numbers for requests, where others send on the same sockets."""
        self._duct, self._private, self._on_lost = duct, private, on_lost
        self._silence = silence
        self._ids = ids or itertools.count(1)
        self._waiting = Waiters()
        self._epitaph: Epitaph | None = None
        self._ended = asyncio.Event()
        self._doubted = False
        self._unaddressed = ""
        """The text of the last error that named no request, for a handshake that gets no answer."""
        self._inbox: Inbox | None = None
        self.errands = Errands()

    @property
    def session_id(self) -> str | None:
        return self._duct.session_id

    @property
    def said(self) -> str:
        return self._duct.said or self._unaddressed

    async def open(self) -> None:
        await self._duct.open()

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Reads until the duct ends, then stands by until cancelled. Nobody waits after that."""
        self._inbox = Inbox(self, on_request, on_notify, on_notify_intercept, self._duct.kind)
        task_status.started()
        try:
            self._end(await self._read())
            self._on_lost(self._epitaph.detail if self._epitaph else "")
            await anyio.sleep_forever()
        finally:
            self._end(self._epitaph or Epitaph("the client was closed"))
            self._inbox = None
            self.errands.cancel()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Write, and wait for the result. Raises `WireFault` or `InvalidAnswer`."""
        exchange = Exchange.of(method, opts or {}, self._ids)
        body = jsonrpc.request(exchange.request_id, method, exchange.stamped(params))
        if (seconds := (opts or {}).get("timeout")) is not None:
            return await within(seconds, self._exchange(exchange, body), exchange.attempt)
        return await self._exchange(exchange, body)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        with tolerating(method):
            await self._send(jsonrpc.notification(method, params), Attempt(), opts)

    def resume(self, session_id: str, version: str) -> None:
        """The session of a pipe ends with it: nobody is ever asked to (`Line.resumable`)."""

    async def listen(self, on_open: Callable[[], None]) -> None:
        """Whatever the server says comes on the pipe already."""
        on_open()

    def stop_answering(self) -> None:
        if self._inbox is not None:
            self._inbox.stop()

    async def terminate(self) -> None:
        """Closing is the end of the session, too."""

    async def close(self) -> None:
        await self._duct.close()

    # -- one exchange ---------------------------------------------------------------------------

    async def _exchange(self, exchange: Exchange, body: bytes) -> dict[str, Any]:
        key = coerce_request_id(exchange.request_id)
        waiting = self._waiting[key] = Waiting(exchange)
        try:
            sending = self._send(body, exchange.attempt, {"headers": dict(exchange.headers)})
            if self._duct.answers_apart:
                message = await self._answer_beside(sending, waiting)
            else:
                await sending
                message = await self._answer(waiting)
            return result_of(message, exchange, session=False, status=None)
        except asyncio.CancelledError:
            self._abandon(exchange)
            raise
        except WireFault as fault:
            told, sent = up_to_date(fault.evidence, exchange.attempt), exchange.attempt.sent_headers
            evidence = hushed(told, sent, self._private)
        finally:
            del self._waiting[key]
        raise WireFault(evidence)

    async def _send(self, body: bytes, attempt: Attempt, opts: CallOptions | None) -> None:
        if self._epitaph is not None:
            raise self._fault(self._epitaph, attempt)
        try:
            await self._duct.send(body, attempt, (opts or {}).get("headers") or {})
        except WireFault:
            if attempt.sent or self._duct.answers_apart:
                raise
            # The duct has just ended: soon it is known why.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORD):
                    await self._ended.wait()
            if self._epitaph is None:
                raise
        else:
            return
        raise self._fault(self._epitaph, attempt)

    async def _answer_beside(
        self, sending: Coroutine[Any, Any, None], waiting: Waiting
    ) -> dict[str, Any]:
        """The answer may come while the message is still being taken; the first of both counts."""

        def note(sent: asyncio.Task[None]) -> None:
            if sent.cancelled():  # by a library: when we cancel it, nobody waits any more
                waiting.put(broken(_ASTRAY, waiting.exchange.attempt))
            elif (fault := sent.exception()) is not None:
                waiting.put(fault)

        task = asyncio.ensure_future(sending)
        task.add_done_callback(note)
        try:
            message = await self._answer(waiting)
        except BaseException:
            waiting.exchange.attempt.revoked = True  # cancelled, aiohttp may still write this turn
            task.cancel()
            raise
        if not task.done():  # it keeps its TCP connection, if it may end by itself
            self.errands.start(outlive(task, _COURTESY), owed=False)
        return message

    async def _answer(self, waiting: Waiting) -> dict[str, Any]:
        exchange = waiting.exchange
        while True:
            try:
                async with asyncio.timeout(self._silence):
                    message = await waiting.take()
            except TimeoutError:
                self._abandon(exchange)
                raise broken("the server fell silent", exchange.attempt) from None
            if "method" not in message:
                exchange.attempt.on_answer()
                return message
            await exchange.take(message)

    def _abandon(self, exchange: Exchange) -> None:
        """Tell the server that nobody waits any more; off the caller's path, in both eras."""
        attempt = exchange.attempt
        if not attempt.sent or attempt.answered or not exchange.cancellable or self._epitaph:
            return
        self._waiting.give_up(exchange)
        silent = self._duct.answers_apart and self._duct.heard_at < exchange.begun
        if silent and not self._doubted:
            self._doubted = True
            self.errands.start(self._ask_for_a_sign_of_life(), context=Context(), owed=False)
        params = {"requestId": exchange.request_id, "reason": "the caller went away"}
        body = jsonrpc.notification("notifications/cancelled", params)
        sending = self.send_in_courtesy(body, exchange.headers, attempt.headers)
        self.errands.start(sending, context=Context())

    async def _ask_for_a_sign_of_life(self) -> None:
        """A stream that broke without a word (a gateway, a laptop's lid) looks like a slow server.

        Any word counts, even a refusal. Without one no more calls go there; those that wait may.
        """
        asked_at = time.monotonic()
        body = jsonrpc.request(f"life-{next(self._ids)}", "ping", None)
        await self.send_in_courtesy(body, {}, None)
        await asyncio.sleep(_SIGN_OF_LIFE)
        self._doubted = self._duct.heard_at < asked_at
        if self._doubted and self._epitaph is None:
            self._on_lost("it gives no sign of life")

    async def send_in_courtesy(
        self, body: bytes, headers: Mapping[str, str], call: Mapping[str, str] | None
    ) -> None:
        """Send a message that nobody waits for. Bounded; what goes wrong is only noted."""
        try:
            async with asyncio.timeout(_COURTESY):
                await self._send(body, Attempt(call), {"headers": dict(headers)})
        except (MCPError, TimeoutError) as error:
            logger.debug("a message that nobody waits for was not taken: %s", error)

    # -- what comes -----------------------------------------------------------------------------

    async def _read(self) -> Epitaph:
        fair_share = FairShare()
        try:
            while (received := await self._duct.receive()) is not None:
                for message in received:
                    await self._route(message)
                    await fair_share.used()
            return await self._duct.epitaph()
        except _Lost as lost:
            return Epitaph(str(lost))
        except Exception as error:
            logger.exception("reading from a server failed")
            return Epitaph(f"reading failed with {type(error).__name__}")

    async def _route(self, message: Received) -> None:
        waiting = self._waiting.owner_of(message)
        if isinstance(message, Oversized):
            text = f"an answer is larger than {message.limit} bytes"
            if waiting is None:
                raise _Lost(f"{text}, and nothing tells whose it was")
            waiting.put(unreadable(text, None))
        elif waiting is not None:
            waiting.put(message)
        elif jsonrpc.is_unaddressed_error(message):
            self._note(message)
        elif self._inbox is not None:
            await self._inbox.take(message, self._waiting.asked_by(message))

    def _note(self, message: Mapping[str, Any]) -> None:
        error = jsonrpc.error_in(message, "")
        text = f"error {error.code}: {error.message}" if error else "an error without a code"
        self._unaddressed = quiet(text, self._private)[:_TEXT_KEPT]
        logger.debug("an error that names no request was left aside: %r", self._unaddressed)

    # -- the end --------------------------------------------------------------------------------

    def _end(self, epitaph: Epitaph) -> None:
        self._epitaph = epitaph
        self._ended.set()
        for waiting in tuple(self._waiting.values()):
            waiting.put(self._fault(epitaph, waiting.exchange.attempt))

    def _fault(self, epitaph: Epitaph, attempt: Attempt) -> WireFault:
        return WireFault(
            Evidence(
                trouble=Trouble.BROKEN if attempt.sent else Trouble.CONNECT,
                sent=attempt.sent,
                detail=epitaph.detail,
                exit_code=epitaph.exit_code,
                stderr=epitaph.stderr,
            )
        )


class _Lost(Exception):
    """The duct brings messages, but nobody can tell any more whose they are."""
