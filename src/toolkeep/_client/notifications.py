"""Server notifications outside of calls: the stream on one connection, and the subscriptions that
outlive connections.

After a lost stream, `Subscriptions` has the known lists fetched and compared, so that no change
is missed. Notifications never carry the result of a call. Importing this module loads neither
the SDK nor the HTTP library.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from toolkeep._client.observers import Observers
from toolkeep._client.options import ChangesMissed
from toolkeep._rules.backoff import Backoff, Pacer
from toolkeep._rules.classify import Era, Evidence
from toolkeep.events import Changed, Event, ServerNotification

if TYPE_CHECKING:
    from toolkeep._client.connection import Connection
    from toolkeep._client.listing import Listings

logger = logging.getLogger("toolkeep.client")

_STREAM_BACKOFF = Backoff()
_STREAM_OPEN_TIMEOUT = 1.0
"""Seconds to wait for the stream on which a legacy server may send requests."""
_MAX_CATCH_UP_DELAY = 5.0
"""The longest pause, in seconds, before known lists are fetched again while streams keep ending."""
_TEMPORARY_STATUSES = (401, 403, 408, 429)
"""Refusals that do not mean that the server has no subscriptions."""

OnOpen = Callable[["NotificationStream"], None]
"""Called whenever the stream is open; something may have been missed before."""


class NotificationStream:
    """One notification stream on one connection. Made by `Subscriptions`; ends with its connection
    or when stopped."""

    def __init__(self, server: str, connection: Connection, uris: tuple[str, ...]) -> None:
        self._server, self.connection = server, connection
        self.uris = uris
        """The resources that it subscribes to."""
        self.covered_uris: frozenset[str] = frozenset()
        """The resources that the server agreed to report."""
        self.is_open = False
        self.is_supported = True
        """False: the server offers no subscriptions."""
        self.opened_or_failed = asyncio.Event()
        """Set when the stream is open for the first time, or never will be."""
        self._task: asyncio.Task[None] | None = None

    def start(self, on_open: OnOpen, subscribe: tuple[str, ...]) -> None:
        """Start the stream. `subscribe`: resources to subscribe to first, at a legacy server."""
        self._task = self.connection.start_companion(self._run(on_open, subscribe))

    def stop(self) -> None:
        self.is_open = False
        self.opened_or_failed.set()
        if self._task is not None:
            self._task.cancel()

    async def _run(self, on_open: OnOpen, subscribe: tuple[str, ...]) -> None:
        try:
            if self.connection.era is Era.LEGACY:
                await self._legacy(on_open, subscribe)
            else:
                await self._modern(on_open)
        except Exception:
            logger.exception("%s: the notification stream failed", self._server)
        finally:
            self.opened_or_failed.set()

    def _opened(self, on_open: OnOpen, covered: Iterable[str]) -> None:
        self.covered_uris = frozenset(covered)
        self.is_open = True
        on_open(self)
        self.opened_or_failed.set()

    # -- legacy ---------------------------------------------------------------------------------

    async def _legacy(self, on_open: OnOpen, subscribe: tuple[str, ...]) -> None:
        from toolkeep._transport.base import Attempt, RequestFault

        for uri in subscribe:
            try:
                await self.connection.request("resources/subscribe", {"uri": uri}, Attempt())
            except RequestFault as error:
                logger.warning("%s: subscribing again to %s failed: %s", self._server, uri, error)
        # If the connection failed, the next call finds out.
        with contextlib.suppress(RequestFault):
            shared = self.connection.shared_stream
            opened = partial(self._opened, on_open, self.uris)
            if shared is None:
                await self.connection.transport.listen(opened)
            else:
                await shared.listen(partial(self.connection.transport.listen, opened), opened)

    # -- modern ---------------------------------------------------------------------------------

    async def _modern(self, on_open: OnOpen) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while self.is_supported and self.connection.accepts_calls:
            started = loop.time()
            await self._subscribe(on_open)
            self.is_open = False
            lasted = loop.time() - started
            failures = 1 if lasted > _STREAM_BACKOFF.cap else failures + 1
            await asyncio.sleep(_STREAM_BACKOFF.delay(failures, random.random()))

    async def _subscribe(self, on_open: OnOpen) -> None:
        """Open one subscription and hold it until it ends."""
        from toolkeep._transport.base import RequestFault, WireFault

        connection = self.connection
        try:
            await connection.session.listen(
                self.uris,
                lambda covered: self._opened(on_open, covered),
                within=connection.connect_timeout,
            )
        except WireFault as fault:
            self.is_supported = not _is_unsupported(fault.evidence)
        except (RequestFault, TimeoutError) as error:
            logger.debug("%s: a subscription ended: %s", self._server, error)


def _is_unsupported(evidence: Evidence) -> bool:
    """Whether the server offers no subscriptions; False for a temporary failure."""
    status = evidence.status or 200
    return evidence.error is not None or (400 <= status < 500 and status not in _TEMPORARY_STATUSES)


_CHANGE_METHODS: dict[str, Literal["tools", "prompts", "resources", "resource"]] = {
    "notifications/tools/list_changed": "tools",
    "notifications/prompts/list_changed": "prompts",
    "notifications/resources/list_changed": "resources",
    "notifications/resources/updated": "resource",
}


def to_event(server: str, method: str, params: Mapping[str, Any]) -> Event:
    """The event for a notification, the same in both eras."""
    what = _CHANGE_METHODS.get(method)
    if what is None:
        return ServerNotification(server=server, method=method, params=params)
    return Changed(server=server, what=what, uri=params.get("uri") if what == "resource" else None)


class Subscriptions:
    """The notifications that one client wants. Outlives connections; lives as long as the
    client."""

    def __init__(
        self, server: str, observers: Observers, *, always: bool, handles_requests: bool
    ) -> None:
        """`always`: listen even without an observer that wants notifications. `handles_requests`:
        the client answers server requests, which legacy servers send outside of calls, too."""
        self._server, self._observers, self._always = server, observers, always
        self._handles_requests = handles_requests
        self.listings: Listings
        """Fetches what may have changed; set by the client, which makes both."""
        self.log_level: str | None = None
        """The least level of log lines that the server is asked for."""
        self.uris: dict[str, None] = {}
        """The subscribed resources."""
        self._stream: NotificationStream | None = None
        self._previous_stream: NotificationStream | None = None
        """Stopped as soon as its replacement is open."""
        self._covered_uris: frozenset[str] | None = None
        """The resources of the last stream that was open. None: there was none."""
        self._missed_uris: frozenset[str] | None = None
        """The resources of gaps that are not closed yet. None: there is no gap."""
        self._catching_up: tuple[Connection, asyncio.Task[None]] | None = None
        self._pace = Pacer(_MAX_CATCH_UP_DELAY)

    @property
    def is_wanted(self) -> bool:
        return self._always or bool(self.uris) or self._observers.wants_notifications

    # -- streams --------------------------------------------------------------------------------

    async def open_on(self, connection: Connection) -> None:
        """Listen on a new connection. If the client answers server requests, wait for the stream: a
        request that a legacy server sends before is lost."""
        self.apply_to(connection)
        if self._stream is not None and self._handles_requests and connection.era is Era.LEGACY:
            await _wait_settled(self._stream, _STREAM_OPEN_TIMEOUT)

    def apply_to(self, connection: Connection) -> None:
        """Start, replace or stop the stream on this connection, as is wanted now."""
        if not self.is_wanted and not (self._handles_requests and connection.era is Era.LEGACY):
            self._stop()
        elif not self._is_current(connection):
            self._replace(connection)

    async def is_covered(self, uri: str, within: float) -> bool:
        """Whether the server agreed to report this resource; waits for its answer."""
        deadline = asyncio.get_running_loop().time() + within
        stream = None
        while self._stream is not None and stream is not self._stream:
            stream = self._stream  # another task may replace it meanwhile
            await _wait_settled(stream, deadline - asyncio.get_running_loop().time())
        return stream is not None and uri in stream.covered_uris

    async def wait_settled(self) -> None:
        """Wait for the newest stream to open or fail, for at most a second."""
        if self._stream is not None:
            await _wait_settled(self._stream, _STREAM_OPEN_TIMEOUT)

    def add_covered(self, uri: str) -> None:
        """Record that a legacy server agreed to report this resource."""
        if self._covered_uris is not None:
            self._covered_uris |= {uri}

    def _is_current(self, connection: Connection) -> bool:
        current = self._stream
        if current is None or current.connection is not connection or not current.is_supported:
            return False
        return connection.era is Era.LEGACY or current.uris == tuple(self.uris)

    def _replace(self, connection: Connection) -> None:
        is_new_connection = self._stream is None or self._stream.connection is not connection
        if self._stream is not None and not is_new_connection and self._stream.is_open:
            self._previous_stream = self._stream
        elif self._stream is not None:
            self._stream.stop()
        subscribe = tuple(self.uris) if is_new_connection and self._covered_uris is not None else ()
        self._stream = NotificationStream(self._server, connection, tuple(self.uris))
        self._stream.start(self._on_stream_open, subscribe)

    def _stop(self) -> None:
        for stream in (self._stream, self._previous_stream):
            if stream is not None:
                stream.stop()
        self._stream = self._previous_stream = None

    # -- gaps -----------------------------------------------------------------------------------

    def _on_stream_open(self, stream: NotificationStream) -> None:
        """A stream is open. Stop the one that it replaces; without one, there was a gap."""
        legacy = stream.connection.era is Era.LEGACY
        covered = frozenset(self.uris) if legacy else stream.covered_uris
        missed, self._covered_uris = self._covered_uris, covered
        previous, self._previous_stream = self._previous_stream, None
        if previous is not None and previous.is_open:
            previous.stop()
        elif missed is not None:
            self.listings.emit(ChangesMissed(server=self._server))
            self._missed_uris = missed | (self._missed_uris or frozenset())
            self._start_catch_up(stream.connection)

    def _start_catch_up(self, connection: Connection) -> None:
        previous = self._catching_up
        if previous is not None and previous[0] is connection and not previous[1].done():
            return
        if previous is not None:
            previous[1].cancel()
        self._catching_up = connection, connection.start_companion(self._run_catch_up())

    async def _run_catch_up(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._missed_uris is not None:
            await asyncio.sleep(self._pace.delay(clock()))
            missed, self._missed_uris = self._missed_uris or frozenset(), None
            try:
                await self.listings.emit_missed_changes(missed)
            except asyncio.CancelledError:  # the next connection closes this gap
                self._missed_uris = missed | (self._missed_uris or frozenset())
                raise
            except Exception as error:
                logger.warning(
                    "%s: fetching the changes since the last stream failed: %s", self._server, error
                )
            self._pace.mark_done(clock())


async def _wait_settled(stream: NotificationStream, within: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            await stream.opened_or_failed.wait()
