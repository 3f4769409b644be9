"""`RuntimeCall`: one call through a runtime: resolve, acquire a client, call, release.

Owns the call's deadline, its statistics and its cached result. If the server is replaced before
the call was sent, the call goes to the new one.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

from toolkeep._client.call import ToolCall
from toolkeep._client.deadline import RequestDeadline
from toolkeep._client.request import CallRequest, Emit
from toolkeep._runtime.large_results import SpoolPermit, fit_result
from toolkeep._runtime.resolve import ResolvedTool, ToolName, ToolResolver, split_name
from toolkeep._runtime.session_pool import AcquiredClient, PoolClosed
from toolkeep.client import Client
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
from toolkeep.events import CallEvent, Completed, Failed, Started
from toolkeep.results import CallResult

_MAX_SERVER_SWAPS = 5
"""How often a server may be replaced while one call is prepared."""
_UNREACHABLE_KINDS = (FailureKind.UNREACHABLE, FailureKind.EXITED)


class RuntimeCall:
    """One call. Runs once, in the task that calls `run`."""

    def __init__(
        self,
        resolver: ToolResolver,
        name: ToolName,
        request: CallRequest,
        context: CallContext | None,
    ) -> None:
        self._resolver, self._name, self._request, self._context = resolver, name, request, context
        self._deadline: RequestDeadline
        self._full_result: CallResult | None = None
        """The result before it was cut or spooled."""
        self._permit: SpoolPermit | None = None
        """Set once the caller is known, if the server limits the size of results."""

    async def run(self, emit: Emit | None = None) -> CallResult:
        try:
            if problem := self._request.find_problem():
                raise self._resolver.invalid_call(self._request.name, problem)
            self._deadline = RequestDeadline(self._request.timeout)
            found, acquired = self._try_prepare() or await self._prepare()
        except BaseException as error:
            self._emit_failure(error, emit)
            raise
        if found.server.spec.max_result_chars is not None:
            caller = found.caller.identity
            self._permit = self._resolver.spool.permit_for(caller.key if caller else None)
        try:
            if found.server.spec.cache_results:
                return await self._run_cached(found, acquired, emit)
            return await self._call(found, acquired.client, emit)
        finally:
            acquired.release()

    async def _call(self, found: ResolvedTool, client: Client, emit: Emit | None) -> CallResult:
        if self._deadline.remaining <= 0:
            late = self._not_sent_in_time(found)
            self._emit_failure(late, emit)
            raise late
        request = self._request
        request.name, request.tool = found.tool.tool, found.listed
        request.headers, request.context = found.headers, self._context
        call = client.make_call(request, emit, self._deadline)
        stats = self._resolver.stats
        running = stats.begin(found.server.name, found.tool.tool)
        try:
            result = await self._run_call(found, call)
        except BaseException as error:
            running.failed(error)
            failure = error.failure if isinstance(error, ToolkeepError) else None
            if failure is not None and failure.kind in _UNREACHABLE_KINDS:
                found.server.verify_reachable()
            raise
        finally:
            if call.reported_progress:
                stats.record_progress(*found.tool.key)
        running.done(result)
        return result

    async def _run_call(self, found: ResolvedTool, call: ToolCall) -> CallResult:
        if self._permit is None:
            return await call.run()
        call.emit_started()
        try:
            result = self._fit_result(found, await call.execute())
        except BaseException as error:
            call.emit_failed(error)
            raise
        call.emit_completed(result)
        return result

    async def _run_cached(
        self, found: ResolvedTool, acquired: AcquiredClient, emit: Emit | None
    ) -> CallResult:
        """A cached result, that of an equal running call, or that of this call."""
        joins = emit is None and self._request.on_progress is None
        made: list[CallResult] = []
        begun = False

        async def make() -> CallResult:
            nonlocal begun
            begun = True
            made.append(await self._call(found, acquired.client, emit))
            return self._full_result or made[0]  # cache the full result, not the cut one

        try:
            cached = await self._resolver.result_cache.get_or_call(
                found, self._request, make, joins=joins, within=self._deadline.remaining
            )
            result = made[0] if made else self._fit_result(found, cached)
        except TimeoutError as error:
            if isinstance(error, ToolkeepError):
                raise
            late = self._not_sent_in_time(found)
            self._emit_failure(late, emit)
            raise late from None
        except asyncio.CancelledError as error:
            if not begun:  # it waited for an equal call: no event was emitted yet
                self._emit_failure(error, emit)
            raise
        except ResultTooLarge as error:
            if error.attempts == 0:  # a cached result: no event was emitted yet
                self._emit_failure(error, emit)
            raise
        if result.cached:
            self._resolver.stats.record_cached(*found.tool.key)
            self._emit_events(
                emit, *found.tool.key, lambda about: Completed(result=result, **about)
            )
        return result

    def _fit_result(self, found: ResolvedTool, result: CallResult) -> CallResult:
        self._full_result = result
        if self._permit is None:
            return result
        return fit_result(result, found.server.spec, found.tool, self._resolver.spool, self._permit)

    # -- before sending -------------------------------------------------------------------------

    def _try_prepare(self) -> tuple[ResolvedTool, AcquiredClient] | None:
        """The tool and a client for it, if that takes neither I/O nor waiting."""
        self._resolver.check_open()
        found = self._resolver.try_find(self._name, self._context, self._request.headers)
        if found is None:
            return None
        try:
            acquired = found.server.pool.try_acquire(found.caller.identity)
        except PoolClosed:
            return None
        if acquired is None:
            return None
        self._deadline.apply(found.server.spec.timeouts)
        return found, acquired

    async def _prepare(self) -> tuple[ResolvedTool, AcquiredClient]:
        for _ in range(_MAX_SERVER_SWAPS):
            try:
                return await self._resolve_and_acquire()
            except PoolClosed:
                if not self._resolver.is_open:
                    raise
        return await self._resolve_and_acquire()

    async def _resolve_and_acquire(self) -> tuple[ResolvedTool, AcquiredClient]:
        resolver, deadline = self._resolver, self._deadline
        resolver.check_open()
        found = await resolver.find(self._name, self._context, self._request.headers, deadline)
        deadline.apply(found.server.spec.timeouts)
        if found.client is not None:
            return found, found.client
        pool, identity = found.server.pool, found.caller.identity
        acquired = pool.try_acquire(identity)
        if acquired is None:
            acquired = await pool.acquire(identity, deadline.remaining)
        return found, acquired

    def _not_sent_in_time(self, found: ResolvedTool) -> CallNotSentInTime:
        server, tool = found.tool.key
        text = f"{server}: the deadline of {tool} passed before it could be sent. It did not run"
        return CallNotSentInTime(text, server=server, tool=tool, delivery=Delivery.NOT_SENT)

    # -- events and statistics ------------------------------------------------------------------

    def _emit_failure(self, error: BaseException, emit: Emit | None) -> None:
        """Count and emit a call that failed before a client could do so."""
        server, tool = self._event_target(error)
        if server:
            self._resolver.stats.begin(server, tool).failed(error)
        self._emit_events(emit, server, tool, lambda about: Failed(error=error, **about))

    def _emit_events(
        self, emit: Emit | None, server: str, tool: str, end: Callable[[dict[str, Any]], CallEvent]
    ) -> None:
        """Emit `Started` and the final event of a call that no client made."""
        if emit is None and not self._resolver.observers:
            return
        about: dict[str, Any] = {"server": server, "tool": tool, "call_id": uuid.uuid4().hex}
        context, arguments = self._context, self._request.arguments
        principal = context.principal if isinstance(context, CallContext) else None
        for event in (Started(principal=principal, arguments=arguments, **about), end(about)):
            if emit is not None:
                emit(event)
            self._resolver.observers.emit(event)

    def _event_target(self, error: BaseException) -> tuple[str, str]:
        """Server and tool for events, as far as they are known to exist."""
        try:
            server_name, tool = split_name(self._name)
        except InvalidArguments:
            return "", str(self._request.name)
        server = self._resolver.servers.get(server_name)
        if server is not None and (server.has_tool(tool) or not isinstance(error, NotOffered)):
            return server_name, tool if server.has_tool(tool) else str(self._request.name)
        return "", str(self._request.name)
