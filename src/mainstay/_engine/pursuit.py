"""One request, pursued until it has an answer, an honest error, or no more time.

This is the way of a call: get a connection, send, and when that fails ask two questions of the
rules, what becomes of the connection and whether the request may go again. The loop runs in the
caller's task, so the caller's cancellation, deadline and context variables are the request's own.
Foreign exceptions are translated here and in the wire, nowhere else.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Mapping
from time import time
from typing import Any

from mainstay._engine.connection import Connection
from mainstay._engine.keeper import Keeper
from mainstay._engine.mending import is_cancelled, mend
from mainstay._engine.outgoing import Outgoing, Setback
from mainstay._engine.telling import (
    closed_meanwhile,
    error_for,
    outcome_unknown,
    refused_by_breaker,
    timed_out,
)
from mainstay._rules.budget import Backoff, Deadline
from mainstay._rules.classify import Evidence, Trouble, classify
from mainstay._rules.era import Era
from mainstay._rules.recovery import Channel, Policy, Standing, Step, decide
from mainstay._wire.attempt import Attempt
from mainstay._wire.fault import CredentialsFault, InvalidAnswer, WireFault
from mainstay.errors import (
    AuthNeeded,
    CallOutcomeUnknown,
    Delivery,
    Failure,
    FailureKind,
    InvalidArguments,
    InvalidResult,
    MainstayError,
)
from mainstay.results import CallResult

_BACKOFF = Backoff()
_TRANSPORT_FAULTS = (FailureKind.UNREACHABLE, FailureKind.BROKEN)


class Pursuit:
    """Belongs to the task that runs it; used once."""

    def __init__(self, keeper: Keeper, outgoing: Outgoing) -> None:
        self._keeper, self._out = keeper, outgoing
        self._epoch = keeper.epoch
        self.attempts = 0
        self.worst = Delivery.NOT_SENT
        """What is true of the request over all its attempts."""
        self.last: Failure | None = None
        self._attempt: Attempt | None = None
        self._already: set[Step] = set()
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        at = self._started + outgoing.timeout
        longest = self._started + keeper.spec.timeouts.longest_call
        self._deadline = Deadline(at, cap=max(at, longest))
        self._timeout: asyncio.Timeout | None = None

    @property
    def duration(self) -> float:
        return self._loop.time() - self._started

    async def run(self) -> dict[str, Any]:
        self._timeout = asyncio.timeout_at(self._deadline.at)
        try:
            async with self._timeout:
                return await self._pursue()
        except MainstayError as error:
            told = self._with_doubt(error)
            raise told from (error.__cause__ if told is error else error)
        except TimeoutError:
            attempt = self._attempt
        if attempt is not None and attempt.answer is not None:
            return attempt.answer  # it came at the last moment: a finished result is never lost
        if attempt is not None and attempt.sent:
            self.worst = Delivery.UNKNOWN
        raise timed_out(self._keeper.spec.name, self._out, self)

    def extend(self) -> None:
        """Progress was reported: the request gets its full time again, up to the cap."""
        if self._keeper.spec.timeouts.extend_on_progress and self._timeout is not None:
            self._deadline = self._deadline.extended(self._loop.time(), self._out.timeout)
            self._timeout.reschedule(self._deadline.at)

    async def _pursue(self) -> dict[str, Any]:
        keeper = self._keeper
        keeper.check_home()
        while True:
            self.attempts += 1
            outcome = await self._try()
            self._attempt = None
            if isinstance(outcome, dict):
                return outcome
            self._remember(outcome)
            decision = decide(
                outcome.failure,
                self._standing(outcome),
                backoff=_BACKOFF.delay(self.attempts, random.random()),
            )
            self._already.add(decision.connection)
            mended = await mend(keeper, decision.connection, outcome, self._out)
            wait = decision.replay_after
            if wait is None or not mended or self._epoch != keeper.epoch:
                raise self._error(outcome)
            if decision.costs_budget and not keeper.bucket.take(self._loop.time()):
                raise self._error(outcome)
            if self._out.on_replay is not None:
                self._out.on_replay(self.attempts, wait, outcome.failure)
            await keeper.pause(wait)

    async def _try(self) -> dict[str, Any] | Setback:
        """One attempt, with the breaker's leave and a place among those in flight."""
        breaker = self._keeper.breaker
        leave = breaker.admit(self._loop.time())
        if not leave.allowed:
            raise refused_by_breaker(
                self._keeper.spec.name, leave.wait, self, since=self._keeper.troubled_since
            )
        try:
            async with self._keeper.gate:
                outcome = await self._send()
        except BaseException:
            breaker.abandon(leave.probe)
            raise
        fault = isinstance(outcome, Setback) and outcome.failure.kind in _TRANSPORT_FAULTS
        breaker.record(not fault, self._loop.time(), leave.probe)
        self._keeper.troubled_since = (self._keeper.troubled_since or time()) if fault else None
        return outcome

    async def _send(self) -> dict[str, Any] | Setback:
        if self._epoch != self._keeper.epoch:
            raise closed_meanwhile(self._keeper.spec.name, self._out, self)
        connection, auth_epoch = None, self._keeper.auth_epoch
        attempt = self._attempt = Attempt(
            deliver=self._out.deliver, wants_progress=self._out.wants_progress
        )
        try:
            found = await self._keeper.ready()
            if isinstance(found, Exception):
                return self._unopened(found, auth_epoch)
            connection = found
            attempt.headers = self._headers(connection)
            if not self._out.method:
                return {}
            return await connection.request(
                self._out.method, self._out.params, attempt, lenient=self._out.lenient
            )
        except WireFault as fault:
            failure = classify(fault.evidence, rows=self._keeper.session_rows)
        except InvalidAnswer as error:
            raise self._invalid(error) from None
        except CredentialsFault as error:
            raise self._unauthorized(error) from None
        except asyncio.CancelledError:
            failure = self._foreign_cancellation(attempt)
        except (TypeError, ValueError) as error:
            failure = self._not_json(error, attempt)
        return Setback(failure, connection, auth_epoch)

    def _headers(self, connection: Connection) -> Mapping[str, str] | None:
        headers, param_headers = self._out.headers, self._out.param_headers
        if connection.era is Era.LEGACY:
            if headers:
                self._keeper.bind(headers)
            return headers
        return {**(headers or {}), **(param_headers() if param_headers else {})}

    # -- what went wrong ------------------------------------------------------------------------

    def _unopened(self, error: Exception, auth_epoch: int) -> Setback:
        """No connection. What the handshake met is told, but the request itself never left."""
        if isinstance(error, CredentialsFault):
            raise self._unauthorized(error)
        if isinstance(error, WireFault):
            failure = classify(error.evidence, rows=self._keeper.session_rows)
            return Setback(failure, None, auth_epoch)
        if isinstance(error, MainstayError):
            raise error
        evidence = Evidence(trouble=Trouble.UNREADABLE, sent=True, detail=str(error))
        return Setback(classify(evidence), None, auth_epoch)

    def _unauthorized(self, error: CredentialsFault) -> AuthNeeded:
        server = self._keeper.spec.name
        return AuthNeeded(f"{server}: {error}. Nothing was sent", server=server)

    def _invalid(self, error: InvalidAnswer) -> InvalidResult:
        server, tool = self._keeper.spec.name, self._out.tool
        return InvalidResult(
            f"{server}: {tool or self._out.method} ran, but {error.message}",
            server=server,
            tool=tool,
            attempts=self.attempts,
            result=error.raw if tool is None else self._result(tool, error.raw),
        )

    def _result(self, tool: str, raw: dict[str, Any]) -> CallResult:
        return CallResult(raw, self._keeper.spec.name, tool, self.attempts, self.duration)

    def _foreign_cancellation(self, attempt: Attempt) -> Failure:
        """A cancellation that nobody asked of this task is a fault like any other."""
        if is_cancelled():
            raise asyncio.CancelledError
        trouble = Trouble.BROKEN if attempt.sent else Trouble.CONNECT
        detail = "something on the way cancelled the request by itself"
        return classify(Evidence(trouble=trouble, sent=attempt.sent, detail=detail))

    def _not_json(self, error: Exception, attempt: Attempt) -> Failure:
        if attempt.sent or isinstance(error, MainstayError):
            raise error
        server, tool = self._keeper.spec.name, self._out.tool or self._out.method
        raise InvalidArguments(
            f"{server}: the arguments of {tool} cannot be written as JSON: {error}",
            server=server,
            tool=tool,
        ) from None

    # -- what to do about it --------------------------------------------------------------------

    def _remember(self, setback: Setback) -> None:
        self.last = setback.failure
        reached = setback.failure.delivery if setback.connection else Delivery.NOT_SENT
        self.worst = Delivery.worst(self.worst, reached)

    def _standing(self, setback: Setback) -> Standing:
        opening = setback.connection is None
        return Standing(
            channel=Channel.REQUESTS,
            policy=Policy.ALWAYS if opening else self._out.policy,
            repeatable=opening or self._out.repeatable,
            replays_left=self._keeper.spec.max_replays - (self.attempts - 1),
            already=frozenset(self._already | {Step.RENEGOTIATE} if opening else self._already),
            time_left=self._deadline.remaining(self._loop.time()),
        )

    def _error(self, setback: Setback) -> MainstayError:
        failure, opening = setback.failure, setback.connection is None
        if opening:
            failure = dataclasses.replace(failure, delivery=Delivery.NOT_SENT)
        since = self._keeper.troubled_since
        return error_for(
            failure, self._keeper.spec.name, self._out, self, opening=opening, since=since
        )

    def _with_doubt(self, error: MainstayError) -> MainstayError:
        """Whatever ended the request, an attempt with an unknown outcome stays the headline."""
        if self.worst is not Delivery.UNKNOWN or isinstance(
            error, CallOutcomeUnknown | InvalidResult
        ):
            return error
        return outcome_unknown(error, self._keeper.spec.name, self._out, self)
