"""The retry loop: send one request until it has an answer, a definite error or no time left.

Owns the attempts of one request, in all its rounds, and the translation of failures into
errors. It runs in the caller's task. It never decides by itself: `classify` says what happened
and `decide` says what to do. An attempt whose outcome is unknown is never reported as not sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import time
from typing import Any

from toolkeep._client.connection import Connection
from toolkeep._client.connection_manager import ConnectionManager
from toolkeep._client.deadline import DeadlineExceeded, RequestDeadline
from toolkeep._client.endpoint import EndpointSelector
from toolkeep._client.request import CallRequest
from toolkeep._rules.backoff import Backoff
from toolkeep._rules.breaker import BreakerPermit
from toolkeep._rules.classify import Era, Evidence, FaultKind, classify
from toolkeep._rules.recovery import (
    REMEDIED_IN_PLACE,
    ConnectionAction,
    Decision,
    RetryContext,
    RetryPolicy,
    TransportKind,
    is_session_stuck,
)
from toolkeep._tasks import StrayCancellation, cancellation_count, foreign_code
from toolkeep._transport.base import (
    Attempt,
    CredentialsFault,
    InvalidResponse,
    WireFault,
)
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.auth.authorizer import HEADER
from toolkeep.errors import (
    AuthNeeded,
    CallError,
    CallNotDelivered,
    CallNotSentInTime,
    CallOutcomeUnknown,
    CallRejected,
    CallTimedOut,
    Delivery,
    Failure,
    FailureKind,
    InvalidArguments,
    InvalidResult,
    RemoteProtocolError,
    ServerUnavailable,
    ToolkeepError,
    unraised_copy,
)
from toolkeep.events import Retrying
from toolkeep.results import CallResult

_RETRY_BACKOFF = Backoff()
_REFUSED_BEFORE_RUN = (FailureKind.HEADER_MISMATCH, FailureKind.VERSION_MISMATCH)
"""Answers that came before the tool could run."""
_TRANSPORT_FAULTS = (FailureKind.UNREACHABLE, FailureKind.BROKEN, FailureKind.EXITED)
_NOT_MCP = (FailureKind.UNREADABLE, FailureKind.VERSION_MISMATCH, FailureKind.REFUSED)
"""Failures of a handshake with something that is not a usable MCP server."""

_NOT_OPENED = "no connection was open: it was not sent"
_NO_RECOVERY = {
    ConnectionAction.REAUTHORIZE: "there are no other credentials",
    ConnectionAction.RELIST: "the tools could not be listed again",
    ConnectionAction.CHECK: "the session is there: the response is the outcome",
}
"""Why an action did not lead to a retry."""

_MAY_HAVE_RUN = "It may have run: find out before sending it again"
_DID_NOT_RUN = "It did not run: sending it again is safe"


@dataclass(slots=True)
class AttemptFailure:
    """A failed attempt, before the decision what to do about it."""

    failure: Failure
    connection: Connection | None
    """None: no connection could be opened."""
    auth_epoch: int
    """The epoch of the credentials that it was sent with."""
    sent_headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """The headers of the request that failed, secrets included."""
    was_breaker_probe: bool = False
    """Whether it was the breaker's probe."""

    @property
    def is_stuck(self) -> bool:
        """Whether the session of the attempt may be unusable at the server."""
        connection = self.connection
        if connection is None or connection.transport.session_id is None:
            return False
        return is_session_stuck(connection.consecutive_faults, probe=self.was_breaker_probe)


def error_type(failure: Failure, *, opening: bool) -> type[ToolkeepError]:
    """The type of the error that ends a request, judged by its last attempt alone. `opening`: no
    connection could be opened."""
    if failure.kind is FailureKind.UNAUTHORIZED:
        return AuthNeeded
    if opening:
        return RemoteProtocolError if failure.kind in _NOT_MCP else ServerUnavailable
    match failure.delivery:
        case Delivery.ANSWERED:
            return CallRejected
        case Delivery.UNKNOWN:
            return CallOutcomeUnknown
        case _:
            return CallNotDelivered


def stray_cancellation(attempt: Attempt) -> Failure:
    """The failure for a cancellation that came from a library and not from the caller."""
    kind = FaultKind.BROKEN if attempt.sent else FaultKind.CONNECT
    detail = "a library cancelled the request by itself"
    return classify(Evidence(kind=kind, sent=attempt.sent, detail=detail))


class RetryLoop:
    """Sends one request until it is answered or must fail, round after round. Belongs to the task
    that runs it."""

    def __init__(
        self, selector: EndpointSelector, request: CallRequest, deadline: RequestDeadline
    ) -> None:
        self._selector, self._request, self.deadline = selector, request, deadline
        self._close_count = selector.close_count
        self._manager: ConnectionManager = selector.leader
        self._preferred: ConnectionManager | None = None
        """Where the next attempt should go: a later round belongs where the first one ran."""
        self._failed_managers: set[ConnectionManager] = set()
        """Endpoints that failed this round, while there are others."""
        self.era: Era | None = None
        """The era of the connection that was used last."""
        self._params: dict[str, Any] | None = None
        self._rounds = self._retries = 0
        self.total_attempts = 0
        """Attempts in all rounds."""
        self._attempts = 0
        """Attempts in this round."""
        self._worst_delivery = Delivery.NOT_SENT
        """The worst delivery over all attempts of this round."""
        self._last_failure: Failure | None = None
        self._no_retry_reason = ""
        self._current_attempt: Attempt | None = None
        self._actions_taken: set[ConnectionAction] = set()
        self._loop, self._cancellations = asyncio.get_running_loop(), cancellation_count()

    async def run(self, params: dict[str, Any] | None) -> dict[str, Any]:
        """Send the request, or its next round: an answer to the server, or the next page."""
        self._params = params
        self._rounds += 1
        if self._rounds > 1:
            self._start_next_round()
        if self._cancellations:
            await asyncio.sleep(0)  # a cancellation that is already requested is raised here
        try:
            async with self.deadline:
                return await self._run_attempts()
        except ToolkeepError as error:
            final = self._keep_unknown_outcome(error)
            final.no_retry_reason = self._no_retry_reason
            raise final from (error.__cause__ if final is error else error)
        except DeadlineExceeded:
            pass
        timed_out = self._timeout_error()
        if self._last_failure is not None and self._last_failure.kind in _TRANSPORT_FAULTS:
            self._manager.endpoint.record_failure(timed_out)
        raise timed_out

    def _start_next_round(self) -> None:
        self._preferred = self._manager
        self._failed_managers, self._actions_taken = set(), set()
        self._attempts, self._last_failure = 0, None
        self._worst_delivery = Delivery.NOT_SENT
        self._cancellations = cancellation_count()
        if self.deadline.remaining <= 0:
            raise self._timeout_error()

    @property
    def _partly_ran(self) -> bool:
        """Whether the tool has run up to its request for input."""
        return self._rounds > 1 and self._request.is_tool_call

    @property
    def _was_closed(self) -> bool:
        """Whether the client was closed since: it is not opened again for this request."""
        return self._close_count != self._selector.close_count

    @property
    def uses_duplex_transport(self) -> bool:
        return self._manager.transport_kind is TransportKind.DUPLEX

    @property
    def _server(self) -> str:
        return self._manager.spec.name

    async def _run_attempts(self) -> dict[str, Any]:
        await self._selector.prepare()
        while True:
            self._attempts += 1
            self.total_attempts += 1
            manager = self._manager = self._selector.choose(
                self._loop.time(),
                self._failed_managers,
                call=self._request.is_tool_call,
                last=self._preferred,
            )
            outcome = await self._attempt_once()
            self._current_attempt = None
            if isinstance(outcome, dict):
                return outcome
            self._record_failure(outcome)
            decision = self._decide(outcome)
            self._actions_taken.add(decision.action)
            recovered = await self._apply_recovery(decision.action, outcome)
            wait = decision.retry_delay
            if wait is None or not recovered or self._was_closed:
                self._no_retry_reason = self._why_ended(decision, recovered=recovered)
                raise self._final_error(outcome)
            if decision.costs_budget and not await manager.endpoint.retry_budget.take():
                self._no_retry_reason = "the server's retry budget is used up"
                raise self._final_error(outcome)
            if outcome.failure.kind is FailureKind.SESSION_UNCERTAIN:
                # It was answered, and that answer is discarded.
                self._worst_delivery = Delivery.UNKNOWN
            self._retries += 1
            self._emit_retrying(wait, outcome, decision)
            await manager.wait_before_retry(wait)

    def _why_ended(self, decision: Decision, *, recovered: bool) -> str:
        if self._was_closed:
            return "the client was closed"
        if decision.retry_delay is None or recovered:
            return decision.reason
        return _NO_RECOVERY.get(decision.action, decision.reason)

    def _emit_retrying(self, delay: float, outcome: AttemptFailure, decision: Decision) -> None:
        request, failure = self._request, outcome.failure
        if request.emit is not None:
            reason = _NOT_OPENED if outcome.connection is None else decision.reason
            about: Any = {"server": self._server, "tool": request.name, "call_id": request.call_id}
            about |= {"attempt": self._attempts, "delay": delay, "reason": reason}
            request.emit(Retrying(failure=failure, **about))

    # -- one attempt ----------------------------------------------------------------------------

    async def _attempt_once(self) -> dict[str, Any] | AttemptFailure:
        """One attempt, if the breaker permits it, within the in-flight limit."""
        permit = self._manager.endpoint.breaker.admit(self._loop.time())
        if permit.probe:
            return await self._probe(permit)
        return await self._attempt_if(permit)

    async def _probe(self, permit: BreakerPermit) -> dict[str, Any] | AttemptFailure:
        """The attempt that finds out whether the endpoint works again, unless another process
        makes one."""
        endpoint, begun = self._manager.endpoint, False
        try:
            async with endpoint.shared_breaker.probing() as is_free:
                if not is_free:
                    permit = endpoint.breaker.defer(self._loop.time())
                begun = True
                return await self._attempt_if(permit)
        finally:
            if not begun:
                endpoint.breaker.cancel(permit.probe)

    async def _attempt_if(self, permit: BreakerPermit) -> dict[str, Any] | AttemptFailure:
        endpoint = self._manager.endpoint
        breaker = endpoint.breaker
        if not permit.allowed:
            refused = self._breaker_error(permit.wait)
            if endpoint.last_failure is None:
                endpoint.record_failure(refused)
            raise refused
        endpoint.in_flight += 1
        endpoint.attempts += 1
        try:
            async with (
                self._manager.in_flight_limit if self._request.method else contextlib.nullcontext()
            ):
                outcome = await self._send()
        except BaseException:
            # A deadline says nothing about the transport: the tool may just be slow.
            breaker.cancel(permit.probe)
            raise
        finally:
            endpoint.in_flight -= 1
        if isinstance(outcome, AttemptFailure):
            outcome.was_breaker_probe = permit.probe
        fault = isinstance(outcome, AttemptFailure) and outcome.failure.kind in _TRANSPORT_FAULTS
        endpoint.faults += fault
        breaker.record(not fault, self._loop.time(), permit.probe)
        if fault or permit.probe:
            endpoint.shared_breaker.tell()
        endpoint.failing_since = (endpoint.failing_since or time()) if fault else None
        if endpoint.last_failure is not None and not fault:
            endpoint.record_success()
        return outcome

    async def _send(self) -> dict[str, Any] | AttemptFailure:
        if self._was_closed:
            raise self._closed_error()
        connection, epoch, faults = None, self._manager.refresher.epoch, 0
        sent: Mapping[str, str] = {}
        request = self._request
        attempt = self._current_attempt = Attempt(
            on_notification=request.on_notification,
            wants_progress=request.wants_progress,
            stop_deadline=self.deadline.stop,
            on_server_request=request.on_server_request,
        )
        try:
            with foreign_code(self._cancellations):
                found = await self._selector.acquire_connection(
                    self._manager, self._failed_managers, self.deadline.remaining
                )
                if not isinstance(found, Connection):
                    # Another request may have begun this opening.
                    epoch = min(epoch, self._manager.opened_with_epoch)
                    sent = found.sent_headers if isinstance(found, WireFault) else {}
                    return AttemptFailure(self._connect_failure(found), None, epoch, sent)
                connection = found
                faults = connection.consecutive_faults
                answer = await self._send_on(connection, attempt)
                connection.consecutive_faults = 0
                return answer
        except StrayCancellation:
            failure = stray_cancellation(attempt)
        except WireFault as fault:
            failure = classify(fault.evidence, rules=self._manager.session_lost_rules)
            sent = fault.sent_headers
        except (InvalidResponse, CredentialsFault) as error:
            raise self._fault_to_error(error) from None
        except ToolkeepError:
            raise
        except Exception as error:
            failure = self._unexpected_failure(error, attempt)
        if connection is not None:
            broke = failure.kind is FailureKind.BROKEN
            connection.consecutive_faults = (
                max(connection.consecutive_faults, faults + 1) if broke else 0
            )
        return AttemptFailure(failure, connection, epoch, sent)

    async def _send_on(self, connection: Connection, attempt: Attempt) -> dict[str, Any]:
        request, self.era = self._request, connection.era
        attempt.headers = self._headers(connection)
        if not request.method:
            return {}
        return await connection.request(
            request.method, self._params, attempt, lenient=request.lenient
        )

    def _headers(self, connection: Connection) -> Mapping[str, str] | None:
        headers, tool = self._request.headers, self._request.tool
        if headers and (connection.era is Era.LEGACY or self.uses_duplex_transport):
            self._selector.bind(headers)
        if connection.era is Era.LEGACY or tool is None or self._params is None:
            return headers
        return {**(headers or {}), **tool.param_headers(self._params["arguments"])}

    # -- failures -------------------------------------------------------------------------------

    def _connect_failure(self, error: Exception) -> Failure:
        """The failure of a handshake. The request itself was not sent."""
        if isinstance(error, WireFault):
            return classify(error.evidence, rules=self._manager.session_lost_rules)
        if isinstance(error, CredentialsFault):
            raise self._fault_to_error(error)
        if isinstance(error, ToolkeepError):
            raise error
        return classify(Evidence(kind=FaultKind.UNREADABLE, sent=True, detail=str(error)))

    def _unexpected_failure(self, error: Exception, attempt: Attempt) -> Failure:
        """Unexpected error: classify it by whether any byte was sent."""
        if attempt.sent:
            detail = f"reading the response failed with {type(error).__name__}"
            return classify(Evidence(kind=FaultKind.UNREADABLE, sent=True, detail=detail))
        if not isinstance(error, TypeError | ValueError):
            raise error
        server, what = self._server, self._request.title
        text = f"{server}: {what} was not sent: it cannot be converted to JSON: {error}"
        raise InvalidArguments(text, server=server, tool=what) from None

    def _record_failure(self, attempt_failure: AttemptFailure) -> None:
        self._last_failure = attempt_failure.failure
        reached = (
            attempt_failure.failure.delivery if attempt_failure.connection else Delivery.NOT_SENT
        )
        if attempt_failure.failure.kind in _REFUSED_BEFORE_RUN:
            reached = Delivery.REFUSED
        self._worst_delivery = Delivery.worst(self._worst_delivery, reached)

    # -- decisions ------------------------------------------------------------------------------

    def _decide(self, attempt_failure: AttemptFailure) -> Decision:
        context, backoff = (
            self._retry_context(attempt_failure),
            _RETRY_BACKOFF.delay(self._attempts, random.random()),
        )
        decision = self._selector.decide(self._manager, attempt_failure, context, backoff)
        if decision.use_other_endpoint:
            self._failed_managers.add(self._manager)
        elif attempt_failure.failure.kind in REMEDIED_IN_PLACE:
            self._preferred = self._manager
            return decision
        else:  # all were tried: the next attempt may use any of them
            self._failed_managers, self._preferred = set(), None
        self._selector.record_failure(self._manager, attempt_failure, self._loop.time())
        return decision

    def _retry_context(self, attempt_failure: AttemptFailure) -> RetryContext:
        opening = attempt_failure.connection is None
        return RetryContext(
            transport=self._transport_kind(attempt_failure),
            policy=RetryPolicy.ALWAYS if opening else self._request.policy,
            repeatable=opening or self._request.repeatable,
            retries_left=self._manager.spec.max_retries - self._retries,
            tried=frozenset(
                self._actions_taken | {ConnectionAction.RENEGOTIATE}
                if opening
                else self._actions_taken
            ),
            time_left=self.deadline.remaining,
            session_stuck=attempt_failure.is_stuck,
            has_other_endpoint=self._selector.has_alternative(
                self._loop.time(), self._failed_managers | {self._manager}
            ),
        )

    def _transport_kind(self, attempt_failure: AttemptFailure) -> TransportKind:
        """The transport kind for the decision. A duplex transport that still works counts as
        request-response: the fault hit this request alone."""
        connection, unreachable = attempt_failure.connection, FailureKind.UNREACHABLE
        if (
            connection is None
            or connection.close_reason
            or attempt_failure.failure.kind is unreachable
        ):
            return self._manager.transport_kind
        return TransportKind.REQUEST_RESPONSE

    # -- recovery -------------------------------------------------------------------------------

    async def _apply_recovery(
        self, action: ConnectionAction, attempt_failure: AttemptFailure
    ) -> bool:
        """Apply the action to the connection, within the deadline. False: it did not help, and the
        failure stands."""
        connection = attempt_failure.connection
        if action is ConnectionAction.CHECK:
            return connection is None or await self._check_session(connection, attempt_failure)
        self.deadline.resume()  # an answer that leads to a retry has stopped it
        if action is ConnectionAction.REAUTHORIZE:
            return await self._reauthorize(attempt_failure)
        if action is ConnectionAction.RELIST:
            return await self._relist()
        if connection is not None:
            self._give_up_connection(connection, action, attempt_failure)
        return True

    async def _reauthorize(self, attempt_failure: AttemptFailure) -> bool:
        """Have the authorizer see to the challenge. Raises its error, with the challenge added."""
        manager, failure = self._manager, attempt_failure.failure
        opens_stream = attempt_failure.connection is None and self.uses_duplex_transport
        method, url = "GET" if opens_stream else "POST", manager.spec.url
        request = AuthRequest(self._server, self._selector.principal, method, url)
        challenge = Challenge(failure.status or 401, failure.headers, attempt_failure.sent_headers)
        if manager.refresher.auth is None and manager.binding.has_credentials:
            return False
        had_authorizer = manager.refresher.auth is not None
        try:
            renewed = await manager.refresher.refresh(
                attempt_failure.auth_epoch, request, challenge
            )
            if renewed:
                manager.binding.authorize()
            if renewed and not had_authorizer:
                # A stored login was found. Its token was not sent yet: it may need a refresh.
                self._actions_taken.discard(ConnectionAction.REAUTHORIZE)
            return renewed
        except AuthNeeded as error:
            if error.failure is None:
                error.failure, error.delivery = failure, self._worst_delivery
            raise

    async def _check_session(self, connection: Connection, attempt_failure: AttemptFailure) -> bool:
        """Whether the session is gone. The call is answered: a slow check must not make it look
        timed out."""
        time_left = self.deadline.remaining
        self.deadline.stop()
        gone = await self._manager.check_session(connection, time_left)
        if not gone:
            rejected = dataclasses.replace(attempt_failure.failure, kind=FailureKind.REJECTED)
            self._last_failure = attempt_failure.failure = rejected
        self.deadline.resume()
        return gone

    def _give_up_connection(
        self, connection: Connection, action: ConnectionAction, attempt_failure: AttemptFailure
    ) -> None:
        manager, reason = self._manager, attempt_failure.failure.kind.value
        if action is ConnectionAction.RENEGOTIATE:
            manager.renegotiate(connection, reason)
        elif (
            action is ConnectionAction.REPLACE
            and attempt_failure.is_stuck
            and not connection.close_reason
        ):
            manager.end_session(connection, f"every request in this session fails: {reason}")
        elif action is ConnectionAction.REPLACE:
            manager.drain(connection, lost=True, reason=reason)

    async def _relist(self) -> bool:
        """List the tools again: the headers of the call did not match its arguments."""
        request = self._request
        if request.listings is None:
            return False
        try:
            tools = await request.listings.list_tools(refresh=True)
        except ToolkeepError:
            return False
        request.tool = tools.get(request.name)
        return True

    # -- errors ---------------------------------------------------------------------------------

    def _final_error(self, attempt_failure: AttemptFailure) -> ToolkeepError:
        failure, opening = attempt_failure.failure, attempt_failure.connection is None
        if opening:
            failure = dataclasses.replace(failure, delivery=Delivery.NOT_SENT)
        error = self._failure_to_error(failure, opening=opening)
        if failure.kind in _TRANSPORT_FAULTS and not self._was_closed:
            self._manager.endpoint.record_failure(error)
        return error

    def _failure_to_error(self, failure: Failure, *, opening: bool) -> ToolkeepError:
        server, kind = self._server, error_type(failure, opening=opening)
        if kind is AuthNeeded:
            return self._auth_needed(failure)
        if kind is RemoteProtocolError:
            text = f"{server} is not a supported MCP server ({failure}). Check its URL and mode"
            return RemoteProtocolError(text, server=server, failure=failure)
        if kind is ServerUnavailable:
            text = f"{server} cannot be reached ({failure}){self._not_run_hint}"
            since = self._manager.endpoint.failing_since
            return ServerUnavailable(text, server=server, since=since, last_failure=failure)
        if kind is CallRejected:
            rejected = self._call_error(CallRejected, failure, "The server rejected it")
            rejected.delivery = Delivery.ANSWERED
            return rejected
        if kind is CallOutcomeUnknown:
            return self._call_error(CallOutcomeUnknown, failure, _MAY_HAVE_RUN)
        return self._call_error(CallNotDelivered, failure, _DID_NOT_RUN)

    def _auth_needed(self, failure: Failure) -> AuthNeeded:
        from toolkeep.auth.discovery import bearer_challenge  # imports the HTTP library

        server, principal = self._server, self._selector.principal
        bearer = bearer_challenge(failure.headers.get(HEADER, ""))
        remedy = "Check api_key, headers or the authorizer"
        return AuthNeeded(
            f"{server} requires authorization ({failure}). {remedy}",
            server=server,
            failure=failure,
            principal=principal,
            reason=": ".join(part for part in (bearer.error, bearer.description) if part),
            scopes=bearer.scopes,
        )

    def _call_error(
        self, kind: type[CallError], failure: Failure | None, conclusion: str
    ) -> CallError:
        times = "" if self._attempts == 1 else f" after {self._attempts} attempts"
        reason = failure or "the deadline passed"
        return kind(
            f"{self._server}: {self._request.title} failed{times} ({reason}). {conclusion}",
            failure=failure,
            **self._error_facts(),
        )

    def _error_facts(self) -> dict[str, Any]:
        return {
            "server": self._server,
            "tool": self._request.name or None,
            "attempts": self._attempts,
            "delivery": self._worst_delivery,
        }

    def _fault_to_error(self, error: InvalidResponse | CredentialsFault) -> ToolkeepError:
        """The error for a fault that needs no decision: a malformed result, or an authorizer that
        failed."""
        server, tool = self._server, self._request.name or None
        if isinstance(error, CredentialsFault):
            if error.raised is not None:
                return unraised_copy(error.raised)
            return AuthNeeded(f"{server}: {error}. Nothing was sent", server=server)
        result: Any = error.raw
        if tool is not None:
            result = CallResult(error.raw, server, tool, self._attempts, self.deadline.elapsed)
        text = f"{server}: {self._request.title} ran, but {error.message}"
        return InvalidResult(text, server=server, tool=tool, attempts=self._attempts, result=result)

    def _closed_error(self) -> ToolkeepError:
        if not self._request.method:
            last = self._last_failure
            text = f"{self._server}: the client was closed while it opened"
            text += f" (before that: {last})" if last else ""
            return ServerUnavailable(text, server=self._server, last_failure=last)
        reason = Failure(FailureKind.UNREACHABLE, Delivery.NOT_SENT, "the client was closed")
        return self._call_error(CallNotDelivered, reason, _DID_NOT_RUN)

    @property
    def _not_run_hint(self) -> str:
        """Empty while the client opens: then nothing was to run."""
        return f". {_DID_NOT_RUN}" if self._request.method else ""

    def _breaker_error(self, wait: float) -> ToolkeepError:
        server, since = self._server, self._manager.endpoint.failing_since
        text = f"{server} has failed repeatedly and is not tried for {wait:.1f} s"
        text += self._not_run_hint
        last = self._last_failure
        return ServerUnavailable(text, server=server, since=since, last_failure=last)

    def _timeout_error(self) -> ToolkeepError:
        """The error for a passed deadline: `CallNotSentInTime` before anything was sent, else
        `CallTimedOut`."""
        if (self._current_attempt is not None and self._current_attempt.sent) or self._partly_ran:
            self._worst_delivery = Delivery.UNKNOWN
        server, last, seconds = self._server, self._last_failure, self.deadline.seconds
        if not self._request.method:
            text = f"{server} was not ready within {seconds:g} s ({last or 'no answer'})"
            return ServerUnavailable(text, server=server, last_failure=last)
        unknown = self._worst_delivery is Delivery.UNKNOWN
        kind = CallTimedOut if unknown else CallNotSentInTime
        conclusion = _MAY_HAVE_RUN if unknown else _DID_NOT_RUN
        before = f"; before that: {last}" if last else ""
        return kind(
            f"{server}: {self._request.title} was given up after {seconds:g} s{before}."
            f" {conclusion}",
            failure=last,
            **self._error_facts(),
        )

    def _keep_unknown_outcome(self, error: ToolkeepError) -> ToolkeepError:
        """Keep an unknown outcome of an earlier attempt as the error: a later refusal does not hide
        that it may have run."""
        if self._partly_ran and error.delivery in (Delivery.NOT_SENT, Delivery.REFUSED):
            self._worst_delivery = Delivery.UNKNOWN
        if self._worst_delivery is not Delivery.UNKNOWN or isinstance(
            error, CallOutcomeUnknown | InvalidResult
        ):
            return error
        failure = error.failure or self._last_failure
        return self._call_error(CallOutcomeUnknown, failure, _MAY_HAVE_RUN)
