"""One request, pursued until it has an answer, an honest error, or no more time.

This is the way of a call: get a connection, send, and when that fails ask two questions of the
rules, what becomes of the connection and whether the request may go again. The loop runs in the
caller's task, so the caller's cancellation, deadline and context variables are the request's own.
Foreign exceptions are translated here and in the wire, nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Mapping
from time import time
from typing import Any

from toolkeep._engine.clock import Clock, OutOfTime
from toolkeep._engine.connection import Connection
from toolkeep._engine.endpoints import Endpoints
from toolkeep._engine.keeper import Keeper
from toolkeep._engine.mending import mend
from toolkeep._engine.outgoing import Outgoing, Setback
from toolkeep._engine.telling import (
    closed_meanwhile,
    error_for,
    outcome_unknown,
    refused_by_breaker,
    timed_out,
    told,
    went_astray,
)
from toolkeep._rules.budget import Backoff
from toolkeep._rules.classify import Evidence, Trouble, classify
from toolkeep._rules.era import Era
from toolkeep._rules.recovery import MENDED, Channel, Decision, Policy, Standing, Step
from toolkeep._wire.attempt import Attempt
from toolkeep._wire.cancelling import cancellations, is_cancelled
from toolkeep._wire.fault import CredentialsFault, InvalidAnswer, WireFault
from toolkeep.errors import (
    CallOutcomeUnknown,
    Delivery,
    Failure,
    FailureKind,
    InvalidArguments,
    InvalidResult,
    ToolkeepError,
)

_BACKOFF = Backoff()
_NEVER_RAN = (FailureKind.HEADER_MISMATCH, FailureKind.VERSION_MISMATCH)
"""Answers that came before the tool could run."""
_TRANSPORT_FAULTS = (FailureKind.UNREACHABLE, FailureKind.BROKEN, FailureKind.EXITED)


class Pursuit:
    """Belongs to the task that runs it; used once."""

    def __init__(
        self, endpoints: Endpoints, outgoing: Outgoing, before: Pursuit | None = None
    ) -> None:
        self._endpoints, self._out = endpoints, outgoing
        self._last: Keeper | None = before._keeper if before else None
        self._keeper: Keeper = self._last or endpoints.leader
        self._tried: set[Keeper] = set()
        """Addresses that failed this request, while there are others."""
        self.era: Era | None = None
        """Of the connection that it was last sent on."""
        # A later leg of one call: a client that was closed in between is not opened again for it,
        # and a tool has run as far as its question.
        self.epoch = before.epoch if before else endpoints.epoch
        self._ran_partly = before is not None and outgoing.tool is not None
        self.attempts = 0
        self.worst = Delivery.NOT_SENT
        """What is true of the request over all its attempts."""
        self.last: Failure | None = None
        self._attempt: Attempt | None = None
        self._already: set[Step] = set()
        self._loop, self._cancellations = asyncio.get_running_loop(), cancellations()
        self.clock = Clock(outgoing.timeout, longest=self._keeper.spec.timeouts.longest_call)

    async def run(self) -> dict[str, Any]:
        if self._cancellations:
            await asyncio.sleep(0)  # one that is only now on its way comes here
        try:
            async with self.clock:
                return await self._pursue()
        except ToolkeepError as error:
            headline = self._with_doubt(error)
            raise headline from (error.__cause__ if headline is error else error)
        except OutOfTime:
            pass
        late = self.out_of_time()
        if self.last is not None and self.last.kind in _TRANSPORT_FAULTS:
            self._keeper.ground.note_failure(late)
        raise late

    def on_a_pipe(self) -> bool:
        return self._keeper.channel is Channel.PIPE

    def out_of_time(self) -> ToolkeepError:
        if (self._attempt is not None and self._attempt.sent) or self._ran_partly:
            self.worst = Delivery.UNKNOWN
        return timed_out(self._keeper.spec.name, self._out, self)

    def extend(self) -> None:
        """Progress was reported: the request gets its full time again, up to the cap."""
        if self._keeper.spec.timeouts.extend_on_progress:
            self.clock.extend(self._out.timeout)

    async def _pursue(self) -> dict[str, Any]:
        self._endpoints.check()
        await self._endpoints.recall()
        while True:
            self.attempts += 1
            keeper = self._keeper = self._endpoints.choose(
                self._loop.time(), self._tried, call=self._out.tool is not None, last=self._last
            )
            outcome = await self._try()
            self._attempt = None
            if isinstance(outcome, dict):
                return outcome
            self._remember(outcome)
            decision = self._decide(outcome)
            self._already.add(decision.connection)
            mended = await self._mend(keeper, decision.connection, outcome)
            wait = decision.replay_after
            if wait is None or not mended or self.epoch != self._endpoints.epoch:
                raise self._failed(outcome)
            if decision.costs_budget and not keeper.ground.bucket.take(self._loop.time()):
                raise self._failed(outcome)
            if outcome.failure.kind is FailureKind.SESSION_DOUBTED:
                self.worst = Delivery.UNKNOWN  # it was answered, and that answer is not returned
            if self._out.on_replay is not None:
                self._out.on_replay(self.attempts, wait, outcome.failure)
            await keeper.pause(wait)

    async def _mend(self, keeper: Keeper, step: Step, setback: Setback) -> bool:
        """Do what was decided about the connection, within the call's deadline."""
        left = self.clock.left
        if step is Step.CHECK:
            # The call is answered: a check that is slow must not make it look timed out.
            self.clock.stop()
        else:
            self.clock.go_on()  # an answer that leads to a replay has stopped it
        mended = await mend(keeper, step, setback, self._out, left)
        if step is Step.CHECK and not mended:
            alive = dataclasses.replace(setback.failure, kind=FailureKind.REJECTED)
            self.last = setback.failure = alive
        self.clock.go_on()
        return mended

    async def _try(self) -> dict[str, Any] | Setback:
        """One attempt, with the breaker's leave and a place among those in flight."""
        ground = self._keeper.ground
        breaker = ground.breaker
        leave = breaker.admit(self._loop.time())
        if not leave.allowed:
            refused = refused_by_breaker(
                self._keeper.spec.name, leave.wait, self, since=ground.troubled_since
            )
            if ground.failing is None:
                ground.note_failure(refused)
            raise refused
        ground.busy += 1
        ground.sent += 1
        try:
            async with self._keeper.gate if self._out.method else contextlib.nullcontext():
                outcome = await self._send()
        except BaseException:
            # A deadline says nothing about the transport: the tool may just be slow.
            breaker.abandon(leave.probe)
            raise
        finally:
            ground.busy -= 1
        if isinstance(outcome, Setback):
            outcome.probe = leave.probe
        fault = isinstance(outcome, Setback) and outcome.failure.kind in _TRANSPORT_FAULTS
        ground.faults += fault
        breaker.record(not fault, self._loop.time(), leave.probe)
        ground.troubled_since = (ground.troubled_since or time()) if fault else None
        if ground.failing is not None and not fault:
            ground.note_answer()
        return outcome

    async def _send(self) -> dict[str, Any] | Setback:
        if self.epoch != self._endpoints.epoch:
            raise closed_meanwhile(self._keeper.spec.name, self._out, self)
        connection, epoch, faults = None, self._keeper.renewing.epoch, 0
        attempt = self._attempt = Attempt(
            deliver=self._out.deliver,
            wants_progress=self._out.wants_progress,
            stop_clock=self.clock.stop,
            ask=self._out.ask,
        )
        try:
            found = await self._endpoints.ready(self._keeper, self._tried, self.clock.left)
            if not isinstance(found, Connection):
                # It may have begun before, for another.
                epoch = min(epoch, self._keeper.opened_in)
                return Setback(self._why_unopened(found), None, epoch)
            connection = found
            faults = connection.faults
            answer = await self._send_on(connection, attempt)
            connection.faults = 0
            return answer
        except asyncio.CancelledError:
            if is_cancelled(self._cancellations):
                raise
            failure = went_astray(attempt)
        except WireFault as fault:
            failure = classify(fault.evidence, rows=self._keeper.session_rows)
        except (InvalidAnswer, CredentialsFault) as error:
            raise self._told(error) from None
        except ToolkeepError:
            raise
        except Exception as error:
            failure = self._our_fault(error, attempt)
        if connection is not None:
            broke = failure.kind is FailureKind.BROKEN
            connection.faults = max(connection.faults, faults + 1) if broke else 0
        return Setback(failure, connection, epoch)

    async def _send_on(self, connection: Connection, attempt: Attempt) -> dict[str, Any]:
        self.era = connection.era
        attempt.headers = self._headers(connection)
        if not self._out.method:
            return {}
        return await connection.request(
            self._out.method, self._out.params, attempt, lenient=self._out.lenient
        )

    def _headers(self, connection: Connection) -> Mapping[str, str] | None:
        headers, param_headers = self._out.headers, self._out.param_headers
        if headers and (connection.era is Era.LEGACY or self._keeper.channel is Channel.PIPE):
            self._endpoints.bind(headers)
        if connection.era is Era.LEGACY or param_headers is None:
            return headers
        return {**(headers or {}), **param_headers()}

    # -- what went wrong ------------------------------------------------------------------------

    def _why_unopened(self, error: Exception) -> Failure:
        """What the handshake met. The request itself never left."""
        if isinstance(error, WireFault):
            return classify(error.evidence, rows=self._keeper.session_rows)
        if isinstance(error, CredentialsFault):
            raise self._told(error)
        if isinstance(error, ToolkeepError):
            raise error
        return classify(Evidence(trouble=Trouble.UNREADABLE, sent=True, detail=str(error)))

    def _told(self, error: InvalidAnswer | CredentialsFault) -> ToolkeepError:
        name = self._keeper.spec.name
        return told(error, name, self._out, self, duration=self.clock.elapsed)

    def _our_fault(self, error: Exception, attempt: Attempt) -> Failure:
        """What nobody foresaw. Even then it is told whether the request may have run."""
        if attempt.sent:
            detail = f"reading the answer failed with {type(error).__name__}"
            return classify(Evidence(trouble=Trouble.UNREADABLE, sent=True, detail=detail))
        if not isinstance(error, TypeError | ValueError):
            raise error
        server, what = self._keeper.spec.name, self._out.tool or self._out.method
        text = f"{server}: {what} cannot be written to the wire: {error}"
        raise InvalidArguments(text, server=server, tool=what) from None

    # -- what to do about it --------------------------------------------------------------------

    def _remember(self, setback: Setback) -> None:
        self.last = setback.failure
        reached = setback.failure.delivery if setback.connection else Delivery.NOT_SENT
        if setback.failure.kind in _NEVER_RAN:
            reached = Delivery.REFUSED
        self.worst = Delivery.worst(self.worst, reached)

    def _decide(self, setback: Setback) -> Decision:
        standing, backoff = self._standing(setback), _BACKOFF.delay(self.attempts, random.random())
        decision = self._endpoints.decide(self._keeper, setback, standing, backoff)
        if decision.elsewhere:
            self._tried.add(self._keeper)
        elif setback.failure.kind in MENDED:
            self._last = self._keeper
            return decision
        else:  # all were tried: the next attempt begins anew
            self._tried, self._last = set(), None
        self._endpoints.note(self._keeper, setback, self._loop.time())
        return decision

    def _standing(self, setback: Setback) -> Standing:
        opening = setback.connection is None
        return Standing(
            channel=self._channel(setback),
            policy=Policy.ALWAYS if opening else self._out.policy,
            repeatable=opening or self._out.repeatable,
            replays_left=self._keeper.spec.max_replays - self._out.replayed - (self.attempts - 1),
            already=frozenset(self._already | {Step.RENEGOTIATE} if opening else self._already),
            time_left=self.clock.left,
            stuck=setback.stuck,
            elsewhere=self._endpoints.elsewhere(self._loop.time(), self._tried | {self._keeper}),
        )

    def _channel(self, setback: Setback) -> Channel:
        """A pipe that goes on is none: the fault was this request's alone."""
        connection, unreachable = setback.connection, FailureKind.UNREACHABLE
        if connection is None or connection.broke or setback.failure.kind is unreachable:
            return self._keeper.channel
        return Channel.REQUESTS

    def _failed(self, setback: Setback) -> ToolkeepError:
        error = self._error(setback)
        if setback.failure.kind in _TRANSPORT_FAULTS and self.epoch == self._endpoints.epoch:
            self._keeper.ground.note_failure(error)
        return error

    def _error(self, setback: Setback) -> ToolkeepError:
        failure, opening = setback.failure, setback.connection is None
        if opening:
            failure = dataclasses.replace(failure, delivery=Delivery.NOT_SENT)
        since = self._keeper.ground.troubled_since
        return error_for(
            failure, self._keeper.spec.name, self._out, self, opening=opening, since=since
        )

    def _with_doubt(self, error: ToolkeepError) -> ToolkeepError:
        """Whatever ended the request, an attempt with an unknown outcome stays the headline."""
        if self._ran_partly and error.delivery in (Delivery.NOT_SENT, Delivery.REFUSED):
            self.worst = Delivery.UNKNOWN
        if self.worst is not Delivery.UNKNOWN or isinstance(
            error, CallOutcomeUnknown | InvalidResult
        ):
            return error
        return outcome_unknown(error, self._keeper.spec.name, self._out, self)
