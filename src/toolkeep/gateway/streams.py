"""Event streams to clients: `SseStream` writes one, `EventLog` keeps it for a client that comes
back, `Changes` says on which streams a change of the catalogue is told.

A stream never makes its writer wait: what a slow reader has not taken is bounded, and beyond the
bound the stream is cut. What a legacy call has sent is kept in the store for some minutes, so that
its client can go on reading at any replica.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from pydantic_core import to_json

from toolkeep._client.observers import Observation
from toolkeep.context import CallContext
from toolkeep.errors import StoreUnavailable, ToolkeepError
from toolkeep.events import CatalogueChanged, Changed, Event
from toolkeep.gateway.errors import OUTCOME_UNKNOWN, RpcError
from toolkeep.gateway.protocol import Json, Peer
from toolkeep.gateway.replicas import PREFIX, GatewayStore, Replicas
from toolkeep.gateway.sessions import Session
from toolkeep.runtime import Runtime

__all__ = ["Changes", "EventLog", "Listener", "SseStream"]

logger = logging.getLogger("toolkeep.gateway")

KEEP_ALIVE = 15.0
"""Seconds without an event, after which a comment is sent, so that proxies keep the stream open."""
SLOW_READER = 30.0
"""Seconds that one write may wait for the reader."""
RETRY_MS = 500
"""Milliseconds after which a client comes back for the rest of a stream."""
MAX_EVENT = 1024 * 1024
"""Bytes of an event that is kept for clients that come back."""
MAX_LOGGED, LOG_TTL = 1000, 300.0
"""Events that are kept of one stream, and for how many seconds."""
FOLLOW_INTERVAL = 0.25
"""Seconds between two looks at the log of a stream that another replica writes."""
FOLLOW_TIME = 600.0
LINGER = 60.0
"""Seconds for which a subscription at a server is kept without a stream: clients come back."""
MAX_URIS = 10_000
"""Resources that one replica is subscribed to."""

Send = Callable[[dict[str, Any]], Awaitable[None]]
"""The `send` of ASGI."""

SSE_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class EventLog:
    """The events of one legacy call, in the store. Its ids name the stream and the position."""

    def __init__(self, store: GatewayStore, session: str, stream: str) -> None:
        self._store, self._name = store, f"{PREFIX}:events:{session}:{stream}"
        self._stream = stream

    @classmethod
    def new(cls, store: GatewayStore, session: str, replica: str) -> EventLog:
        return cls(store, session, f"{replica}.{secrets.token_urlsafe(9)}")

    @classmethod
    def of(cls, store: GatewayStore, session: str, event_id: str) -> tuple[EventLog, int] | None:
        """The log that an event id is of, and the position; None: it is no such id."""
        stream, _, position = event_id.rpartition(".")
        if not stream or len(stream) > 80 or not position.isdecimal() or len(position) > 18:
            return None  # a position that no store counts to would be a fault of the store
        return cls(store, session, stream), int(position)

    @property
    def replica(self) -> str:
        """The replica that writes it."""
        return self._stream.partition(".")[0]

    async def append(self, data: bytes) -> str | None:
        """Keep an event, and return its id. None: it is not kept, because the store is down, or it
        is too large."""
        if len(data) > MAX_EVENT:
            return None
        with suppress(StoreUnavailable):
            position = await self._store.ask_events(
                lambda store: store.append(self._name, data, max_entries=MAX_LOGGED, ttl=LOG_TTL)
            )
            return self.id_at(position)
        return None

    def id_at(self, position: int) -> str:
        return f"{self._stream}.{position}"

    async def read(self, after: int) -> list[tuple[int, bytes]]:
        return await self._store.ask_events(lambda store: store.read(self._name, after, limit=100))

    async def follow(self, after: int, replicas: Replicas) -> AsyncIterator[tuple[str, bytes]]:
        """The events after this position until the last one, with their ids. Ends with an error if
        the replica that writes them does not live any more. Raises `StoreUnavailable`."""
        first = next((entry for _, entry in await self.read(0)), b"")
        request_id = _request_of(first)
        until = monotonic() + FOLLOW_TIME
        while monotonic() < until:
            for position, entry in await self.read(after):
                after = position
                if _request_of(entry) is None:
                    yield self.id_at(position), entry
                if _is_response(entry):
                    return
            if not await replicas.is_alive(self.replica) and not await self.read(after):
                text = "the replica that ran it has ended. It may have run"
                error = RpcError(OUTCOME_UNKNOWN, text, {"toolkeep/delivery": "unknown"})
                yield self.id_at(after), error.to_json(request_id)
                return
            await asyncio.sleep(FOLLOW_INTERVAL)


def opening(request_id: str | int) -> bytes:
    """The first entry of a log: which request it is about. It is not sent."""
    return to_json({"toolkeep": "stream", "request": request_id})


def _request_of(entry: bytes) -> str | int | None:
    if not entry.startswith(b'{"toolkeep":"stream"'):
        return None
    return json.loads(entry)["request"]


def _is_response(entry: bytes) -> bool:
    found: Any = json.loads(entry)
    return "method" not in found and "id" in found


class SseStream:
    """One SSE answer. `put` and `close` never wait; `run` writes until it is closed.

    `prime`: begin with an event that only has an id, so that the client can come back: this one, or
    that of the log.
    """

    def __init__(
        self,
        send: Send,
        *,
        max_bytes: int,
        headers: Collection[tuple[bytes, bytes]] = (),
        log: EventLog | None = None,
        prime: str | bool = False,
        on_cut: Callable[[], None] | None = None,
    ) -> None:
        self._send, self._max_bytes, self._headers = send, max_bytes, headers
        self._log, self._prime, self._on_cut = log, prime, on_cut
        self._queue: deque[tuple[str, bytes, str | None]] = deque()
        self._queued: set[str] = set()
        self._bytes = 0
        self._more = asyncio.Event()
        self._closed = False
        self.is_cut = False
        """Whether the reader was too slow, and gets no more."""
        self._limit: asyncio.Timeout | None = None

    def put(self, data: bytes, *, key: str = "", event_id: str | None = None) -> None:
        """Queue an event. `key`: skip it if one of the same key still waits."""
        if self._closed or (key and key in self._queued):
            return
        if self._bytes + len(data) > self._max_bytes and self._queue:
            self.cut()
            if self._log is None:
                return
        self._queue.append((key, data, event_id))
        self._queued.add(key)
        self._bytes += len(data)
        self._more.set()

    def close(self) -> None:
        """Send what is queued, and end."""
        self._closed = True
        self._more.set()

    def cut(self) -> None:
        """Send no more."""
        if self.is_cut:
            return
        self.is_cut = True
        logger.info("a stream is cut: its reader is too slow")
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())
        if self._on_cut is not None:
            self._on_cut()

    async def run(self, opening_entry: bytes | None = None) -> None:
        start = {"type": "http.response.start", "status": 200}
        await self._write({**start, "headers": [*SSE_HEADERS, *self._headers]})
        event_id = self._prime if isinstance(self._prime, str) else None
        if self._log is not None and opening_entry is not None:
            event_id = await self._log.append(opening_entry)
        if self._prime and event_id is not None:
            await self._body(f"id: {event_id}\nretry: {RETRY_MS}\ndata: \n\n".encode())
        while True:
            while self._queue:
                key, data, event_id = self._queue.popleft()
                self._queued.discard(key)
                self._bytes -= len(data)
                if self._log is not None:
                    event_id = await self._log.append(data)
                head = b"id: %b\n" % event_id.encode() if event_id else b""
                await self._body(head + b"event: message\ndata: " + data + b"\n\n")
            if self._closed:
                break
            self._more.clear()
            try:
                async with asyncio.timeout(KEEP_ALIVE):
                    await self._more.wait()
            except TimeoutError:
                await self._body(b": \n\n")
        if not self.is_cut:
            await self._write({"type": "http.response.body", "body": b""})

    async def _body(self, data: bytes) -> None:
        await self._write({"type": "http.response.body", "body": data, "more_body": True})

    async def _write(self, message: dict[str, Any]) -> None:
        if self.is_cut:
            return
        try:
            async with asyncio.timeout(SLOW_READER) as self._limit:
                await self._send(message)
        except TimeoutError:
            self.cut()
        finally:
            self._limit = None


# -- changes ------------------------------------------------------------------------------------

_LIST_METHODS = {
    "tools": "notifications/tools/list_changed",
    "prompts": "notifications/prompts/list_changed",
    "resources": "notifications/resources/list_changed",
}
UPDATED = "notifications/resources/updated"
ALL_LISTS = frozenset(_LIST_METHODS)


@dataclass(slots=True, eq=False)
class Listener:
    """One stream that is told of changes."""

    peer: Peer
    covers: Callable[[str], bool]
    """Whether the listener's profile has this server."""
    send: Callable[[str, Json], None]
    lists: frozenset[str] = ALL_LISTS
    uris: dict[str, str] = field(default_factory=dict[str, str])
    """The subscribed resources, with their servers."""

    def tell_missed(self) -> None:
        """Say that everything may have changed: it was not listening for a while."""
        for what in self.lists:
            self.send(_LIST_METHODS[what], {})
        for uri in self.uris:
            self.send(UPDATED, {"uri": uri})


class Changes:
    """Tells listeners what changes. From `start` to `stop` it observes the runtime, and subscribes
    at servers to what listeners want."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.listeners: set[Listener] = set()
        self._observation: Observation | None = None
        self._held: dict[tuple[str, str], int] = {}
        """Subscriptions at servers, with the number of their listeners."""
        self._contexts: dict[tuple[str, str], CallContext | None] = {}
        """For whom each was made."""
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._working: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()

    def start(self) -> None:
        self._observation = self._runtime.observe(self._on_event)

    def stop(self) -> None:
        if self._observation is not None:
            self._observation.close()
        for timer in self._timers.values():
            timer.cancel()
        for task in self._working:
            task.cancel()

    @contextmanager
    def listening(self, listener: Listener) -> Generator[asyncio.Event]:
        """Tell this listener in the block. The event is set when the gateway drains."""
        self.listeners.add(listener)
        try:
            yield self._ended
        finally:
            self.listeners.discard(listener)
            self._release_all(listener)

    def _release_all(self, listener: Listener) -> None:
        for uri, server in listener.uris.items():
            self._release(server, uri)
        listener.uris.clear()

    def end_all(self) -> None:
        """End the subscriptions of now: the gateway drains, or has other settings."""
        self._ended.set()
        self._ended = asyncio.Event()

    async def subscribe(
        self, listener: Listener, server: str, uri: str, context: CallContext | None
    ) -> None:
        """Tell this listener, which is in a block of `listening`, when a resource changes. Raises a
        `ToolkeepError` if its server does not offer that, or this context may not have it."""
        if uri in listener.uris:
            return
        key = server, uri
        if key not in self._held and len(self._held) >= MAX_URIS:
            raise ToolkeepError(f"more than {MAX_URIS} resources are subscribed to")
        # Sent once, but each listener needs the permission.
        await self._runtime.subscribe(uri, server=server, context=context)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._contexts.setdefault(key, context)
        self._held.setdefault(key, 0)
        if listener not in self.listeners or uri in listener.uris:  # meanwhile
            self._linger(key)
            return
        self._held[key] += 1
        listener.uris[uri] = server

    def unsubscribe(self, listener: Listener, uri: str) -> None:
        server = listener.uris.pop(uri, None)
        if server is not None:
            self._release(server, uri)

    def on_session(self, session: Session) -> None:
        """Follow the subscriptions of a session, which may have been made at another replica."""
        for listener in tuple(self.listeners):
            if listener.peer.session is session and session.uris != listener.uris:
                uris, context = dict(session.uris), session.peer.context
                task = asyncio.get_running_loop().create_task(self._follow(listener, uris, context))
                self._working.add(task)
                task.add_done_callback(self._working.discard)

    async def _follow(
        self, listener: Listener, uris: Mapping[str, str], context: CallContext | None
    ) -> None:
        """Subscribe a listener to exactly these resources. What a server refuses is left out."""
        for uri in [one for one in listener.uris if one not in uris]:
            self.unsubscribe(listener, uri)
        for uri, server in uris.items():
            try:
                await self.subscribe(listener, server, uri, context)
            except ToolkeepError as error:
                logger.warning("%s: %r is not subscribed to: %s", server, uri[:200], error)

    def _release(self, server: str, uri: str) -> None:
        key = server, uri
        self._held[key] -= 1
        self._linger(key)

    def _linger(self, key: tuple[str, str]) -> None:
        if not self._held[key] and key not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[key] = loop.call_later(LINGER, self._end, key)

    def _end(self, key: tuple[str, str]) -> None:
        self._timers.pop(key, None)
        if self._held[key]:
            return
        del self._held[key]
        context = self._contexts.pop(key, None)
        task = asyncio.get_running_loop().create_task(self._unsubscribe(*key, context))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _unsubscribe(self, server: str, uri: str, context: CallContext | None) -> None:
        try:
            await self._runtime.unsubscribe(uri, server=server, context=context)
        except ToolkeepError as error:
            logger.debug("%s: unsubscribing failed: %s", server, error)

    # -- events of the runtime ------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        if not self.listeners:
            return
        match event:
            case CatalogueChanged():
                changes = event.changes
                kinds = {
                    "tools": bool(changes.tools),
                    "prompts": bool(changes.prompts),
                    "resources": bool(changes.resources or changes.templates),
                }
                # A server that came back has the same items, but all callers may see them again.
                changed = {kind for kind, found in kinds.items() if found} or ALL_LISTS
                self._tell_lists(event.server, changed)
            case Changed(what="resource", uri=str(uri)):
                for listener in tuple(self.listeners):
                    if listener.uris.get(uri) == event.server:
                        listener.send(UPDATED, {"uri": uri})
            case Changed():
                # What is listed for one principal changes without a change of the catalogue.
                self._tell_lists(event.server, {event.what}, only_named=True)
            case _:
                pass

    def _tell_lists(self, server: str, kinds: Collection[str], *, only_named: bool = False) -> None:
        for listener in tuple(self.listeners):
            if only_named and listener.peer.caller.principal is None:
                continue
            if listener.covers(server):
                for kind in kinds:
                    if kind in listener.lists:
                        listener.send(_LIST_METHODS[kind], {})
