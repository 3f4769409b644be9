"""One tool call of a client, and the stream of its events.

`ToolCall` owns the checks of arguments and result, progress delivery and the answers to server
requests. It never opens a connection and never decides whether to send again: that is `retry`.
Importing this module loads neither the SDK nor the HTTP library.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from pydantic_core import to_jsonable_python

from toolkeep._client.deadline import RequestDeadline
from toolkeep._client.event_queue import EventQueue
from toolkeep._client.observers import Observers
from toolkeep._client.request import CallRequest, Emit, OnProgress, RequestSender
from toolkeep._client.server_requests import (
    MAX_SERVER_REQUESTS,
    ServerRequest,
    declined,
    needs_input,
)
from toolkeep._rules.classify import Era
from toolkeep._rules.recovery import RetryPolicy
from toolkeep.errors import Delivery, InvalidResult, ToolkeepError
from toolkeep.events import CallEvent, Completed, Failed, Log, Progress, Started
from toolkeep.results import CallResult

if TYPE_CHECKING:
    from toolkeep._client.listing import Listings
    from toolkeep._client.retry import RetryLoop

logger = logging.getLogger("toolkeep.client")

_LOG_LEVEL_KEY = "io.modelcontextprotocol/logLevel"
"""In 2026-07-28 each call asks for log lines."""


class CallCancelled(ToolkeepError):
    """Raised by `Call.result()` when the block was left before the call ended. The call may have
    run."""

    delivery = Delivery.UNKNOWN


class Call:
    """A running tool call and its events. Made by `stream`, entered once, iterated by one task.

        async with client.stream("analyze", {"rows": 10_000}) as call:
            async for event in call: ...
            result = await call.result()

    Leaving the block early cancels the call. Iterating is optional: `result()` alone works too.
    Unread events are kept. Progress and log lines are kept up to 8 MB: then the oldest are dropped,
    and `dropped` counts them.
    """

    def __init__(self, run: Callable[[Emit], Awaitable[CallResult]]) -> None:
        self._run = run
        self._queue = EventQueue[CallEvent, CallResult](run, what="call", made_by="stream")

    def __repr__(self) -> str:
        return f"<Call, {self._queue}>"

    async def __aenter__(self) -> Self:
        self._queue.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._queue.stop()

    def __aiter__(self) -> AsyncIterator[CallEvent]:
        return self

    async def __anext__(self) -> CallEvent:
        event = await self._queue.next_event()
        if event is None:
            raise StopAsyncIteration
        return event

    def run(self, emit: Emit) -> Awaitable[CallResult]:
        """For a gateway: run the call in the task that awaits this, in place of entering it. Each
        event is given to `emit`, which must not block."""
        return self._run(emit)

    @property
    def dropped(self) -> int:
        """How many unread progress reports and log lines were dropped."""
        return self._queue.dropped

    async def result(self) -> CallResult:
        """The result; raises what the call raised."""
        task = await self._queue.wait()
        if task.cancelled():
            raise CallCancelled(
                "the call was cancelled because its block was left; it has no result"
            )
        return task.result()


class ToolCall:
    """One tool call with its checks, events and server requests. Made by `Client`; belongs to the
    task that runs it; used once."""

    def __init__(
        self,
        sender: RequestSender,
        listings: Listings,
        observers: Observers,
        request: CallRequest,
        *,
        emit: Emit | None,
        deadline: RequestDeadline | None = None,
        log_level: str | None = None,
    ) -> None:
        """`emit`: the caller watches the call's events. `deadline` None: it begins now."""
        self._sender, self._listings, self._observers = sender, listings, observers
        self._spec, self._server = sender.spec, sender.spec.name
        name = cast("object", request.name)
        self._name = name if isinstance(name, str) else repr(name)[:200]
        self._request, self._emit = request, emit
        self._deadline, self._log_level = deadline, log_level
        self._retry_loop: RetryLoop | None = None
        self._open_requests: dict[asyncio.Task[Any], bool] = {}
        """Tasks that answer a server request, and whether only the caller can answer it."""
        self._finished_on_pipe = False
        """Whether the call ended on a duplex transport. Requests that are still open there may
        belong to another call."""
        self._finished, self._requests_seen = False, 0
        self.reported_progress = False
        """Whether the tool has reported progress."""

    async def run(self) -> CallResult:
        """Send the call and check its result, with all events."""
        if not self.is_observed:
            return await self.execute()
        self.emit_started()
        try:
            result = await self.execute()
        except BaseException as error:
            self.emit_failed(error)
            raise
        self.emit_completed(result)
        return result

    async def execute(self) -> CallResult:
        """The same without the first and the last event."""
        began, request = time.monotonic(), self._request
        self._prepare()
        params = self._params(self._checked_arguments())
        if self._sender.rates is not None:
            self._deadline = self._deadline or RequestDeadline(request.timeout, self._spec.timeouts)
            await self._sender.rates.wait(self._name, self._deadline)
        retry_loop = self._retry_loop = self._sender.start(request, self._deadline)
        try:
            raw = await retry_loop.run({**params, **self._continuation_params()})
            if retry_loop.era is Era.MODERN and request.input == "answer" and needs_input(raw):
                raw = await self._sender.complete_rounds(
                    retry_loop, self._name, params, raw, self._answer_in_round
                )
            self._finished_on_pipe = retry_loop.uses_duplex_transport
        finally:
            self._finished = True
            # These break reference cycles.
            self._retry_loop = None
            request.on_notification = request.on_server_request = request.emit = None
            for task, by_caller in self._open_requests.items():
                if by_caller or not self._finished_on_pipe:
                    task.cancel()
        duration = time.monotonic() - began
        result = CallResult(raw, self._server, self._name, retry_loop.total_attempts, duration)
        self._check_result(result)
        return result

    # -- before sending -------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Check the request, and fill in how it may be sent. A `Runtime` has checked its own, and
        has found the tool."""
        request, spec = self._request, self._spec
        if request.tool is None:
            if problem := request.find_problem():
                raise self._sender.invalid_arguments(self._name, problem)
            request.headers = self._sender.checked_headers(request.headers, self._name)
            tools = self._listings.tool_list
            request.tool = tools.get(self._name) if tools else None
        request.listings = self._listings
        request.policy = RetryPolicy(spec.retry_tools.get(self._name, spec.retry))
        request.repeatable = request.tool is not None and request.tool.is_repeatable
        request.on_progress = request.on_progress or self._sender.on_progress
        watched = self._emit is not None or request.on_progress is not None
        request.wants_progress = watched or spec.timeouts.extend_on_progress
        request.on_notification = self._on_notification
        request.on_server_request = self._on_server_request
        request.emit = self._emit_event

    def _checked_arguments(self) -> dict[str, Any]:
        arguments, tool = self._jsonable_arguments(), self._request.tool
        if tool is None:
            return arguments
        if self._spec.strip_none:
            from toolkeep._rules.json_schema import strip_none

            arguments = strip_none(arguments, tool.tool.input_schema)
        problems = tool.problems(tool.arguments_checker, arguments)
        if problems:
            why = f"the arguments do not match its schema: {'; '.join(problems)}"
            raise self._sender.invalid_arguments(self._name, why, problems)
        return arguments

    def _jsonable_arguments(self) -> dict[str, Any]:
        """The arguments as JSON values, made once for all attempts: an iterator can be read only
        once, and the caller may change the mapping meanwhile."""
        if not self._request.arguments:
            return {}
        try:
            return to_jsonable_python(dict(self._request.arguments), inf_nan_mode="constants")
        except (TypeError, ValueError) as error:
            why = f"the arguments cannot be converted to JSON: {error}"
            raise self._sender.invalid_arguments(str(self._name), why) from None

    def _params(self, arguments: dict[str, Any]) -> dict[str, Any]:
        params: dict[str, Any] = {"name": self._name, "arguments": arguments}
        meta = self._observers.meta(self._request.call_id, self._request.meta)
        if self._log_level is not None:
            meta.setdefault(_LOG_LEVEL_KEY, self._log_level)
        if meta:
            params["_meta"] = meta
        return params

    def _continuation_params(self) -> Mapping[str, Any]:
        more: dict[str, Any] = {}
        if self._request.input_responses is not None:
            more["inputResponses"] = dict(self._request.input_responses)
        if self._request.request_state is not None:
            more["requestState"] = self._request.request_state
        return more

    # -- server requests ------------------------------------------------------------------------

    async def _answer_in_round(self, key: str, method: str, params: Mapping[str, Any]) -> Any:
        server_request = ServerRequest(self._emit_event, method, params, self._request_facts(), key)
        return await self._sender.answer(server_request, watched=self._emit is not None)

    async def _on_server_request(self, method: str, params: Mapping[str, Any]) -> Any:
        """Answer a request that a legacy server sends while it works on this call."""
        self._requests_seen += 1
        handlers = self._sender.request_handlers
        if self._finished_on_pipe:
            return await handlers.answer(handlers.standalone_request(method, params), watched=False)
        if self._finished or self._requests_seen > MAX_SERVER_REQUESTS:
            return declined(
                "the call is over" if self._finished else "too many requests during one call"
            )
        task, retry_loop = asyncio.current_task(), self._retry_loop
        assert task is not None
        assert retry_loop is not None
        self._open_requests[task] = handlers.needs_caller(method)
        try:
            server_request = ServerRequest(self._emit_event, method, params, self._request_facts())
            with retry_loop.deadline.paused():
                return await handlers.answer(server_request, watched=self._emit is not None)
        finally:
            self._open_requests.pop(task, None)

    def _request_facts(self) -> dict[str, Any]:
        return {**self._event_facts(), "context": self._request.context}

    # -- notifications --------------------------------------------------------------------------

    async def _on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        """Handle a notification that belongs to this call."""
        if method == "notifications/progress":
            await self._deliver_progress(params)
        else:
            level, data = str(params.get("level", "info")), params.get("data")
            self._emit_event(
                Log(level=level, data=data, logger=params.get("logger"), **self._event_facts())
            )

    async def _deliver_progress(self, params: Mapping[str, Any]) -> None:
        progress, total, message = (
            params.get("progress"),
            params.get("total"),
            params.get("message"),
        )
        if not isinstance(progress, int | float):
            return
        total = total if isinstance(total, int | float) else None
        message = message if isinstance(message, str) else None
        self.reported_progress = True
        if self._retry_loop is not None and self._spec.timeouts.extend_on_progress:
            self._retry_loop.deadline.extend()
        self._emit_event(
            Progress(progress=progress, total=total, message=message, **self._event_facts())
        )
        if self._request.on_progress is not None:
            await self._call_on_progress(self._request.on_progress, progress, total, message)

    async def _call_on_progress(
        self, on_progress: OnProgress, progress: float, total: float | None, message: str | None
    ) -> None:
        try:
            returned = on_progress(progress, total, message)
            if inspect.isawaitable(returned):
                await returned
        except Exception:
            logger.exception("%s: the on_progress function of %s failed", self._server, self._name)

    # -- events ---------------------------------------------------------------------------------

    @property
    def is_observed(self) -> bool:
        """Whether anything receives the events of this call."""
        return self._emit is not None or bool(self._observers)

    def emit_started(self) -> None:
        self._request.call_id = uuid.uuid4().hex
        request = self._request
        context, own = request.context, self._sender.principal
        principal = own if context is None else context.principal
        self._emit_event(
            Started(principal=principal, arguments=request.arguments, **self._event_facts())
        )

    def emit_completed(self, result: CallResult) -> None:
        self._emit_event(Completed(result=result, **self._event_facts()))

    def emit_failed(self, error: BaseException) -> None:
        self._emit_event(Failed(error=error, **self._event_facts()))

    def _event_facts(self) -> dict[str, Any]:
        return {"server": self._server, "tool": self._name, "call_id": self._request.call_id}

    def _emit_event(self, event: CallEvent) -> None:
        if self._emit is not None:
            self._emit(event)
        self._listings.emit(event)

    # -- the result -----------------------------------------------------------------------------

    def _check_result(self, result: CallResult) -> None:
        tool = self._request.tool
        if tool is None or tool.output_checker is None or not result.success:
            return
        if "structuredContent" not in result.raw:
            raise self._invalid_result(
                "its result lacks the structured content that its schema requires", result
            )
        problems = tool.problems(tool.output_checker, result.data)
        if problems:
            raise self._invalid_result(
                f"its result does not match its schema: {'; '.join(problems)}", result
            )

    def _invalid_result(self, why: str, result: CallResult) -> InvalidResult:
        return InvalidResult(
            f"{self._server}: {self._name} ran, but {why}",
            server=self._server,
            tool=self._name,
            attempts=result.attempts,
            result=result,
        )
