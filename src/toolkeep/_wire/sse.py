"""HTTP+SSE of 2024-11-05 as a `Duct`: one GET whose event stream brings every message of the
server, and a POST for each of ours.

The stream is the session: its first event says where to POST, and when it ends, the session is
gone. A POST that fails, fails its own message only. What answers it on the stream may well come
before its own HTTP answer does.
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

from toolkeep._wire import jsonrpc
from toolkeep._wire.answers import refusal
from toolkeep._wire.attempt import Attempt
from toolkeep._wire.duct import Epitaph, Oversized, Received
from toolkeep._wire.eventstream import EventDecoder, EventTooLarge, ServerEvent
from toolkeep._wire.exchange import FairShare, broken, unreadable
from toolkeep._wire.fault import WireFault
from toolkeep._wire.heading import Credentials, Heading
from toolkeep._wire.hush import hushed, quiet
from toolkeep._wire.link import Link
from toolkeep._wire.process_lines import answered_id, slices
from toolkeep._wire.reply import Reply

logger = logging.getLogger("toolkeep.wire")

_STREAM = "text/event-stream"
_SESSION_KEYS = ("sessionId", "session_id")  # as the TypeScript and the Python SDK name it
_BODY_LIMIT = 64 * 1024
"""Of a POST's answer, which says "Accepted" at most."""
_BODY_WAIT = 0.1
"""Seconds for the rest of a POST's answer once its head is here; nobody needs it."""


class SseDuct:
    """One stream, from its GET to its end. The `Link` outlives it."""

    kind = "sse"
    answers_apart = True
    heard_at = 0.0
    said = ""

    def __init__(
        self,
        link: Link,
        *,
        headers: Mapping[str, str],
        credentials: Credentials | None,
        limit: int,
    ) -> None:
        self._link, self._limit = link, limit
        self._heading = Heading(headers, credentials, link.secrets)
        self._decoder = EventDecoder(limit)
        self._reply: Reply | None = None
        self._undecoded: deque[bytes] = deque()
        self._fair_share = FairShare()
        self._early: list[ServerEvent] = []
        """What came together with the endpoint."""
        self._endpoint = ""
        self._session_id: str | None = None
        self._end: str | None = None
        """Why nothing more comes."""

    @property
    def session_id(self) -> str | None:
        return self._session_id

    async def open(self) -> None:
        sent = await self._heading.write("GET", {"accept": _STREAM})
        del sent["content-type"]
        try:
            await self._connect(sent)
            return
        except WireFault as fault:
            self._release()
            evidence = hushed(fault.evidence, sent, self._link.secrets)
        raise WireFault(evidence)

    async def _connect(self, headers: Mapping[str, str]) -> None:
        attempt = Attempt()
        self._reply = reply = await self._link.send("GET", headers, None, attempt, may_idle=True)
        if not 200 <= reply.status < 300:
            raise await refusal(reply, 0, session=False)
        if reply.content_type != _STREAM:
            what = reply.content_type or "no content type"
            raise unreadable(f"HTTP {reply.status} with {what} is no event stream", reply.status)
        self._settle(await self._first_event(reply, attempt), reply)

    async def _first_event(self, reply: Reply, attempt: Attempt) -> str:
        """The data of the `endpoint` event; what came before it has no meaning."""
        while True:
            if not self._undecoded:
                self._undecoded.extend(slices(await reply.chunk()))
            await self._fair_share.used()
            piece = self._undecoded.popleft()
            try:
                events = self._decoder.feed(piece) if piece else self._decoder.finish()
            except EventTooLarge as error:
                raise unreadable(str(error), reply.status) from None
            for place, event in enumerate(events):
                if event.event == "endpoint":
                    self._early = events[place + 1 :]
                    return event.data
            if not piece:
                raise broken("the stream ended without an endpoint", attempt, reply.status)

    def _settle(self, reference: str, reply: Reply) -> None:
        endpoint = self._link.resolve(reference.strip(), reply.url)
        if endpoint is None:
            # Whoever can name any address could have our credentials sent there.
            raise unreadable("the endpoint of the stream is not inside its origin", reply.status)
        query = parse_qs(urlsplit(endpoint).query)
        found = [query[key][0] for key in _SESSION_KEYS if key in query]
        self._endpoint, self._session_id = endpoint, found[0] if found else None
        if found:
            self._link.secrets.note({"session": found[0]})

    # -- our messages ---------------------------------------------------------------------------

    async def send(self, body: bytes, attempt: Attempt, headers: Mapping[str, str]) -> None:
        if self._end is not None:
            raise broken(self._end, attempt)
        sent = await self._heading.write("POST", headers, attempt.headers)
        attempt.sent_headers = sent
        try:
            await self._post(body, attempt, sent)
            return
        except WireFault as fault:
            evidence = hushed(fault.evidence, sent, self._private)
        raise WireFault(evidence)

    async def _post(self, body: bytes, attempt: Attempt, headers: Mapping[str, str]) -> None:
        reply = await self._link.send("POST", headers, body, attempt, to=self._endpoint)
        try:
            if not 200 <= reply.status < 300:
                raise await refusal(reply, _id_of(body), session=True)
            # The message was taken; whatever becomes of this answer changes nothing.
            with contextlib.suppress(WireFault, TimeoutError):
                async with asyncio.timeout(_BODY_WAIT):
                    await reply.read(_BODY_LIMIT)
        finally:
            reply.release()

    @property
    def _private(self) -> tuple[str, ...]:
        """The session id is part of a URL here, and so in no header."""
        return (*self._link.secrets, *([self._session_id] if self._session_id else []))

    # -- the server's messages ------------------------------------------------------------------

    async def receive(self) -> Sequence[Received] | None:
        while self._end is None:
            events, self._early = self._early, []
            try:
                found = _messages_in(events or await self._next_events())
            except EventTooLarge as error:
                whose = answered_id(error.head.partition(b"data:")[2])
                return [*_messages_in(error.events), Oversized(whose, self._limit)]
            if found:
                return found
        return None

    async def _next_events(self) -> list[ServerEvent]:
        if self._undecoded:
            await self._fair_share.used()
            return self._decoder.feed(self._undecoded.popleft())
        reply = self._reply
        if reply is None:
            self._end = "the event stream was closed"
            return []
        try:
            chunk = await reply.chunk()
        except WireFault as fault:
            self._end = f"the event stream broke: {fault.evidence.detail}"
            return []
        if chunk:
            self.heard_at = time.monotonic()
            self._undecoded.extend(slices(chunk))
            return []
        self._end = "the event stream ended"
        return self._decoder.finish()

    async def epitaph(self) -> Epitaph:
        return Epitaph(quiet(self._end or "the event stream is open", self._private))

    # -- the end --------------------------------------------------------------------------------

    async def close(self) -> None:
        self._end = self._end or "the event stream was closed"
        self._release()

    def abandon(self, *, forked: bool) -> None:
        """The sockets are the link's, and it forgets them."""

    def _release(self) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.abandon()
            reply.discard()


def _messages_in(events: Sequence[ServerEvent]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for event in events:
        if event.event != "message" or not event.data:
            continue  # keep-alives and the like
        try:
            found += jsonrpc.messages(event.data)
        except ValueError:
            logger.warning("an event that is not JSON-RPC was skipped")
    return found


def _id_of(body: bytes) -> RequestId:
    """Whose refusal it is, for the error in it."""
    found = jsonrpc.messages(body)[0].get("id")
    return found if isinstance(found, str | int) else 0
