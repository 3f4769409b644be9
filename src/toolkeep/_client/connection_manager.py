"""Opening, replacing and closing the connection of one client to one endpoint.

`ConnectionManager` owns the current connection and opens at most one at a time; `Reconnector`
reopens for clients that only listen.
A failed opening is a returned value, never an exception in a background task. Nothing here
sends a tool call again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import Context
from typing import Any

from mcp_types import DiscoverResult, Implementation

from toolkeep._client.auth import (
    CredentialRefresher,
    PrincipalBinding,
    basic_auth_headers,
    credentials_for,
)
from toolkeep._client.connection import Connection
from toolkeep._client.endpoint import Endpoint
from toolkeep._client.notifications import Subscriptions, to_event
from toolkeep._client.options import ClientOptions
from toolkeep._client.server_requests import ServerRequestHandlers
from toolkeep._client.session import ExitedDuringProbe, NegotiatedProtocol
from toolkeep._client.shared_stream import SharedStream
from toolkeep._client.stored_session import SessionResumer, SharedTurn, StoredSession
from toolkeep._rules.backoff import Backoff
from toolkeep._rules.classify import SESSION_LOST_RULES, Era, classify
from toolkeep._rules.recovery import TransportKind, session_survives
from toolkeep._rules.states import ClientState, transition_client
from toolkeep._transport.base import (
    Attempt,
    RequestFault,
    TransportFactory,
    WireFault,
    connection_fault,
)
from toolkeep._transport.factory import create_transport_factory
from toolkeep._version import __version__
from toolkeep.config import ServerSpec
from toolkeep.errors import CallNotDelivered, ConfigError, Failure, FailureKind
from toolkeep.events import Connected, Disconnected, Event

logger = logging.getLogger("toolkeep.client")

CLIENT_INFO = {"name": "toolkeep", "version": __version__}

_OLD_SSE_STATUSES = (400, 404, 405)
"""How a server of 2024-11-05 answers a handshake by POST, according to the specification."""
_RECONNECT_BACKOFF = Backoff()
_CLOSED_WHILE_CONNECTING = "the client was closed while connecting"


class Reconnector:
    """Reconnects a client that only listens. One for each `ConnectionManager`, at most one task at
    a time, which ends with the client."""

    def __init__(
        self,
        reconnect: Callable[[], Awaitable[bool]],
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._reconnect, self._pause = reconnect, pause
        self._task: asyncio.Task[None] | None = None
        self._attempts, self._reconnected_at = 0, 0.0

    def start(self) -> None:
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), context=Context())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        if clock() - self._reconnected_at > _RECONNECT_BACKOFF.cap:
            self._attempts = 0  # the last connection lasted long enough
        while True:
            if self._attempts:
                await self._pause(_RECONNECT_BACKOFF.delay(self._attempts, random.random()))
            self._attempts += 1
            if await self._reconnect():
                self._reconnected_at = clock()
                return


class ConnectionManager:
    """The connection of one client to one endpoint: opened at the first request, replaced when it
    is lost, closed for good. Belongs to the event loop of its client's selector."""

    def __init__(
        self,
        spec: ServerSpec,
        endpoint: Endpoint,
        *,
        options: ClientOptions,
        headers: Mapping[str, str],
        refresher: CredentialRefresher,
        request_handlers: ServerRequestHandlers,
        subscriptions: Subscriptions,
        generations: Iterator[int],
        emit: Callable[[Event], None],
        shown_url: str = "",
    ) -> None:
        """`generations` numbers all connections of the client, `headers` go with every request."""
        self.spec, self.endpoint, self.refresher = spec, endpoint, refresher
        self._options, self._request_handlers = options, request_handlers
        self._subscriptions, self._generations = subscriptions, generations
        self._emit, self._shown_url = emit, shown_url
        self._headers = {**basic_auth_headers(spec.url), **headers}
        self._client_info = Implementation.model_validate(options.client_info or CLIENT_INFO)
        self.session_lost_rules = (*options.session_lost_rules, *SESSION_LOST_RULES)
        serialized = spec.serialize and not spec.url
        self.in_flight_limit: asyncio.Semaphore | SharedTurn = (
            asyncio.Semaphore(1) if serialized else endpoint.in_flight_limit
        )
        if spec.serialize and spec.url and options.state:
            self.in_flight_limit = SharedTurn(endpoint.in_flight_limit, options.state, spec)
        self.state = ClientState.IDLE
        self.is_leader = False
        """Whether this endpoint gets all requests of the client that are not calls."""
        self.connection: Connection | None = None
        self._connections: list[Connection] = []
        """All that are not closed: the current one, and those that drain."""
        self.opened_with_epoch = 0
        """The credentials epoch of the last opening, successful or not."""
        self._opening: asyncio.Task[Connection | Exception] | None = None
        self._is_closing = False
        self.closed = asyncio.Event()
        """Set as soon as closing begins."""
        self.binding = PrincipalBinding(
            spec,
            self._headers,
            authorized=refresher.auth is not None,
            fixed=options.stores_sessions and options.stored_for is None,
            trusted=options.pooled,
        )
        self._resumer = self._make_resumer()
        self._stream: SharedStream | None = None
        self._factory: TransportFactory | None = None
        self._exits_regardless = False
        """Whether the process exits during the handshake even without an era probe."""
        self._handshake_succeeded = False
        """Whether a handshake with the current transport has succeeded."""
        self._reconnector = Reconnector(self._reconnect, self.wait_before_retry)

    def _make_resumer(self) -> SessionResumer | None:
        if not self._options.stores_sessions or not self.spec.url:
            return None
        return SessionResumer(
            self._options.state,
            self.spec,
            self._options.stored_for,
            identity=self.binding.identity_facts,
            offers=self._request_handlers.methods,
        )

    @property
    def transport_kind(self) -> TransportKind:
        return self._factory.kind if self._factory else TransportKind.REQUEST_RESPONSE

    @property
    def protocol(self) -> NegotiatedProtocol | None:
        """The protocol of the current connection; None if there is no connection."""
        connection = self.connection
        return connection.protocol if connection and connection.accepts_calls else None

    @property
    def session_id(self) -> str | None:
        connection = self.connection
        return connection.transport.session_id if connection and connection.accepts_calls else None

    @property
    def is_open(self) -> bool:
        """Whether it holds anything to close."""
        return self._opening is not None or self.connection is not None

    # -- opening --------------------------------------------------------------------------------

    async def connect(self) -> Connection | Exception:
        """The connection for the next request, opened if necessary; or the failure."""
        connection = self.connection
        if connection is not None and connection.accepts_calls:
            return connection
        if self._is_closing:
            return connection_fault(_CLOSED_WHILE_CONNECTING, Attempt())
        if connection is not None:
            self.drain(connection, lost=True, reason="the connection ended by itself")
        if self._opening is None or self._opening.done():  # done: an eagerly started task
            loop, self.opened_with_epoch = asyncio.get_running_loop(), self.refresher.epoch
            self._opening = loop.create_task(self._open_next(), context=Context())
        return await asyncio.shield(self._opening)

    async def _open_next(self) -> Connection | Exception:
        if self.state is ClientState.IDLE:
            self.state = transition_client(self.state, ClientState.OPENING)
        try:
            outcome = await self._open_and_listen()
        finally:
            self._opening = None
        if self._is_closing:
            return connection_fault(_CLOSED_WHILE_CONNECTING, Attempt())
        opened = isinstance(outcome, Connection)
        self.connection = outcome if opened else None
        self.state = transition_client(
            self.state, ClientState.READY if opened else ClientState.IDLE
        )
        if isinstance(outcome, Connection):
            self._emit_connected(outcome)
            if outcome.close_reason:  # it ended before `self.connection` was set
                self._on_connection_lost(outcome, outcome.close_reason)
        return outcome

    async def wait_opened(self) -> None:
        """Wait until no opening is under way."""
        if self._opening is not None:
            await asyncio.wait((self._opening,))

    async def _open_and_listen(self) -> Connection | Exception:
        outcome = await self._open(next(self._generations))
        if isinstance(outcome, Connection) and outcome.stored is not None:
            session = outcome.stored.binding  # a digest that only those who share it can make
            self._stream = SharedStream(self._options.state, session, self._emit_notification)
            outcome.shared_stream = self._stream
        if isinstance(outcome, Connection) and self.is_leader:
            await self._subscriptions.open_on(outcome)
        return outcome

    async def _open(self, generation: int) -> Connection | Exception:
        """Open the next connection: by which transport, with which stored session, in which era."""
        try:
            factory = self._factory = self._factory or self._make_factory(
                older=self.endpoint.is_old_sse
            )
        except ConfigError as error:
            return error
        await self._wait_previous_exit(factory)
        resumer = self._resumer if factory.resumable and not self.spec.is_modern_only else None
        if resumer is None or self.endpoint.era is Era.MODERN:
            return await self._open_with(factory, generation, None)
        opened = None
        try:
            outcome = await self._open_with(factory, generation, await resumer.begin())
            opened = outcome if isinstance(outcome, Connection) else None
            return outcome
        finally:
            stays = opened is not None and opened.era is Era.LEGACY and self._factory is factory
            # Without a name, another process may be logged in as another user.
            stays = stays and not (self._options.stored_for is None and self.refresher.is_dynamic)
            await resumer.end(opened, storable=stays)

    async def _open_with(
        self, factory: TransportFactory, generation: int, stored: StoredSession | None
    ) -> Connection | Exception:
        outcome = await self._open_on(factory, generation, stored=stored)
        if isinstance(outcome, ExitedDuringProbe) and not self._exits_regardless:
            outcome = await self._open_on(factory, generation, known_era=Era.LEGACY)
            self._exits_regardless = not isinstance(outcome, Connection)
        elif self._may_be_old_sse(outcome):
            outcome = await self._open_old_sse(outcome, generation)
        if isinstance(outcome, Connection):
            self._record_handshake(outcome)
        return outcome

    async def _open_on(
        self,
        factory: TransportFactory,
        generation: int,
        *,
        known_era: Era | None = None,
        stored: StoredSession | None = None,
    ) -> Connection | Exception:
        if self._is_closing:  # closed while this task waited
            return connection_fault(_CLOSED_WHILE_CONNECTING, Attempt())
        connection = Connection(
            factory.create(lambda reason: self._on_connection_lost(connection, reason)),
            self.spec,
            generation,
            client_info=self._client_info,
            known_era=known_era or (self.endpoint.era if factory.supports_modern else Era.LEGACY),
            # A process is always asked: only its answer shows that it works.
            discovered=self.endpoint.discover_result if factory.resumable else None,
            on_notification=self._on_notification,
            request_handlers=self._request_handlers,
            terminations=self.endpoint.terminations,
            stored=stored,
        )
        self._connections = [*(c for c in self._connections if not c.is_closed), connection]
        return await connection.open(self._subscriptions.log_level) or connection

    def _record_handshake(self, connection: Connection) -> None:
        """Record what the handshake showed."""
        self.endpoint.era = connection.era
        result = connection.protocol.result if connection.protocol else None
        self.endpoint.discover_result = result if isinstance(result, DiscoverResult) else None
        self._handshake_succeeded = self._handshake_succeeded or connection.stored is None

    def _emit_connected(self, connection: Connection) -> None:
        protocol = connection.protocol
        assert protocol is not None
        self._emit(
            Connected(
                server=self.spec.name,
                generation=connection.generation,
                era=protocol.era.value,
                protocol_version=protocol.version,
                session_id=connection.transport.session_id,
                endpoint=self._shown_url,
            )
        )

    async def has_stored_session(self) -> bool:
        return self._resumer is not None and await self._resumer.load() is not None

    async def probe(self) -> int | None:
        """The HTTP status of a plain GET; None if there is no answer or no HTTP."""
        async with asyncio.timeout(self.spec.timeouts.connect):
            try:
                return await self._factory.probe() if self._factory else None
            except RequestFault:
                return None

    async def wait_before_retry(self, seconds: float) -> None:
        """Sleep before a retry; closing the client ends the sleep."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.closed.wait()

    # -- transports -----------------------------------------------------------------------------

    def _make_factory(self, *, older: bool) -> TransportFactory:
        factory = self._make_own_factory(older=older)
        program, options = self._options.shared_program, self._options
        if program is None:
            return factory
        from toolkeep._transport.forwarding import SharedProgramFactory
        from toolkeep._transport.shared_program import ProgramIdentity

        identity = ProgramIdentity(options.identity_key, options.principal)
        return SharedProgramFactory(program, factory, identity)

    def _make_own_factory(self, *, older: bool) -> TransportFactory:
        return create_transport_factory(
            self.spec,
            self._headers,
            credentials_for(self.spec, self._options, self.refresher),
            client=self.endpoint.http_client(),
            legacy_sse=older,
            tap=self.endpoint.tap,
        )

    async def _wait_previous_exit(self, factory: TransportFactory) -> None:
        """Wait for the previous process to exit: two processes of one server may contend for a
        lock."""
        for connection in self._connections if factory.exclusive else ():
            if connection.session_lost and not connection.in_flight:
                await connection.wait_closed(within=self.spec.timeouts.close)

    def _may_be_old_sse(self, outcome: Connection | Exception) -> bool:
        spec = self.spec
        if not isinstance(outcome, WireFault) or outcome.evidence.error is not None:
            return False
        undecided = bool(spec.url) and spec.transport is None and not self._handshake_succeeded
        refused = outcome.evidence.status in _OLD_SSE_STATUSES
        return undecided and refused and not spec.is_modern_only

    async def _open_old_sse(
        self, refusal: Connection | Exception, generation: int
    ) -> Connection | Exception:
        old_sse = self._make_factory(older=True)
        outcome = await self._open_on(old_sse, generation)
        if not isinstance(outcome, Connection):
            return refusal
        self._factory, self.endpoint.is_old_sse = old_sse, True
        return outcome

    # -- losing a connection --------------------------------------------------------------------

    def drain(self, connection: Connection, *, lost: bool, reason: str) -> None:
        """Give up a connection; concurrent losers of the same generation have no effect. `lost`:
        there is no session to terminate at the server."""
        if self.connection is not connection:
            return
        self.connection = None
        self.state = transition_client(self.state, ClientState.REPLACING)
        if self._resumer is not None and connection.transport.session_id is not None:
            self._resumer.mark_lost(connection.transport.session_id)
        connection.drain(lost=lost)
        self._emit_disconnected(connection, reason, requested=False)

    async def check_session(self, connection: Connection, within: float) -> bool:
        """Check a session in doubt with a ping; True if it is gone and was given up. Concurrent
        callers share one ping, which carries no caller's headers."""
        if self.connection is connection:
            if connection.check_task is None or connection.check_task.done():
                connection.check_task = connection.start_companion(self._check(connection))
            await asyncio.wait((connection.check_task,), timeout=max(0.0, within))
        return self.connection is not connection

    async def _check(self, connection: Connection) -> None:
        attempt, failure = Attempt(), None
        try:
            async with asyncio.timeout(connection.connect_timeout), self.in_flight_limit:
                await connection.request("ping", None, attempt, lenient=True)
            return
        except TimeoutError:
            if not attempt.sent:
                return  # it waited for the in-flight limit all the time
        except WireFault as fault:
            failure = classify(fault.evidence, rules=self.session_lost_rules)
        except (RequestFault, CallNotDelivered):
            return  # the server answered, our credentials are wrong, or it was not our turn
        self.check_failed(connection, failure)

    def check_failed(self, connection: Connection | None, failure: Failure | None) -> None:
        """Give up the session after a failed check (None: no answer), unless the failure shows that
        the session still exists."""
        if (
            connection is None
            or connection.transport.session_id is None
            or session_survives(failure)
        ):
            return
        lost = failure is not None and failure.kind is FailureKind.SESSION_LOST
        why = failure.kind.value if failure else "no answer"
        self.end_session(connection, f"its check failed: {why}", lost=lost)

    def end_session(self, connection: Connection, reason: str, *, lost: bool = False) -> None:
        """Give up a session that may still exist. It is terminated at the server, unless a store
        keeps it for other processes."""
        self.drain(connection, lost=lost or connection.stored is not None, reason=reason)

    def renegotiate(self, connection: Connection, reason: str) -> None:
        """Give up a connection whose era verdict is wrong; the next opening probes again."""
        if self.connection is connection:
            self.endpoint.era = self.endpoint.discover_result = None
            self.drain(connection, lost=False, reason=reason)

    def _emit_disconnected(self, connection: Connection, reason: str, *, requested: bool) -> None:
        about: Any = {"server": self.spec.name, "endpoint": self._shown_url}
        number = connection.generation
        self._emit(Disconnected(generation=number, reason=reason, requested=requested, **about))

    def _on_connection_lost(self, connection: Connection, reason: str) -> None:
        """The transport reported its end. Reconnect if the client listens for notifications;
        otherwise the next call does."""
        connection.close_reason = reason
        if self.connection is not connection:
            return
        self.drain(connection, lost=True, reason=reason)
        if self._subscriptions.is_wanted and not self._is_closing and self.is_leader:
            self._reconnector.start()

    async def _reconnect(self) -> bool:
        """Reconnect for the subscriptions; True if that succeeded or is no longer needed."""
        done = self.connection is not None or not (self._subscriptions.is_wanted and self.is_leader)
        return done or isinstance(await self.connect(), Connection)

    # -- notifications --------------------------------------------------------------------------

    def listen(self) -> None:
        """Open or close the notification stream, as the subscriptions want it."""
        if self.connection is not None:
            self._subscriptions.apply_to(self.connection)

    def _on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        if self._stream is not None:
            self._stream.publish(method, params)
        self._emit_notification(method, params)

    def _emit_notification(self, method: str, params: Mapping[str, Any]) -> None:
        self._emit(to_event(self.spec.name, method, params))

    # -- closing --------------------------------------------------------------------------------

    async def aclose(self, *, terminate: bool | None) -> None:
        """Release everything, promptly, also during a handshake. Called once. `terminate`: whether
        to end the session at the server; None: unless a store keeps it."""
        self.state = transition_client(self.state, ClientState.CLOSING)
        self._is_closing = True
        self.closed.set()
        connection, self.connection = self.connection, None
        await self._reconnector.stop()
        await asyncio.gather(
            *(self._close_connection(each, terminate) for each in reversed(self._connections)),
            return_exceptions=True,
        )
        await self.wait_opened()
        if connection is not None:
            self._emit_disconnected(connection, "closed", requested=True)

    async def _close_connection(self, connection: Connection, terminate: bool | None) -> None:
        is_stored = connection.stored is not None
        terminate = not is_stored if terminate is None else terminate
        if terminate and is_stored and self._resumer is not None:
            await self._resumer.drop(connection)
        await connection.aclose(terminate=terminate)

    def detach(self, *, forked: bool) -> None:
        """Let go without I/O: the loop is closed or, after a fork, belongs to the parent
        process."""
        self._is_closing, self.connection = True, None
        if self._factory is not None:
            self._factory.detach(forked=forked)
