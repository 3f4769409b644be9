"""One program in the sandbox: check it, run it, send its calls through the runtime.

`ProgramRun` drives the interpreter: when the program calls a tool, waits or sleeps, the interpreter
suspends and returns a snapshot, which `ProgramRun` resumes with a result. Calls run in tasks of
their own, for which `ProgramRun.run` waits.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, cast

from toolkeep._catalogue.tool import Tool
from toolkeep._client.loop_guard import run_to_completion
from toolkeep._runtime.large_results import OVERSIZED_META_KEY
from toolkeep.code_mode._access import Policy, ProgramRuntime, ProgramTools
from toolkeep.code_mode._report import (
    CodeCall,
    CodeFinished,
    CodeRefused,
    CodeResult,
    Outcome,
    Printed,
    must_be_checked,
    names_of,
    shortened,
)
from toolkeep.code_mode._stubs import HEADER, is_python_name, write_stub
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError, Delivery
from toolkeep.events import Event
from toolkeep.results import CallResult

try:
    import pydantic_monty as monty
except ImportError as missing:
    raise ImportError("code mode needs the extra: pip install 'toolkeep[code]'") from missing

__all__ = ["CodeLimits", "OnEvent", "ProgramRun"]

TIMEOUT = 60.0
"""Default seconds for a run."""
WORKERS = 8
"""Worker processes of one runtime, one for each running program. Other programs wait."""
RUNS_PER_WORKER = 100
"""Runs after which a worker is replaced."""
WORKER_TIMEOUT = 30.0
"""Seconds after which an unresponsive worker is killed. Its own limits should stop it earlier."""
OUTCOME_GRACE = 1.0
"""Seconds after the deadline in which calls may report whether they were sent."""
CANCEL_GRACE = 5.0
"""Seconds to wait for cancelled calls to end."""
MAX_SOURCE = 100_000
"""Characters of a program."""
MAX_ERROR = 2_000
"""Characters of an error of the program or of a tool."""
MAX_PROBLEM = 500
"""Characters of one problem that the type checker reports."""
MAX_PROBLEMS = 20
"""Problems of the type checker that are reported."""
MAX_VALUES = 100_000
"""Items in a program's value, at all levels."""
MAX_VALUE_DEPTH = 100

CLOSED = "the runtime was closed"
NEVER_SENT = "it was never sent"
CANCELLED = "it was cancelled while it was running"
PROGRAM_FILE = "<python-input-0>"
"""The sandbox's file name for the program."""
SLEEP_FUNCTIONS = ("system.sleep", "system.async_sleep")
PENDING: Any = {"future": ...}
"""Resumes a program whose call is running: its function returns a future."""
TYPE_IGNORE = re.compile(r"#\s*(?:type|ty)\s*:\s*ignore")
PROBLEM = re.compile(r"^main\.py:(\d+):\d+: (?:error|warning)\[[\w-]+\] ", re.MULTILINE)
UNDEFINED = re.compile(r"Name `(\w+)` used when not defined")

OUTCOMES = {
    Delivery.NOT_SENT: Outcome.DID_NOT_RUN,
    Delivery.REFUSED: Outcome.DID_NOT_RUN,
    Delivery.ANSWERED: Outcome.RAN,
    Delivery.UNKNOWN: Outcome.UNKNOWN,
}

OnEvent = Callable[[Event], None]
ResumeValue = dict[str, Any]
"""A result or an exception, in the form that resumes the sandbox."""
Suspended = monty.AsyncFunctionSnapshot | monty.AsyncNameLookupSnapshot | monty.AsyncFutureSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLimits:
    """The resources that one program may use. `timeout` limits the whole run."""

    calls: int = 100
    """Calls in total."""
    concurrent_calls: int = 16
    """Calls at the same time. Others wait."""
    cpu_seconds: float = 5.0
    """Time for computing. Waiting for calls does not count."""
    memory: int = 64 * 2**20
    """Bytes of its memory."""
    arguments: int = 4 * 2**20
    """Bytes of the arguments of all its calls, as JSON."""
    printed: int = 20_000
    """Characters of printed text that are kept. A note says that the rest was dropped."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ConfigError("the limit must be more than 0", key=name, remedy="Raise it")


# --- the sandbox ---------------------------------------------------------------------------------


class Sandbox:
    """The worker processes of one runtime. Its first program starts them; it closes them."""

    def __init__(self) -> None:
        self._pool: monty.AsyncMonty | None = None
        self._opening = asyncio.Lock()
        self._stops: set[Callable[[str], None]] = set()
        self._ended = asyncio.Event()
        self._closed = False

    @asynccontextmanager
    async def session(
        self, stubs: str, limits: CodeLimits, stop: Callable[[str], None]
    ) -> AsyncGenerator[monty.AsyncMontySession]:
        """A fresh interpreter. If the sandbox closes meanwhile, it calls `stop` with the reason."""
        pool = await self._open_pool()
        checkout = pool.checkout(
            type_check=True,
            type_check_stubs=stubs,
            type_check_format="concise",
            limits={
                "max_feed_duration_secs": limits.cpu_seconds,
                "max_memory": limits.memory,
                # A call suspends the program twice; the rest is for sleeps and name lookups.
                "max_suspensions": 1_000 + 10 * limits.calls,
            },
        )
        self._stops.add(stop)
        try:
            async with checkout as session:
                yield session
        finally:
            self._stops.discard(stop)
            self._ended.set()

    async def _open_pool(self) -> monty.AsyncMonty:
        async with self._opening:
            if self._closed:
                raise ProgramStopped(CLOSED)
            if self._pool is None:
                pool = monty.AsyncMonty(
                    min_processes=0,
                    max_processes=WORKERS,
                    request_timeout=WORKER_TIMEOUT,
                    max_checkouts_per_worker=RUNS_PER_WORKER,
                )
                self._pool = await pool.__aenter__()
            return self._pool

    async def aclose(self) -> None:
        self._closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_GRACE):
                await self._stop_all()
        async with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None:
            await pool.__aexit__(None, None, None)

    async def _stop_all(self) -> None:
        while self._stops:
            self._ended.clear()
            for stop in self._stops:
                stop(CLOSED)
            await self._ended.wait()


# --- the program ---------------------------------------------------------------------------------


class ProgramStopped(Exception):
    """Ends a program from outside: the program cannot catch it."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


class ProgramRun:
    """One run of one program. Used once, by one task.

    `with_events`: emit the events of its calls.
    """

    def __init__(
        self,
        runtime: ProgramRuntime,
        source: str,
        context: CallContext | None,
        policy: Policy,
        inputs: Mapping[str, Any] | None,
        timeout: float,
        limits: CodeLimits | None,
        *,
        with_events: bool = False,
        **options: Any,
    ) -> None:
        """`options`: options of `Runtime.call` for every call."""
        if not (timeout > 0 and math.isfinite(timeout)):
            remedy = "Give a number of seconds"
            raise ConfigError("the time limit must be above 0", key="timeout", remedy=remedy)
        self._runtime, self._source, self._context, self._policy = runtime, source, context, policy
        self._inputs, self._timeout = dict(inputs or {}), timeout
        self._limits = limits or CodeLimits()
        self._with_events, self._options = with_events, options
        self._tools: dict[str, Tool] = {}
        self._calls: list[CodeCall] = []
        self._tasks: dict[int, asyncio.Task[ResumeValue]] = {}
        """Running calls and sleeps, by the sandbox's ids."""
        self._sleeps: set[int] = set()
        """The ids of the sleeps."""
        self._slots = asyncio.Semaphore(self._limits.concurrent_calls)
        self._arguments_left = self._limits.arguments
        self._printed, self._printed_left = "", self._limits.printed
        self._waiting_line: int | None = None
        """The line at which the program waits for a call."""
        self._stop_reason = ""
        self._failed = False
        """Set when the run has failed: queued calls are then not sent."""
        self._emit: OnEvent = lambda event: None
        self._began = monotonic()

    async def run(self, emit: OnEvent) -> CodeResult:
        self._emit, self._began = emit, monotonic()
        try:
            value, error, line = await self._run_source()
            self._failed = self._failed or bool(error)
            await self._finish_calls(self._time_left() + OUTCOME_GRACE)
        except asyncio.CancelledError:
            with suppress(asyncio.CancelledError):
                await run_to_completion(self._finish_calls(0))
            emit(CodeFinished(result=self._result(None, "it was cancelled", None)))
            raise
        unknown = [call.tool for call in self._calls if must_be_checked(call)]
        if unknown and not error:
            value, error = None, f"whether {names_of(unknown)} ran is not known"
        result = self._result(value, error, line)
        emit(CodeFinished(result=result))
        return result

    async def _run_source(self) -> tuple[Any, str, int | None]:
        """The program's value, or the error and its line."""
        scope = asyncio.timeout(self._timeout)

        def stop(reason: str) -> None:
            self._stop_reason = reason
            with suppress(RuntimeError):  # the scope has ended already
                scope.reschedule(asyncio.get_running_loop().time())

        try:
            async with scope:
                toolset = await self._prepare()
                return to_plain_data(await self._execute_on_any_worker(toolset, stop)), "", None
        except TimeoutError:
            if not scope.expired():
                raise
            reason = self._stop_reason or f"it was stopped after {self._timeout:g} s"
            return None, reason, self._waiting_line
        except ProgramStopped as stopped:
            return None, str(stopped), stopped.line
        except monty.MontyCrashedError as crash:
            return None, f"the sandbox crashed ({shortened(str(crash), 300)})", None
        except monty.MontyRuntimeError as error:
            return None, shortened(str(error), MAX_ERROR), line_of(error)

    def _result(self, value: Any, error: str, line: int | None) -> CodeResult:
        seconds = monotonic() - self._began
        return CodeResult(value, error, line, tuple(self._calls), self._printed, seconds)

    def _time_left(self) -> float:
        return max(self._began + self._timeout - monotonic(), 0.0)

    # -- before anything runs -------------------------------------------------------------------

    async def _prepare(self) -> ProgramTools:
        if len(self._source) > MAX_SOURCE:
            raise CodeRefused([f"it is longer than {MAX_SOURCE} characters: shorten it"])
        ignore = TYPE_IGNORE.search(self._source)
        if ignore:
            line = self._source.count("\n", 0, ignore.start()) + 1
            text = "types are always checked: remove the comment and fix what it hides"
            raise CodeRefused([f"line {line}: {text}"])
        toolset = await ProgramTools.of(self._runtime, self._context, self._policy)
        for name in self._inputs:
            if not is_python_name(name) or name in toolset.names:
                raise CodeRefused(
                    [f"the input {name[:80]!r} needs another name: a free variable name"]
                )
        self._tools = toolset.mentioned(self._source)
        return toolset

    def _stubs(self) -> str:
        taken = {*self._tools}
        written = [
            write_stub(name, tool.input_schema, tool.output_schema, taken=taken)
            for name, tool in self._tools.items()
        ]
        given = [f"{name}: {input_type(value)}\n" for name, value in self._inputs.items()]
        return "".join((HEADER, *given, *written))

    # -- while it runs --------------------------------------------------------------------------

    async def _execute_on_any_worker(
        self, toolset: ProgramTools, stop: Callable[[str], None]
    ) -> Any:
        """Run the program. A worker may have died while it was idle: if it crashes before the
        program has done anything, try another worker, once."""
        try:
            return await self._execute(toolset, stop)
        except monty.MontyCrashedError as crash:
            if crash.timed_out or self._calls or self._printed:
                raise
        return await self._execute(toolset, stop)

    async def _execute(self, toolset: ProgramTools, stop: Callable[[str], None]) -> Any:
        sandbox = self._runtime.component(Sandbox)
        async with sandbox.session(self._stubs(), self._limits, stop) as session:
            try:
                snapshot = await session.feed_start(
                    self._source,
                    inputs=self._inputs,
                    external_lookup=dict.fromkeys(self._tools, tool_placeholder),
                    print_callback=self._printer(),
                )
                while not isinstance(snapshot, monty.MontyComplete):
                    snapshot = await self._resume(snapshot)
                return snapshot.output
            except (monty.MontyTypingError, monty.MontySyntaxError) as error:
                raise CodeRefused(read_problems(str(error), toolset)) from None
            except monty.MontyConversionError as error:
                raise CodeRefused([f"the inputs must be plain data: {error}"]) from None

    async def _resume(self, snapshot: Suspended) -> monty.AsyncSnapshot:
        match snapshot:
            case monty.AsyncFutureSnapshot():
                return await snapshot.resume(await self._wait_for_any(snapshot))
            case monty.AsyncFunctionSnapshot() if snapshot.function_name in SLEEP_FUNCTIONS:
                return await self._sleep(snapshot)
            case monty.AsyncFunctionSnapshot() if snapshot.is_os_function:
                return await snapshot.resume_not_handled()
            case monty.AsyncFunctionSnapshot():
                return await snapshot.resume(self._begin_call(snapshot))
            case _:
                return await snapshot.resume_auto()

    async def _wait_for_any(self, snapshot: monty.AsyncFutureSnapshot) -> dict[int, Any]:
        """The results of the first calls to end among those that the program waits for."""
        waiting = {call_id: self._tasks[call_id] for call_id in snapshot.pending_call_ids}
        self._waiting_line = self._line(snapshot.position)
        await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
        self._waiting_line = None
        return {key: self._take_result(key) for key, task in waiting.items() if task.done()}

    def _take_result(self, call_id: int) -> ResumeValue:
        task = self._tasks.pop(call_id)
        if task.cancelled():
            return exception("the call was cancelled")
        return task.result()

    async def _sleep(self, snapshot: monty.AsyncFunctionSnapshot) -> monty.AsyncSnapshot:
        slept: ResumeValue = {"return_value": None}
        sleep = asyncio.sleep(min(max(float(snapshot.args[0]), 0.0), self._timeout), slept)
        if snapshot.function_name == "system.sleep":
            return await snapshot.resume(cast("Any", await sleep))
        self._tasks[snapshot.call_id] = asyncio.ensure_future(sleep)
        self._sleeps.add(snapshot.call_id)
        return await snapshot.resume(PENDING)

    def _begin_call(self, snapshot: monty.AsyncFunctionSnapshot) -> Any:
        """Start a call, unless it is invalid. Returns what resumes the program."""
        name = snapshot.function_name
        tool = self._tools.get(name)
        if tool is None or snapshot.object_id is not None:
            return exception(f"name {name[:80]!r} is not defined", "NameError")
        if snapshot.args:
            return exception(f"{name} takes keyword arguments only", "TypeError")
        line = self._line(snapshot.position)
        if len(self._calls) >= self._limits.calls:
            raise ProgramStopped(f"it makes more than {self._limits.calls} calls", line)
        try:
            written = json.dumps(snapshot.kwargs, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return exception(f"the arguments of {name} must be plain data", "TypeError")
        self._arguments_left -= len(written)
        if self._arguments_left < 0:
            raise ProgramStopped(
                f"its arguments have more than {self._limits.arguments} bytes", line
            )
        arguments = json.loads(written)
        number = len(self._calls)
        call = CodeCall(tool.name, arguments, line, error=NEVER_SENT, repeatable=tool.idempotent)
        self._calls.append(call)
        self._tasks[snapshot.call_id] = asyncio.ensure_future(self._call(number, tool, arguments))
        return PENDING

    async def _call(self, number: int, tool: Tool, arguments: dict[str, Any]) -> ResumeValue:
        async with self._slots:
            if self._failed or not self._time_left():
                return exception(NEVER_SENT)
            began = monotonic()
            self._record(number, began, Outcome.UNKNOWN, CANCELLED)  # replaced when it ends
            try:
                result = await self._send(tool, arguments)
            except Exception as error:
                problem = shortened(str(error), MAX_ERROR) or type(error).__name__
                outcome = OUTCOMES[getattr(error, "delivery", Delivery.UNKNOWN)]
            except asyncio.CancelledError:
                self._record(number, began, Outcome.UNKNOWN, CANCELLED)
                raise
            else:
                problem, outcome = why_unusable(result), Outcome.RAN
                if not problem:
                    self._record(number, began, outcome)
                    return {"return_value": result_value(result)}
            call = self._record(number, began, outcome, problem)
            if must_be_checked(call):
                self._failed = True
                raise ProgramStopped(call.error, call.line)
            return exception(call.error)

    def _record(self, number: int, began: float, outcome: Outcome, error: str = "") -> CodeCall:
        call = self._calls[number]
        seconds = monotonic() - began
        updated = dataclasses.replace(call, outcome=outcome, error=error, seconds=seconds)
        self._calls[number] = updated
        return updated

    async def _send(self, tool: Tool, arguments: dict[str, Any]) -> CallResult:
        options: dict[str, Any] = {**self._options, "context": self._context}
        options["timeout"] = max(self._time_left(), 0.001)
        if not self._with_events:
            return await self._runtime.call(tool, arguments, **options)
        async with self._runtime.stream(tool, arguments, **options) as call:
            async for event in call:
                self._emit(event)
            return await call.result()

    def _printer(self) -> Callable[[str, str], None]:
        """A callback for printed text. The sandbox calls it from a thread of its own."""
        loop = asyncio.get_running_loop()

        def printed(stream: str, text: str) -> None:
            with suppress(RuntimeError):  # the loop is closed
                if self._printed_left <= 0:
                    return
                loop.call_soon_threadsafe(self._print, text[: self._limits.printed + 1])

        return printed

    def _print(self, text: str) -> None:
        if self._printed_left <= 0:
            return
        kept = text[: self._printed_left]
        self._printed_left -= len(text)
        if self._printed_left <= 0:
            kept += "\n… the rest of the printed text was dropped"
        self._printed += kept
        self._emit(Printed(text=kept))

    def _line(self, position: monty.SourceRange) -> int | None:
        if position.filename != PROGRAM_FILE:
            return None
        return self._source.encode()[: position.start].count(b"\n") + 1

    async def _finish_calls(self, timeout: float) -> None:
        """Wait for running calls; cancel those that take longer than `timeout`."""
        tasks = self._tasks.values()
        for call_id in self._sleeps & self._tasks.keys():
            self._tasks[call_id].cancel()
        if tasks and timeout > 0:
            await asyncio.wait(tasks, timeout=timeout)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_GRACE)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()  # already recorded in its `CodeCall`


# --- conversion between the sandbox and toolkeep --------------------------------------------------


def tool_placeholder() -> None:
    """The value of a tool's name in a program. Calls of it suspend the program."""


def exception(message: str, kind: str = "RuntimeError") -> ResumeValue:
    return {"exc_type": kind, "message": message}


def line_of(error: monty.MontyRuntimeError) -> int | None:
    lines = [frame.line for frame in error.traceback() if frame.filename == PROGRAM_FILE]
    return lines[-1] if lines else None


def read_problems(text: str, toolset: ProgramTools) -> list[str]:
    """The type checker's problems, one line each. For a tool that cannot be called, says why."""
    parts = PROBLEM.split(text.strip())  # text before the first, then line and message of each
    end = 2 * MAX_PROBLEMS + 1
    found: list[str] = []
    for line, message in zip(parts[1:end:2], parts[2:end:2], strict=True):
        undefined = UNDEFINED.search(message)
        reason = toolset.explain(undefined[1]) if undefined else ""
        found.append(f"line {line}: {shortened(reason or ' '.join(message.split()), MAX_PROBLEM)}")
    return found or [shortened(text, MAX_ERROR)]


def why_unusable(result: CallResult) -> str:
    """Why a result has no value for the program; empty if it has one."""
    if result.is_error:
        return shortened(result.text, MAX_ERROR) or "the tool failed and gave no reason"
    if OVERSIZED_META_KEY in result.meta:  # a program must not take a part for the whole
        return "its result is larger than its server's max_result_chars: ask the tool for less"
    return ""


def result_value(result: CallResult) -> Any:
    """The value of a result in the program.

    Its structured content; without that, its text, parsed as JSON if it is an object or a list; or
    its content blocks, if not all of them are text.
    """
    if result.data is not None:
        return result.data
    blocks: list[Any] = result.raw.get("content") or []
    if any(block.get("type") != "text" for block in blocks):
        return blocks
    text = result.text
    if text.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def to_plain_data(value: Any) -> Any:
    """A program's value as JSON data. Objects that JSON does not have become text."""
    left = MAX_VALUES

    def walk(part: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or depth > MAX_VALUE_DEPTH:
            raise ProgramStopped("its value is too large: return less")
        match part:
            case bool() | None | str():
                return part
            case int():
                return part if part.bit_length() < 10_000 else "a very large integer"
            case float():
                return part if math.isfinite(part) else str(part)
            case dict():
                held = cast("dict[Any, Any]", part)
                return {str(key): walk(one, depth + 1) for key, one in held.items()}
            case list() | tuple() | set() | frozenset():
                return [walk(one, depth + 1) for one in cast("list[Any]", part)]
            case _:
                return shortened(str(part), MAX_ERROR)

    return walk(value, 0)


def input_type(value: Any) -> str:
    """The annotation of an input variable in the stubs."""
    match value:
        case bool() | int() | float() | str():
            return type(value).__name__
        case list():
            return "list[Any]"
        case dict():
            return "dict[str, Any]"
        case _:
            return "Any"
