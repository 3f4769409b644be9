"""One call, from a name to its result: find the tool, lend a client, call, give back.

What can be known without a server is refused without one. The time that finding and waiting take
is the call's own. A server that is replaced meanwhile is no reason to fail: what was not sent is
sent to the one in its place.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import Any

from toolkeep._engine.call import Emit
from toolkeep._engine.calling import Calling
from toolkeep._engine.tenancy import Lease, Superseded
from toolkeep._engine.wanted import OnProgress, Wanted
from toolkeep._runtime.desk import Desk
from toolkeep._runtime.found import Found
from toolkeep._runtime.names import ToolName, parts
from toolkeep._runtime.oversized import Claim, fitted
from toolkeep.context import CallContext
from toolkeep.errors import (
    CallNotSentInTime,
    Delivery,
    FailureKind,
    InvalidArguments,
    NotOffered,
    ResultTooLarge,
    ToolkeepError,
)
from toolkeep.events import CallEvent, Completed, Failed, Progress, Started
from toolkeep.results import CallResult

_SWAPS = 5
"""How often a server may be replaced under one call."""
_OUT_OF_REACH = (FailureKind.UNREACHABLE, FailureKind.EXITED)
_A_MOMENT = 0.001
"""Seconds that finding a tool may take without being counted."""


class Errand:
    """Belongs to the task that carries it out; used once."""

    def __init__(
        self, desk: Desk, name: ToolName, wanted: Wanted, context: CallContext | None
    ) -> None:
        self._desk, self._name, self._wanted, self._context = desk, name, wanted, context
        self._began = 0.0
        self._whole: CallResult | None = None
        """The result before it was fitted."""
        self._claim: Claim | None = None
        """From when it is known who calls, where results may be set aside."""

    async def carry_out(self, emit: Emit | None = None) -> CallResult:
        self._began = monotonic()
        try:
            if problem := self._wanted.problem():
                raise self._desk.refused(self._wanted.name, problem)
            found, lease = self._at_hand() or await self._prepare()
        except BaseException as error:
            self._tell_failure(error, emit)
            raise
        if found.supplier.spec.result_limit is not None:
            caller = found.speaker.identity
            self._claim = self._desk.spill.claim(caller.key if caller else None)
        try:
            if found.supplier.spec.cache_results:
                return await self._reuse(found, lease, emit)
            return await self._call(found, lease, emit)
        finally:
            lease.give_back()

    async def _call(self, found: Found, lease: Lease, emit: Emit | None) -> CallResult:
        wanted = self._timed(found, emit)
        running = self._desk.figures.begin(found.supplier.name, found.tool.tool)
        try:
            if lease.core.book is not found.stock.book:
                lease.core.book = found.stock.book
            noting = None if emit is None else self._noting(found, emit)
            result = await Calling(lease.core, wanted).carry_out(noting)
        except BaseException as error:
            running.failed(error)
            failure = error.failure if isinstance(error, ToolkeepError) else None
            if failure is not None and failure.kind in _OUT_OF_REACH:
                found.supplier.doubt()
            raise
        running.done(result)
        return result

    async def _reuse(self, found: Found, lease: Lease, emit: Emit | None) -> CallResult:
        """By a call, or by what an equal one has brought or is about to."""
        joins, within = emit is None and self._wanted.on_progress is None, self._left(found) or 0
        made: list[CallResult] = []
        begun = False

        async def make() -> CallResult:
            nonlocal begun
            begun = True
            made.append(await self._call(found, lease, emit))
            return self._whole or made[0]  # what is kept for others is not cut

        try:
            found_again = await self._desk.reuse.answer(
                found, self._wanted, make, joins=joins, within=within
            )
            result = made[0] if made else self._fitted(found, found_again)
        except TimeoutError as error:
            if isinstance(error, ToolkeepError):
                raise
            late = self._late(found)
            self._tell_failure(late, emit)
            raise late from None
        except asyncio.CancelledError as error:
            if not begun:  # it waited for an equal one: nobody has told of it
                self._tell_failure(error, emit)
            raise
        except ResultTooLarge as error:
            if error.attempts == 0:  # of what was kept: nobody has told of it
                self._tell_failure(error, emit)
            raise
        if result.cached:
            self._desk.figures.cached(*found.tool.key)
            self._tell(emit, *found.tool.key, lambda about: Completed(result=result, **about))
        return result

    def _fitted(self, found: Found, result: CallResult) -> CallResult:
        self._whole = result
        if self._claim is None:
            return result
        return fitted(result, found.supplier.spec, found.tool, self._desk.spill, self._claim)

    # -- before sending -------------------------------------------------------------------------

    def _at_hand(self) -> tuple[Found, Lease] | None:
        """The tool and a client for it, if nobody has to be asked or waited for."""
        self._desk.check_open()
        found = self._desk.find_now(self._name, self._context, self._wanted.headers)
        if found is None:
            return None
        try:
            lease = found.supplier.sessions.lend_now(found.speaker.identity)
        except Superseded:
            return None
        return None if lease is None else (found, lease)

    async def _prepare(self) -> tuple[Found, Lease]:
        for _ in range(_SWAPS):
            try:
                return await self._find()
            except Superseded:
                if not self._desk.is_open:
                    raise
        return await self._find()

    async def _find(self) -> tuple[Found, Lease]:
        wanted, desk = self._wanted, self._desk
        desk.check_open()
        found = await desk.find(self._name, self._context, wanted.headers, self._left(None))
        if found.lease is not None:
            return found, found.lease
        sessions, identity = found.supplier.sessions, found.speaker.identity
        lease = sessions.lend_now(identity)
        if lease is None:
            lease = await sessions.lend(identity, self._left(found) or 0)
        return found, lease

    def _left(self, found: Found | None) -> float | None:
        """Seconds; None: as many as the server's configuration gives."""
        total = self._wanted.timeout
        if total is None and found is not None:
            total = found.supplier.spec.timeouts.call
        if total is None:
            return None
        return max(total - (monotonic() - self._began), 0.0)

    def _timed(self, found: Found, emit: Emit | None) -> Wanted:
        """The call as it goes to its client, if there is any time left for it."""
        timeout = self._wanted.timeout
        if monotonic() - self._began > _A_MOMENT:
            timeout = self._left(found)
            if not timeout:
                late = self._late(found)
                self._tell_failure(late, emit)
                raise late
        wanted, on_progress = self._wanted, self._wanted.on_progress
        return Wanted(
            found.tool.tool,
            wanted.arguments,
            found.headers,
            wanted.meta,
            timeout,
            None if on_progress is None else self._noted(found, on_progress),
            wanted.input,
            wanted.input_responses,
            wanted.request_state,
            self._context,
            settled=True,
            fit=None if self._claim is None else partial(self._fitted, found),
        )

    def _late(self, found: Found) -> CallNotSentInTime:
        server, tool = found.tool.key
        text = f"{server}: {tool} was given up before it could be sent. It did not run"
        return CallNotSentInTime(text, server=server, tool=tool, delivery=Delivery.NOT_SENT)

    # -- telling --------------------------------------------------------------------------------

    def _tell_failure(self, error: BaseException, emit: Emit | None) -> None:
        """A call that came to nothing before there was a client to tell of it."""
        server, tool = self._meant(error)
        if server:
            self._desk.figures.begin(server, tool).failed(error)
        self._tell(emit, server, tool, lambda about: Failed(error=error, **about))

    def _tell(
        self, emit: Emit | None, server: str, tool: str, end: Callable[[dict[str, Any]], CallEvent]
    ) -> None:
        """Of a call that no client was asked to make."""
        if emit is None and not self._desk.observers:
            return
        about: dict[str, Any] = {"server": server, "tool": tool, "call_id": uuid.uuid4().hex}
        for event in (Started(**about), end(about)):
            if emit is not None:
                emit(event)
            self._desk.observers.tell(event)

    def _meant(self, error: BaseException) -> tuple[str, str]:
        """The server and its tool, as far as they are known to be there."""
        try:
            server, tool = parts(self._name)
        except InvalidArguments:
            return "", str(self._wanted.name)
        supplier = self._desk.suppliers.get(server)
        if supplier is not None and (supplier.offers(tool) or not isinstance(error, NotOffered)):
            return server, tool if supplier.offers(tool) else str(self._wanted.name)
        return "", str(self._wanted.name)

    def _noting(self, found: Found, emit: Emit) -> Emit:
        """Tools that report progress are remembered."""
        figures, key = self._desk.figures, found.tool.key

        def noting(event: CallEvent) -> None:
            if isinstance(event, Progress):
                figures.progress(*key)
            emit(event)

        return noting

    def _noted(self, found: Found, given: OnProgress) -> OnProgress:
        def on_progress(
            progress: float, total: float | None, message: str | None
        ) -> Awaitable[None] | None:
            self._desk.figures.progress(*found.tool.key)
            return given(progress, total, message)

        return on_progress
