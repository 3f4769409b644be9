"""The endpoints of one server, and which of them a request goes to.

`Endpoint` owns what all clients share at one address: HTTP client, in-flight limit, breaker,
retry budget and what is known about the protocol era. `EndpointSelector` owns the connections
of one client and chooses among them. Sessions are never shared here, and whether a failed
request may go to another endpoint is decided by `_rules.recovery`. Importing this module loads
neither the SDK nor the HTTP library.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING

from toolkeep._client.auth import CredentialRefresher, server_headers
from toolkeep._client.loop_guard import LoopGuard
from toolkeep._client.notifications import Subscriptions
from toolkeep._client.options import ClientOptions, ReachabilityChanged
from toolkeep._client.rates import RetryBudget
from toolkeep._client.server_requests import ServerRequestHandlers
from toolkeep._client.shared_breaker import SharedBreaker
from toolkeep._rules.breaker import Breaker
from toolkeep._rules.classify import Era
from toolkeep._rules.recovery import Decision, RetryContext, decide
from toolkeep._transport.base import Tap
from toolkeep.auth.configured import ServerAuth
from toolkeep.config import ServerSpec, redact_url, secrets_of_url
from toolkeep.errors import Delivery, FailureKind, ToolkeepError
from toolkeep.events import Event
from toolkeep.state.shared import SharedState

if TYPE_CHECKING:
    from mcp_types import DiscoverResult

    from toolkeep._client.connection import Connection
    from toolkeep._client.connection_manager import ConnectionManager
    from toolkeep._client.retry import AttemptFailure
    from toolkeep._transport.http_client import HttpClient
    from toolkeep._transport.trace import OnTrace


_SEQUENCE = itertools.count(1)
_MAX_TERMINATIONS = 16
"""Sessions that are terminated at the server concurrently."""


class Endpoint:
    """One address of a server, with the state that its clients share. Lives in one event loop, from
    the first opening until the last client is closed."""

    def __init__(
        self,
        spec: ServerSpec,
        emit: Callable[[Event], None],
        *,
        state: SharedState | None = None,
        tracer: OnTrace | None = None,
    ) -> None:
        state = state or SharedState()
        self.spec, self._emit, self.tap = spec, emit, Tap(tracer)
        self.last_failure: ToolkeepError | None = None
        """Why the last request failed, if the transport failed it; None after the next answer."""
        # A stdio server runs one process for each client: there the connection manager limits.
        serialized = spec.serialize and bool(spec.url)
        self.in_flight_limit = asyncio.Semaphore(1 if serialized else spec.max_in_flight)
        self.terminations = asyncio.Semaphore(_MAX_TERMINATIONS)
        """Limits concurrent session terminations: a runtime may close thousands at once."""
        cooldown = spec.breaker_cooldown
        self.breaker = Breaker(spec.breaker_threshold, cooldown, max_cooldown=max(30.0, cooldown))
        self.shared_breaker = SharedBreaker(spec, self.breaker, state)
        self.retry_budget = RetryBudget(spec, state)
        self.in_flight = self.attempts = self.faults = 0
        """Attempts in flight, attempts so far, and attempts that the transport failed."""
        self.last_chosen = 0
        """A number from a global sequence, taken whenever this endpoint is chosen."""
        self._cooldown_until = 0.0
        self.failing_since: float | None = None
        """Since when every attempt met a transport fault (seconds since the epoch)."""
        self.era: Era | None = None
        """The protocol era; None until it is known."""
        self.is_old_sse = False
        """Whether it speaks the HTTP+SSE transport of 2024-11-05."""
        self.discover_result: DiscoverResult | None = None
        """A modern server's discovery, shared so that other clients need not ask."""
        self._http_client: HttpClient | None = None

    def is_available(self, now: float) -> bool:
        """Whether it may be used: it is not cooling down and its breaker admits requests."""
        return now >= self._cooldown_until and self.breaker.would_admit(now)

    def cool_down(self, seconds: float, now: float) -> None:
        """Avoid this endpoint for so many seconds, while there are others."""
        self._cooldown_until = max(
            self._cooldown_until, now + min(seconds, self.breaker.max_cooldown)
        )

    def record_failure(self, error: ToolkeepError) -> None:
        """Record that a request failed for good because of the transport."""
        self.last_failure = error
        self._emit(ReachabilityChanged(server=self.spec.name))

    def record_success(self) -> None:
        """Record the first answer after a failure."""
        self.last_failure = None
        self._emit(ReachabilityChanged(server=self.spec.name))

    def http_client(self) -> HttpClient | None:
        """The HTTP client that all clients share, made at first use; None without HTTP."""
        if self._http_client is None and self.spec.url:
            from toolkeep._transport.factory import create_http_client

            self._http_client = create_http_client(self.spec, self.tap)
        return self._http_client

    @property
    def secrets(self) -> tuple[str, ...]:
        """What this address was given: configured secrets, and header values that were sent."""
        return (
            *self._configured_secrets,
            *(self._http_client.secrets if self._http_client else ()),
        )

    @cached_property
    def _configured_secrets(self) -> tuple[str, ...]:
        spec = self.spec
        key = (spec.api_key.get_secret_value(),) if spec.api_key is not None else ()
        urls = (*secrets_of_url(spec.url), *secrets_of_url(spec.proxy or ""))
        return (*key, *spec.headers.values(), *spec.secrets, *urls)

    async def aclose(self) -> None:
        """Close the HTTP client, with what is still under way. The clients are closed by now."""
        http_client, self._http_client = self._http_client, None
        if http_client is not None:
            await http_client.aclose()

    def detach(self) -> None:
        """Drop the HTTP client without closing it: the loop is closed or belongs to the parent
        process."""
        http_client, self._http_client = self._http_client, None
        if http_client is not None:
            http_client.detach()


def common_failure(endpoints: Iterable[Endpoint]) -> ToolkeepError | None:
    """The failure of a server, if requests fail at all of its endpoints; else None."""
    errors = [endpoint.last_failure for endpoint in endpoints]
    return errors[0] if errors and all(errors) else None


class EndpointSelector:
    """The connections of one client, one for each endpoint, and the choice among them. Lives as
    long as the client; making it does no I/O. Most servers have one endpoint.

    The managers live from the first request until the client is closed, in one event loop. The
    next request makes new ones.
    """

    def __init__(
        self,
        spec: ServerSpec,
        options: ClientOptions,
        request_handlers: ServerRequestHandlers,
        subscriptions: Subscriptions,
        emit: Callable[[Event], None],
    ) -> None:
        self._server_auth = options.server_auth or ServerAuth(spec)
        self._spec, self._options, self._headers = spec, options, server_headers(spec)
        self._request_handlers, self._subscriptions = request_handlers, subscriptions
        self._emit, self._refresher = emit, CredentialRefresher(options.auth, self._server_auth)
        self._generations = itertools.count(1)
        self.close_count = 0
        """Changes whenever the client is closed."""
        self._closing: asyncio.Task[None] | None = None
        self._reset()

    def _reset(self) -> None:
        self.loop_guard = LoopGuard(self._spec.name)
        self.managers: tuple[ConnectionManager, ...] = ()
        self._leader: ConnectionManager | None = None
        self._single: ConnectionManager | None = None
        self._shuffled: list[ConnectionManager] = []
        self._own_endpoints: tuple[Endpoint, ...] = ()
        self._finding_stored: asyncio.Task[None] | None = None

    @property
    def is_authorized(self) -> bool:
        """Whether an authorizer other than a configured key gives the credentials."""
        return self._refresher.is_dynamic

    @property
    def principal(self) -> str | None:
        return self._options.principal

    @property
    def current_leader(self) -> ConnectionManager | None:
        """The leader; None if the client is not in use."""
        return self._leader

    @property
    def leader(self) -> ConnectionManager:
        """The manager that sends all requests that are not calls. Makes the managers at first
        use."""
        return self._leader or self._make_managers()

    def _make_managers(self) -> ConnectionManager:
        from toolkeep._client.connection_manager import ConnectionManager

        spec, options = self._spec, self._options
        endpoints = options.endpoints
        if not endpoints:
            endpoints = self._own_endpoints = tuple(
                Endpoint(each, self._emit, state=options.state, tracer=options.tracer)
                for each in spec.endpoint_specs
            )
        self.managers = tuple(
            ConnectionManager(
                endpoint.spec,
                endpoint,
                options=options,
                headers=self._headers,
                refresher=self._refresher,
                request_handlers=self._request_handlers,
                subscriptions=self._subscriptions,
                generations=self._generations,
                emit=self._emit,
                shown_url=redact_url(endpoint.spec.url) if len(endpoints) > 1 else "",
            )
            for endpoint in endpoints
        )
        # Shuffled, or many processes would all begin with the same address.
        self._shuffled = random.sample(self.managers, len(self.managers))
        self._single = self.managers[0] if len(self.managers) == 1 else None
        leader = self._single or self._mark_chosen(self._least_busy(monotonic(), ()))
        self._set_leader(leader)
        return leader

    def _set_leader(self, manager: ConnectionManager) -> None:
        if self._leader is not None:
            self._leader.is_leader = False
        self._leader = manager
        manager.is_leader = True

    # -- lifetime -------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether there is anything to close, and closing has not begun."""
        closing = self._closing is not None and not self._closing.done()
        return not closing and any(manager.is_open for manager in self.managers)

    async def prepare(self) -> None:
        """Claim the event loop for the next request, wait until the last close is over, and find
        stored sessions. Raises `WrongLoop`."""
        while self._closing is not None and not self._closing.done():
            self.loop_guard.check()
            await asyncio.wait((self._closing,))
        self.loop_guard.check()
        if not self.managers:
            self._make_managers()
        if self._single is None and self._options.stores_sessions:
            await self._find_stored_leader()

    async def aclose(self, *, terminate: bool | None = None) -> None:
        """Close all connections, promptly. May be called from any task, repeatedly, and during a
        handshake. `terminate`: whether to end sessions at the server; None: as configured."""
        guard = self.loop_guard
        if guard.loop is None:
            return
        if guard.is_unreachable:
            self.detach()
            return
        guard.check()
        if self._closing is None or self._closing.done():
            if terminate is None:
                terminate = self._options.terminate_on_close
            self._closing = guard.loop.create_task(self._close(terminate), context=Context())
        await asyncio.shield(self._closing)

    async def _close(self, terminate: bool | None) -> None:
        self.close_count += 1
        finding = self._finding_stored
        self._refresher.reset()
        await asyncio.gather(*(manager.aclose(terminate=terminate) for manager in self.managers))
        if finding is not None and not finding.done():
            finding.cancel()
            await asyncio.wait((finding,))
        for endpoint in self._own_endpoints:
            await endpoint.aclose()
        if self._options.server_auth is None:
            await self._server_auth.aclose()
        self._reset()

    def detach(self) -> None:
        """Let go without I/O: the loop is closed or belongs to the parent process."""
        self.close_count += 1
        for manager in self.managers:
            manager.detach(forked=self.loop_guard.is_forked)
        for endpoint in self._own_endpoints:
            endpoint.detach()
        self._refresher.reset()
        self._closing = None
        self._reset()

    async def wait_opened(self) -> None:
        """Wait until no opening is under way."""
        for manager in self.managers:
            await manager.wait_opened()

    async def wait_closing(self) -> None:
        """Wait until the client is being closed."""
        await self.leader.closed.wait()

    def bind(self, headers: Mapping[str, str]) -> None:
        """Bind the sessions at all endpoints to the principal of these headers. Raises
        `NotPermitted`."""
        for manager in self.managers:
            manager.binding.bind(headers)

    def listen(self) -> None:
        """Apply a change of what the client wants to hear."""
        if self._leader is not None:
            self._leader.listen()

    # -- stored sessions ------------------------------------------------------------------------

    async def _find_stored_leader(self) -> None:
        """Make the endpoint with a stored session the leader, if there is one. Looked up once, for
        all concurrent callers."""
        if self._finding_stored is None:
            loop = asyncio.get_running_loop()
            self._finding_stored = loop.create_task(self._lead_where_stored(), context=Context())
        # Unlike a shield, this does not raise the task's exception.
        await asyncio.wait((self._finding_stored,))

    async def _lead_where_stored(self) -> None:
        stored = await asyncio.gather(*(manager.has_stored_session() for manager in self._shuffled))
        self._set_leader(next(itertools.compress(self._shuffled, stored), self.leader))

    async def open_stored(self) -> None:
        """Connect to every endpoint with a stored session, in order to terminate it."""
        await self.prepare()
        for manager in self.managers:
            if await manager.has_stored_session():
                await manager.connect()

    @property
    def statuses(self) -> tuple[EndpointStatus, ...]:
        """The status of each endpoint, if there are several."""
        return endpoint_statuses([manager.endpoint for manager in self.managers])

    # -- choosing -------------------------------------------------------------------------------

    def choose(
        self,
        now: float,
        tried: Collection[ConnectionManager],
        *,
        call: bool,
        last: ConnectionManager | None,
    ) -> ConnectionManager:
        """Choose the manager that sends the next attempt. `last`: the one that sent the previous
        round of the same request."""
        if not self.managers:
            self._make_managers()
        if self._single is not None:
            return self._single
        if last is not None and last not in tried and last.endpoint.is_available(now):
            return self._mark_chosen(last)
        leader = self._current_leader(now, tried)
        return self._mark_chosen(
            self._least_busy(now, tried) if call and self._may_spread(leader) else leader
        )

    def has_alternative(self, now: float, tried: Collection[ConnectionManager]) -> bool:
        """Whether there is an endpoint that was not tried and is available."""
        if self._single is not None:
            return False
        return any(each.endpoint.is_available(now) for each in self.managers if each not in tried)

    async def acquire_connection(
        self, manager: ConnectionManager, tried: Collection[ConnectionManager], time_left: float
    ) -> Connection | Exception:
        """The manager's connection, or the failure. While another endpoint is available, opening
        may take half of the remaining time."""
        if self._single is not None or manager.protocol is not None:
            return await manager.connect()
        now = asyncio.get_running_loop().time()
        limit = asyncio.timeout(
            time_left / 2 if self.has_alternative(now, {manager, *tried}) else None
        )
        try:
            async with limit:
                return await manager.connect()
        except TimeoutError:
            if not limit.expired():
                raise
        from toolkeep._transport.base import Attempt, connection_fault

        return connection_fault(
            "it was not ready in half of the time, and another address is available", Attempt()
        )

    def decide(
        self,
        manager: ConnectionManager,
        attempt_failure: AttemptFailure,
        context: RetryContext,
        backoff: float,
    ) -> Decision:
        """What to do, according to `_rules.recovery`. A session that may still exist is kept if its
        endpoint alone would be retried; an unreachable one that would be given up is left."""
        failure = attempt_failure.failure
        if attempt_failure.connection is None and context.has_other_endpoint:
            # Only a handshake was sent, so the request may go to another endpoint.
            failure = replace(failure, delivery=Delivery.NOT_SENT)
        if context.has_other_endpoint and self._session_may_live(manager, attempt_failure):
            here = decide(failure, replace(context, has_other_endpoint=False), backoff=backoff)
            if here.retry_delay is not None or failure.kind is not FailureKind.UNREACHABLE:
                return here
        return decide(failure, context, backoff=backoff)

    def record_failure(
        self, manager: ConnectionManager, attempt_failure: AttemptFailure, now: float
    ) -> None:
        """Cool an endpoint down if it asked for a pause or could not be opened."""
        if self._single is not None or attempt_failure.failure.kind is FailureKind.UNAUTHORIZED:
            return
        if attempt_failure.failure.retry_after is not None:
            manager.endpoint.cool_down(attempt_failure.failure.retry_after, now)
        elif attempt_failure.connection is None:
            manager.endpoint.cool_down(manager.spec.breaker_cooldown, now)

    def _mark_chosen(self, manager: ConnectionManager) -> ConnectionManager:
        manager.endpoint.last_chosen = next(_SEQUENCE)
        return manager

    def _current_leader(
        self, now: float, tried: Collection[ConnectionManager]
    ) -> ConnectionManager:
        """The leader, replaced if it cannot be used now."""
        leader = self.leader
        admitted, kept = leader.endpoint.breaker.would_admit(now), self._is_sticky(leader)
        if leader not in tried and (leader.endpoint.is_available(now) or (kept and admitted)):
            return leader
        found = self._least_busy(now, tried)
        if kept and (found in tried or not found.endpoint.is_available(now)):
            return leader  # no other is better
        # A leader without a session that only asked for a pause leads again afterwards.
        if kept or leader.connection is None or not admitted:
            self._change_leader(found)
        return found

    def _change_leader(self, found: ConnectionManager) -> None:
        """Change the leader. The old leader's session is not resumed later: calls since then went
        to another endpoint."""
        before = self.leader
        self._set_leader(found)
        if before.connection is not None and self._is_sticky(before):
            before.drain(before.connection, lost=True, reason="another address is used now")
        found.listen()

    def _is_sticky(self, manager: ConnectionManager) -> bool:
        """Whether all calls of the client must use the session at this endpoint."""
        return self._spec.balance == "session" and manager.session_id is not None

    def _session_may_live(
        self, manager: ConnectionManager, attempt_failure: AttemptFailure
    ) -> bool:
        """Whether the failed attempt used a session that may still exist."""
        connection, now = attempt_failure.connection, asyncio.get_running_loop().time()
        if self._spec.balance != "session" or manager is not self.leader or connection is None:
            return False
        return connection.transport.session_id is not None and manager.endpoint.breaker.would_admit(
            now
        )

    def _may_spread(self, leader: ConnectionManager) -> bool:
        """Whether calls may go to any endpoint, because no session must be kept."""
        stateless = leader.protocol is not None and leader.session_id is None
        return self._spec.balance == "call" or stateless

    def _least_busy(self, now: float, tried: Collection[ConnectionManager]) -> ConnectionManager:
        """The endpoint with the fewest requests in flight, the longest unused of equals. Untried
        and available ones come first."""

        def rank(each: ConnectionManager) -> tuple[bool, bool, int, int]:
            endpoint = each.endpoint
            return (
                each in tried,
                not endpoint.is_available(now),
                endpoint.in_flight,
                endpoint.last_chosen,
            )

        return min(self._shuffled, key=rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStatus:
    """The state of one address of a server when it was asked for."""

    url: str
    """Without secrets."""
    in_flight: int
    attempts: int
    """Requests that were sent to it, or failed before."""
    faults: int
    """How many of the attempts the transport failed."""
    cooling_down: bool
    """Whether it is avoided for now: after too many consecutive faults, because it could not be
    opened, or because it asked for a pause."""


def endpoint_statuses(endpoints: Sequence[Endpoint]) -> tuple[EndpointStatus, ...]:
    """The status of each endpoint; empty for a single one, whose status is the server's."""
    if len(endpoints) == 1:
        return ()
    now = monotonic()
    return tuple(
        EndpointStatus(
            url=redact_url(endpoint.spec.url),
            in_flight=endpoint.in_flight,
            attempts=endpoint.attempts,
            faults=endpoint.faults,
            cooling_down=not endpoint.is_available(now),
        )
        for endpoint in endpoints
    )
