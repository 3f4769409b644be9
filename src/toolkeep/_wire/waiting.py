"""Whose message is it? The requests that wait on one duct, and what has come for each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextvars import Context
from typing import Any, cast

from mcp.shared.dispatcher import as_request_id, coerce_request_id
from mcp_types import INVALID_REQUEST, ErrorData, RequestId

from toolkeep._rules.size import size_of
from toolkeep._rules.unread import EACH_REPORT, MOST_UNREAD, Unread
from toolkeep._wire.attempt import Attempt, current_attempt
from toolkeep._wire.duct import Oversized, Received
from toolkeep._wire.exchange import Exchange

_MOST_GIVEN_UP = 10_000
_AFTERMATH = 60.0
"""Seconds for which a request that was given up may still be the one that asks: servers that obey
a cancellation do not say so."""
_MAY_ASK = ("tools/call", "prompts/get", "resources/read")
"""Requests in whose course a server may ask its client for something."""


class Waiting:
    """A request on its way, and what has come for it."""

    __slots__ = ("_news", "_post", "exchange")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._post = Unread[dict[str, Any] | BaseException](_size_of_notification)
        self._news = asyncio.Event()

    def put(self, item: dict[str, Any] | BaseException) -> None:
        self._post.append(item)
        self._news.set()

    async def take(self) -> dict[str, Any]:
        """The next message. Raises the fault that stands in its place."""
        while not self._post:
            self._news.clear()
            await self._news.wait()
        item = self._post.popleft()
        if isinstance(item, BaseException):
            raise item
        return item


class Waiters(dict[RequestId, Waiting]):
    """By request id, where "7" and 7 are one."""

    def __init__(self) -> None:
        super().__init__()
        self._given_up: dict[RequestId, float] = {}
        """Requests that nobody waits for, though the server may still work on them, and since
        when."""

    def give_up(self, exchange: Exchange) -> None:
        """Its server may go on all the same, and ask something in its course."""
        if exchange.method in _MAY_ASK and len(self._given_up) < _MOST_GIVEN_UP:
            self._given_up[coerce_request_id(exchange.request_id)] = time.monotonic()

    def owner_of(self, message: Received) -> Waiting | None:
        """The request that a message is for: its answer, its progress."""
        if isinstance(message, Oversized):
            request_id = message.request_id
        elif "method" not in message:
            request_id = as_request_id(message.get("id"))
        elif message["method"] == "notifications/progress":
            return self._find(_progress_token(message))
        else:
            return None
        if request_id is not None:
            self._given_up.pop(coerce_request_id(request_id), None)
            return self._find(request_id)
        # An error without an id may be about a notification: the answer can still follow. What was
        # too large to be read leaves the outcome unknown, so it may end the only request there is.
        return self._only() if isinstance(message, Oversized) else None

    def _find(self, request_id: RequestId | None) -> Waiting | None:
        return None if request_id is None else self.get(coerce_request_id(request_id))

    def _only(self) -> Waiting | None:
        return next(iter(self.values())) if len(self) == 1 else None

    def asked_by(self, message: Mapping[str, Any]) -> Exchange:
        """The request in whose course the server asks, if that can be told.

        A pipe does not say. With one such request under way there is no doubt; with several, or
        with one that was given up a while ago, the question is nobody's in particular.
        """
        found = [w.exchange for w in self.values() if w.exchange.method in _MAY_ASK]
        since = time.monotonic() - _AFTERMATH
        self._given_up = {id_: at for id_, at in self._given_up.items() if at > since}
        if len(found) == 1 and "id" in message and not self._given_up:
            return found[0]
        over = self._given_up and not found
        attempt = Attempt(ask=_decline if over else None)
        return Exchange(
            request_id="", method="", attempt=attempt, headers={}, context=_with(attempt)
        )


def _size_of_notification(item: dict[str, Any] | BaseException) -> int | None:
    """Of a notification; answers and faults are kept."""
    if isinstance(item, BaseException) or "method" not in item:
        return None
    return EACH_REPORT + size_of(item, MOST_UNREAD)


async def _decline(method: str, params: Mapping[str, Any]) -> ErrorData:
    """Who would be asked has gone."""
    return ErrorData(code=INVALID_REQUEST, message="the call is over")


def _with(attempt: Attempt) -> Context:
    context = Context()
    context.run(current_attempt.set, attempt)
    return context


def _progress_token(message: Mapping[str, Any]) -> RequestId | None:
    params = message.get("params")
    if not isinstance(params, dict):
        return None
    return as_request_id(cast("dict[str, Any]", params).get("progressToken"))
