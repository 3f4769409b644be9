"""One tool call, from its arguments to its result, with the events between.

Watched or not, a call takes this path. What can be known before sending is checked before sending;
what came back is judged after, and never lost.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import to_jsonable_python

from toolkeep._engine.call import Emit
from toolkeep._engine.core import Core
from toolkeep._engine.inputs import Question, nobody_answers
from toolkeep._engine.legs import Legs
from toolkeep._engine.wanted import OnProgress, Wanted
from toolkeep._rules.recovery import Policy
from toolkeep.errors import Failure, InvalidResult
from toolkeep.events import CallEvent, Completed, Failed, Log, Progress, Replaying, Started
from toolkeep.results import CallResult

if TYPE_CHECKING:
    from toolkeep._engine.outgoing import Outgoing
    from toolkeep._engine.toolbook import KnownTool

logger = logging.getLogger("toolkeep.client")

_MOST_QUESTIONS = 100
"""In the course of one call. While one is open, the call's time stands still."""
_LOG_LEVEL_KEY = "io.modelcontextprotocol/logLevel"  # 2026-07-28: log lines are asked for per call


class Calling:
    """Belongs to the task that carries it out; used once."""

    def __init__(self, core: Core, wanted: Wanted) -> None:
        self._core, self._server = core, core.spec.name
        name = cast("object", wanted.name)
        self._name = name if isinstance(name, str) else repr(name)[:200]
        self._wanted = wanted
        timeout = core.spec.timeouts.call if wanted.timeout is None else wanted.timeout
        self._legs = Legs(core, timeout)
        self._emit: Emit | None = None
        self._id = ""
        self._asking: dict[asyncio.Task[Any], bool] = {}
        """Questions that are open, and whether only the caller can answer them."""
        self._answered = False
        """Without waiting for them, on a pipe, where they may be another's."""
        self._over, self._asked = False, 0

    async def carry_out(self, emit: Emit | None = None) -> CallResult:
        """Send it and judge what comes back. `emit` makes it a watched call."""
        self._emit = emit
        if emit is None and not self._core.observers:
            return await self._perform()
        self._id = uuid.uuid4().hex
        self._tell(Started(**self._common()))
        try:
            result = await self._perform()
        except BaseException as error:
            self._tell(Failed(error=error, **self._common()))
            raise
        self._tell(Completed(result=result, **self._common()))
        return result

    async def _perform(self) -> CallResult:
        began = time.monotonic()
        wrong = "" if self._wanted.settled else self._wanted.problem()
        if wrong:
            raise self._core.invalid(self._name, wrong)
        known = self._core.book.get(self._name) if self._core.book else None
        arguments = self._checked_arguments(known)
        try:
            raw = await self._send(known, arguments, self._continuation())
            if self._legs.modern and raw.get("resultType") == "input_required":
                raw = await self._complete(known, arguments, raw)
            self._answered = self._legs.pursuit is not None and self._legs.pursuit.on_a_pipe()
        finally:
            self._over = True
            self._legs.pursuit = None  # leads back here: only the garbage collector would find it
            for task, by_caller in self._asking.items():
                if by_caller or not self._answered:
                    task.cancel()
        duration = time.monotonic() - began
        result = CallResult(raw, self._server, self._name, self._legs.attempts, duration)
        self._check_result(known, result)
        return result if self._wanted.fit is None else self._wanted.fit(result)

    async def _send(
        self, known: KnownTool | None, arguments: dict[str, Any], more: Mapping[str, Any]
    ) -> dict[str, Any]:
        outgoing = self._outgoing(known, arguments)
        outgoing.params = {**(outgoing.params or {}), **more}
        return await self._legs.go(outgoing)

    # -- what the server asks on the way --------------------------------------------------------

    def _continuation(self) -> Mapping[str, Any]:
        more: dict[str, Any] = {}
        if self._wanted.input_responses is not None:
            more["inputResponses"] = dict(self._wanted.input_responses)
        if self._wanted.request_state is not None:
            more["requestState"] = self._wanted.request_state
        return more

    async def _complete(
        self, known: KnownTool | None, arguments: dict[str, Any], raw: dict[str, Any]
    ) -> dict[str, Any]:
        from toolkeep._engine.rounds import complete

        if self._wanted.input == "return":
            return raw

        async def send(more: dict[str, Any]) -> dict[str, Any]:
            return await self._send(known, arguments, more)

        return await complete(
            raw,
            send=send,
            ask=self._ask_in_round,
            pause=self._legs.pause,
            bounds=self._legs.bounds,
            server=self._server,
            what=self._name,
        )

    async def _ask_in_round(self, key: str, method: str, params: Mapping[str, Any]) -> Any:
        question = Question(self._tell, method, params, self._asking_for(), key)
        return await self._core.answer(question, watched=self._emit is not None)

    async def _ask(self, method: str, params: Mapping[str, Any]) -> Any:
        """Answer a question that a legacy server asks while it works on this call."""
        self._asked += 1
        if self._answered:
            return await self._core.inputs.answer(
                self._core.inputs.unrelated(method, params), watched=False
            )
        if self._over or self._asked > _MOST_QUESTIONS:
            return nobody_answers("the call is over" if self._over else "too many questions")
        task, pursuit = asyncio.current_task(), self._legs.pursuit
        assert task is not None
        assert pursuit is not None
        self._asking[task] = self._core.inputs.by_caller(method)
        try:
            question = Question(self._tell, method, params, self._asking_for())
            with pursuit.clock.held():
                return await self._core.inputs.answer(question, watched=self._emit is not None)
        finally:
            self._asking.pop(task, None)

    def _asking_for(self) -> dict[str, Any]:
        return {**self._common(), "context": self._wanted.context}

    # -- before sending -------------------------------------------------------------------------

    def _checked_arguments(self, known: KnownTool | None) -> dict[str, Any]:
        arguments = self._plain_arguments()
        if known is None:
            return arguments
        if self._core.spec.strip_none:
            from toolkeep._rules.schema import strip_none

            arguments = strip_none(arguments, known.tool.input_schema)
        problems = known.problems(known.arguments, arguments)
        if problems:
            why = f"its arguments break its schema: {'; '.join(problems)}"
            raise self._core.invalid(self._name, why, problems)
        return arguments

    def _plain_arguments(self) -> dict[str, Any]:
        """In wire shape, once for all attempts: an iterator is used up by the first one, and what
        the caller changes meanwhile is none of theirs."""
        if not self._wanted.arguments:
            return {}
        try:
            return to_jsonable_python(dict(self._wanted.arguments), inf_nan_mode="constants")
        except (TypeError, ValueError) as error:
            why = f"its arguments cannot be written to the wire: {error}"
            raise self._core.invalid(str(self._name), why) from None

    def _outgoing(self, known: KnownTool | None, arguments: dict[str, Any]) -> Outgoing:
        from toolkeep._engine.outgoing import Outgoing

        spec = self._core.spec
        watched = self._emit is not None or self._wanted.on_progress is not None
        return Outgoing(
            method="tools/call",
            tool=self._name,
            params=self._params(arguments),
            timeout=self._legs.left,
            headers=self._headers(),
            policy=Policy(spec.replay_tools.get(self._name, spec.replay)),
            repeatable=known is not None and known.repeatable,
            deliver=self._deliver,
            wants_progress=watched or spec.timeouts.extend_on_progress,
            param_headers=self._param_headers(arguments),
            relist=lambda: self._core.list_tools(refresh=True),
            ask=self._ask,
            on_replay=self._on_replay,
        )

    def _headers(self) -> Mapping[str, str] | None:
        given = self._wanted.headers
        return given if self._wanted.settled else self._core.checked_headers(given, self._name)

    def _params(self, arguments: dict[str, Any]) -> dict[str, Any]:
        params: dict[str, Any] = {"name": self._name, "arguments": arguments}
        meta = self._core.observers.meta(self._id, self._wanted.meta)
        if self._core.log_level is not None:
            meta.setdefault(_LOG_LEVEL_KEY, self._core.log_level)
        if meta:
            params["_meta"] = meta
        return params

    def _param_headers(self, arguments: dict[str, Any]) -> Callable[[], Mapping[str, str]]:
        def computed() -> Mapping[str, str]:
            book = self._core.book
            known = book.get(self._name) if book else None
            return known.param_headers(arguments) if known else {}

        return computed

    # -- while it runs --------------------------------------------------------------------------

    async def _deliver(self, method: str, params: Mapping[str, Any]) -> None:
        """A notification on the call's own stream."""
        if method == "notifications/progress":
            await self._deliver_progress(params)
        else:
            level, data = str(params.get("level", "info")), params.get("data")
            self._tell(Log(level=level, data=data, logger=params.get("logger"), **self._common()))

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
        if self._legs.pursuit is not None:
            self._legs.pursuit.extend()
        self._tell(Progress(progress=progress, total=total, message=message, **self._common()))
        if self._wanted.on_progress is not None:
            await self._call_back(self._wanted.on_progress, progress, total, message)

    async def _call_back(
        self, on_progress: OnProgress, progress: float, total: float | None, message: str | None
    ) -> None:
        try:
            waiting = on_progress(progress, total, message)
            if inspect.isawaitable(waiting):
                await waiting
        except Exception:
            logger.exception("%s: on_progress of %s failed", self._server, self._name)

    def _on_replay(self, attempt: int, after: float, failure: Failure) -> None:
        self._tell(Replaying(attempt=attempt, after=after, failure=failure, **self._common()))

    def _common(self) -> dict[str, Any]:
        return {"server": self._server, "tool": self._name, "call_id": self._id}

    def _tell(self, event: CallEvent) -> None:
        if self._emit is not None:
            self._emit(event)
        self._core.emit(event)

    # -- after ----------------------------------------------------------------------------------

    def _check_result(self, known: KnownTool | None, result: CallResult) -> None:
        if known is None or known.output is None or not result.success:
            return
        if "structuredContent" not in result.raw:
            raise self._spoiled("its result has no structured content", result)
        problems = known.problems(known.output, result.data)
        if problems:
            raise self._spoiled(f"its result breaks its schema: {'; '.join(problems)}", result)

    def _spoiled(self, why: str, result: CallResult) -> InvalidResult:
        return InvalidResult(
            f"{self._server}: {self._name} ran, but {why}",
            server=self._server,
            tool=self._name,
            attempts=result.attempts,
            result=result,
        )
