"""One request and what comes back for it, while it lasts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp_types import RequestId
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolkeep._rules.classify import Evidence, Trouble
from toolkeep._wire import jsonrpc
from toolkeep._wire.attempt import Attempt, current_attempt
from toolkeep._wire.eventstream import EventDecoder, EventTooLarge, ServerEvent
from toolkeep._wire.fault import WireFault

_RESUME_PAUSE = 1.0
"""Unless the server's `retry` says otherwise; the SDKs wait as long."""
_MOST_AT_ONCE = 16
"""Messages that a reader takes before other tasks have their turn."""
_OF_A_CALL = ("notifications/progress", "notifications/message")


@dataclass(slots=True)
class Exchange:
    """Belongs to the task that sent the request."""

    request_id: RequestId
    method: str
    attempt: Attempt
    headers: Mapping[str, str]
    """The protocol's own headers for this request."""
    on_progress: ProgressFnT | None = None
    cancellable: bool = True
    """False for the handshake, which the protocol forbids to cancel."""
    context: Context = field(default_factory=copy_context)
    """The caller's, for those who answer what the server asks in its course."""
    begun: float = field(default_factory=time.monotonic)
    heard: int = 0
    """How many events came that hold data, or a place in the stream."""
    last_event_id: str | None = None
    retry: float | None = None
    unaddressed: dict[str, Any] | None = None
    """An error without an id that came on this request's stream. It is the answer if the stream
    ends without another."""
    misaddressed: bool = False
    """Whether the answer to another request came on this request's stream."""

    @classmethod
    def of(cls, method: str, opts: CallOptions, ids: Iterator[int]) -> Self:
        """For a request as the SDK hands it down."""
        return cls(
            request_id=opts.get("request_id", 0) or next(ids),
            method=method,
            attempt=current_attempt.get() or Attempt(),
            headers=opts.get("headers") or {},
            on_progress=opts.get("on_progress"),
            cancellable=opts.get("cancel_on_abandon", True),
        )

    @property
    def modern(self) -> bool:
        return self.headers.get("mcp-protocol-version") in MODERN_PROTOCOL_VERSIONS

    @property
    def resumable(self) -> bool:
        """Whether a broken answer stream can be continued: legacy, with numbered events."""
        return self.last_event_id is not None and not self.modern

    @property
    def fixed_codes(self) -> bool:
        """Whether -32020 and -32022 can only mean what 2026-07-28 says (`Evidence.fixed_codes`)."""
        return self.modern or self.method == "initialize"

    @property
    def pause(self) -> float:
        """Seconds to wait before asking for the rest of a broken stream."""
        return _RESUME_PAUSE if self.retry is None else self.retry

    def stamped(self, params: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """The parameters with a progress token, when somebody wants to hear of progress."""
        if not self.attempt.wants_progress and self.on_progress is None:
            return params
        params = params or {}
        return {**params, "_meta": {**params.get("_meta", {}), "progressToken": self.request_id}}

    def decoder(self, limit: int) -> Callable[[bytes], list[ServerEvent]]:
        """Decodes a stream and remembers where it was, for the case that it breaks. An empty
        chunk is the stream's end."""
        decoder = EventDecoder(limit)

        def decode(chunk: bytes) -> list[ServerEvent]:
            try:
                events = decoder.feed(chunk) if chunk else decoder.finish()
            except EventTooLarge as error:
                raise unreadable(str(error), 200) from None
            for event in events:
                self.heard += bool(event.data or event.id)
                self.last_event_id = event.id or self.last_event_id
                self.retry = self.retry if event.retry is None else event.retry
            return events

        return decode

    async def take(self, message: Mapping[str, Any]) -> bool:
        """Hand a notification to its call. False: it belongs to somebody else."""
        method = message.get("method")
        if "id" in message or method not in _OF_A_CALL or not self.method:
            return False
        if method == "notifications/message" and self.attempt.deliver is None:
            return False
        found = message.get("params")
        params = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        if method == "notifications/progress":
            if not jsonrpc.same_id(params.get("progressToken"), self.request_id):
                return True  # a straggler of an earlier request
            if self.on_progress is not None:
                await self.on_progress(
                    params.get("progress", 0), params.get("total"), params.get("message")
                )
        if self.attempt.deliver is not None:
            await self.attempt.deliver(method, params)
        return True


class FairShare:
    """Lets other tasks have their turn after every few messages. One for each reader: messages that
    have come already are taken without waiting, and a server can send them without end."""

    def __init__(self) -> None:
        self._used = 0

    async def used(self) -> None:
        """One more message was taken."""
        self._used += 1
        if self._used >= _MOST_AT_ONCE:
            self._used = 0
            await asyncio.sleep(0)


async def within(
    seconds: float, exchange: Awaitable[dict[str, Any]], attempt: Attempt
) -> dict[str, Any]:
    """The SDK's own timeout, which its handshake uses; calls bring their own deadline."""
    try:
        async with asyncio.timeout(seconds):
            return await exchange
    except TimeoutError:
        pass
    raise broken(f"no answer within {seconds:g} s", attempt)


def unreadable(detail: str, status: int | None) -> WireFault:
    evidence = Evidence(trouble=Trouble.UNREADABLE, sent=True, detail=detail, status=status)
    return WireFault(evidence)


def broken(detail: str, attempt: Attempt, status: int | None = None) -> WireFault:
    trouble = Trouble.BROKEN if attempt.sent else Trouble.CONNECT
    return WireFault(Evidence(trouble=trouble, sent=attempt.sent, detail=detail, status=status))


def up_to_date(told: Evidence, attempt: Attempt) -> Evidence:
    """A pipe's end is told to all at once; what was about to be written may have left since."""
    if told.trouble is Trouble.CONNECT and attempt.sent:
        return replace(told, trouble=Trouble.BROKEN, sent=True)
    return told
