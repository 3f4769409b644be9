"""One program in the sandbox: checked, run, its calls sent through the runtime.

`Program` drives the interpreter: whenever that is suspended, because the program calls a tool,
waits or sleeps, it says so in a snapshot, and is resumed with an answer. Calls are tasks of the
task that runs the program.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, cast

from toolkeep._catalogue.names import nearest
from toolkeep._catalogue.tool import Tool
from toolkeep._engine.group_turns import uninterrupted
from toolkeep._rules.patterns import Patterns, sorted_out
from toolkeep._rules.stubs import HEADER, is_plain, signature
from toolkeep._runtime.oversized import MARK
from toolkeep.code_mode._account import (
    CodeCall,
    CodeFinished,
    CodeRefused,
    CodeResult,
    Outcome,
    Printed,
    is_lost,
    names_of,
    shortened,
)
from toolkeep.context import CallContext
from toolkeep.errors import ConfigError, Delivery
from toolkeep.events import Event
from toolkeep.results import CallResult
from toolkeep.runtime import Runtime

try:
    import pydantic_monty as monty
except ImportError as missing:
    raise ImportError("code mode needs the extra: pip install 'toolkeep[code]'") from missing

__all__ = ["CodeLimits", "OnEvent", "Policy", "Program", "Toolset"]

TIMEOUT = 60.0
"""Seconds for a run, unless the caller says otherwise."""
WORKERS = 8
"""Worker processes of one runtime: programs that run at the same time. Others wait."""
RUNS_PER_WORKER = 100
"""Runs after which a worker is replaced."""
WORKER_SILENCE = 30.0
"""Seconds after which a worker that does not answer is killed; its limits come before."""
SETTLE_GRACE = 1.0
"""Seconds after the deadline in which calls may say themselves whether they were sent."""
CANCEL_GRACE = 5.0
"""Seconds that cancelled calls have for ending."""
LONGEST_SOURCE = 100_000
"""Characters of a program."""
LONGEST_ERROR = 2_000
"""Characters of an error, of the program's or of a tool's."""
LONGEST_PROBLEM = 500
MOST_LINES = 2 * 20 + 1
"""Of what the type checker says: twenty problems, each with its line."""
MOST_VALUES = 100_000
"""Parts of a program's value."""
DEEPEST_VALUE = 100

CLOSED = "the runtime was closed"
NEVER_SENT = "it was never sent"
CANCELLED = "it was cancelled while it was under way"
PROGRAM_FILE = "<python-input-0>"
"""What the sandbox calls the program."""
PAUSES = ("system.sleep", "system.async_sleep")
IN_FUTURE: Any = {"future": ...}
WORD = re.compile(r"[^\W\d]\w*")
IGNORED = re.compile(r"#\s*(?:type|ty)\s*:\s*ignore")
PROBLEM = re.compile(r"^main\.py:(\d+):\d+: (?:error|warning)\[[\w-]+\] ", re.MULTILINE)
UNDEFINED = re.compile(r"Name `(\w+)` used when not defined")

OUTCOMES = {
    Delivery.NOT_SENT: Outcome.DID_NOT_RUN,
    Delivery.REFUSED: Outcome.DID_NOT_RUN,
    Delivery.ANSWERED: Outcome.RAN,
    Delivery.UNKNOWN: Outcome.UNKNOWN,
}

OnEvent = Callable[[Event], None]
Settled = dict[str, Any]
"""How the sandbox is told of a result or an exception."""
Suspended = monty.AsyncFunctionSnapshot | monty.AsyncNameLookupSnapshot | monty.AsyncFutureSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLimits:
    """What one program may use. The time for everything is `timeout`."""

    calls: int = 100
    """Calls that it makes in all."""
    concurrent_calls: int = 16
    """Calls at the same time; others wait."""
    cpu_seconds: float = 5.0
    """Time in which it computes. Waiting for calls does not count."""
    memory: int = 64 * 2**20
    """Bytes of its memory."""
    arguments: int = 4 * 2**20
    """Bytes of the arguments of all its calls, as JSON."""
    printed: int = 20_000
    """Characters of printed text that are kept. The rest is dropped, and said to be."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ConfigError("it must be more than 0", key=name, remedy="Raise it")


# --- which tools ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chosen:
    """Tools by patterns; `!pattern` takes some out."""

    patterns: Patterns
    without: Patterns

    @classmethod
    def of(cls, patterns: Collection[str], key: str) -> Chosen:
        chosen, without = sorted_out(patterns, key)
        return cls(Patterns.of(chosen), Patterns.of(without))

    def has(self, tool: Tool) -> bool:
        about = (*tool.key, tool.tags)
        return self.patterns.match(*about) and not self.without.match(*about)


@dataclass(frozen=True, slots=True)
class Policy:
    """Which tools a program may use."""

    tools: Chosen
    allowed: Chosen

    @classmethod
    def of(cls, tools: Collection[str] | None, allow: Collection[str]) -> Policy:
        shown = Chosen.of(("*",) if tools is None else tools, "tools")
        return cls(shown, Chosen.of(allow, "allow"))

    def shows(self, tool: Tool) -> bool:
        return self.tools.has(tool)

    def lets(self, tool: Tool) -> bool:
        return self.shows(tool) and (tool.read_only or self.allowed.has(tool))


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools of one context, by their names in a program."""

    names: Mapping[str, Tool]
    policy: Policy

    @classmethod
    async def of(cls, runtime: Runtime, context: CallContext | None, policy: Policy) -> Toolset:
        return cls((await runtime.catalogue_for(context)).program_names, policy)

    def mentioned(self, source: str) -> dict[str, Tool]:
        """Those that the source may call: no other can be called from it."""
        found = {word: self.names[word] for word in WORD.findall(source) if word in self.names}
        return {name: tool for name, tool in found.items() if self.policy.lets(tool)}

    def about(self, name: str) -> str:
        """What to do about a name that the program has not defined; empty if nothing is known."""
        tool = self.names.get(name)
        if tool is not None and self.policy.shows(tool):
            allow = f'allow=["{tool.name[:200]}"]'
            return f"{name} is not marked read-only: the caller of this program can {allow}"
        if "__" not in name:
            return ""
        near = nearest(name, (one for one, tool in self.names.items() if self.policy.lets(tool)))
        return f"there is no tool {name}. Did you mean {' or '.join(near)}?" if near else ""


# --- the sandbox ---------------------------------------------------------------------------------


class Sandbox:
    """The worker processes of one runtime: started by its first program, closed with it."""

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
        """A fresh interpreter. `stop` is called with the reason if the sandbox closes meanwhile."""
        pool = await self._opened()
        checkout = pool.checkout(
            type_check=True,
            type_check_stubs=stubs,
            type_check_format="concise",
            limits={
                "max_feed_duration_secs": limits.cpu_seconds,
                "max_memory": limits.memory,
                # A call suspends the program twice; the rest is for pauses and look-ups.
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

    async def _opened(self) -> monty.AsyncMonty:
        async with self._opening:
            if self._closed:
                raise Stopped(CLOSED)
            if self._pool is None:
                pool = monty.AsyncMonty(
                    min_processes=0,
                    max_processes=WORKERS,
                    request_timeout=WORKER_SILENCE,
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


class Stopped(Exception):
    """Ends a program from outside, so that it cannot go on."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


class Program:
    """One run of one program. Used once, by one task."""

    def __init__(
        self,
        runtime: Runtime,
        source: str,
        context: CallContext | None,
        policy: Policy,
        inputs: Mapping[str, Any] | None,
        timeout: float,
        limits: CodeLimits | None,
        *,
        watched: bool = False,
        **options: Any,
    ) -> None:
        """`options`: those of `Runtime.call`, for every call."""
        if not (timeout > 0 and math.isfinite(timeout)):
            remedy = "Give a number of seconds"
            raise ConfigError("a run needs a time limit above 0", key="timeout", remedy=remedy)
        self._runtime, self._source, self._context, self._policy = runtime, source, context, policy
        self._inputs, self._timeout = dict(inputs or {}), timeout
        self._limits = limits or CodeLimits()
        self._watched, self._options = watched, options
        self._tools: dict[str, Tool] = {}
        self._calls: list[CodeCall] = []
        self._tasks: dict[int, asyncio.Task[Settled]] = {}
        """Calls and pauses that were begun, by the sandbox's ids."""
        self._pauses: set[int] = set()
        """Which of them are pauses."""
        self._slots = asyncio.Semaphore(self._limits.concurrent_calls)
        self._arguments_left = self._limits.arguments
        self._printed, self._printed_left = "", self._limits.printed
        self._waits_at: int | None = None
        """The line at which the program waits for a call."""
        self._stopping = ""
        self._failed = False
        """From then on, calls that wait for their turn are not sent."""
        self._emit: OnEvent = lambda event: None
        self._began = monotonic()

    async def run(self, emit: OnEvent) -> CodeResult:
        self._emit, self._began = emit, monotonic()
        try:
            value, error, line = await self._to_its_end()
            self._failed = self._failed or bool(error)
            await self._settle(self._time_left() + SETTLE_GRACE)
        except asyncio.CancelledError:
            with suppress(asyncio.CancelledError):
                await uninterrupted(self._settle(0))
            emit(CodeFinished(result=self._result(None, "it was cancelled", None)))
            raise
        lost = [call.tool for call in self._calls if is_lost(call)]
        if lost and not error:
            value, error = None, f"whether {names_of(lost)} ran is not known"
        result = self._result(value, error, line)
        emit(CodeFinished(result=result))
        return result

    async def _to_its_end(self) -> tuple[Any, str, int | None]:
        """The program's value, or why it has none, and where."""
        scope = asyncio.timeout(self._timeout)

        def stop(reason: str) -> None:
            self._stopping = reason
            with suppress(RuntimeError):  # it is over already
                scope.reschedule(asyncio.get_running_loop().time())

        try:
            async with scope:
                toolset = await self._prepared()
                return plain(await self._with_another_worker(toolset, stop)), "", None
        except TimeoutError:
            if not scope.expired():
                raise
            reason = self._stopping or f"it was stopped after {self._timeout:g} s"
            return None, reason, self._waits_at
        except Stopped as stopped:
            return None, str(stopped), stopped.line
        except monty.MontyCrashedError as crash:
            return None, f"the sandbox broke down ({shortened(str(crash), 300)})", None
        except monty.MontyRuntimeError as error:
            return None, shortened(str(error), LONGEST_ERROR), line_of(error)

    def _result(self, value: Any, error: str, line: int | None) -> CodeResult:
        seconds = monotonic() - self._began
        return CodeResult(value, error, line, tuple(self._calls), self._printed, seconds)

    def _time_left(self) -> float:
        return max(self._began + self._timeout - monotonic(), 0.0)

    # -- before anything runs -------------------------------------------------------------------

    async def _prepared(self) -> Toolset:
        if len(self._source) > LONGEST_SOURCE:
            raise CodeRefused([f"it is longer than {LONGEST_SOURCE} characters: shorten it"])
        ignored = IGNORED.search(self._source)
        if ignored:
            line = self._source.count("\n", 0, ignored.start()) + 1
            text = "types are always checked: take the comment out and mend what it hides"
            raise CodeRefused([f"line {line}: {text}"])
        toolset = await Toolset.of(self._runtime, self._context, self._policy)
        for name in self._inputs:
            if not is_plain(name) or name in toolset.names:
                raise CodeRefused(
                    [f"the input {name[:80]!r} needs another name: one for a variable"]
                )
        self._tools = toolset.mentioned(self._source)
        return toolset

    def _stubs(self) -> str:
        taken = {*self._tools}
        written = [
            signature(name, tool.input_schema, tool.output_schema, taken=taken)
            for name, tool in self._tools.items()
        ]
        given = [f"{name}: {type_of(value)}\n" for name, value in self._inputs.items()]
        return "".join((HEADER, *given, *written))

    # -- while it runs --------------------------------------------------------------------------

    async def _with_another_worker(self, toolset: Toolset, stop: Callable[[str], None]) -> Any:
        """A worker may have died while it was idle: before a program has done anything, it is
        given to another one, once."""
        try:
            return await self._driven(toolset, stop)
        except monty.MontyCrashedError as crash:
            if crash.timed_out or self._calls or self._printed:
                raise
        return await self._driven(toolset, stop)

    async def _driven(self, toolset: Toolset, stop: Callable[[str], None]) -> Any:
        sandbox = self._runtime.resource(Sandbox)
        async with sandbox.session(self._stubs(), self._limits, stop) as session:
            try:
                snapshot = await session.feed_start(
                    self._source,
                    inputs=self._inputs,
                    external_lookup=dict.fromkeys(self._tools, called_by_name),
                    print_callback=self._printer(),
                )
                while not isinstance(snapshot, monty.MontyComplete):
                    snapshot = await self._answered(snapshot)
                return snapshot.output
            except (monty.MontyTypingError, monty.MontySyntaxError) as error:
                raise CodeRefused(problems(str(error), toolset)) from None
            except monty.MontyConversionError as error:
                raise CodeRefused([f"the inputs are no plain data: {error}"]) from None

    async def _answered(self, snapshot: Suspended) -> monty.AsyncSnapshot:
        match snapshot:
            case monty.AsyncFutureSnapshot():
                return await snapshot.resume(await self._settled(snapshot))
            case monty.AsyncFunctionSnapshot() if snapshot.function_name in PAUSES:
                return await self._paused(snapshot)
            case monty.AsyncFunctionSnapshot() if snapshot.is_os_function:
                return await snapshot.resume_not_handled()
            case monty.AsyncFunctionSnapshot():
                return await snapshot.resume(self._begun(snapshot))
            case _:
                return await snapshot.resume_auto()

    async def _settled(self, snapshot: monty.AsyncFutureSnapshot) -> dict[int, Any]:
        """What came of the first of those that the program waits for."""
        waiting = {call_id: self._tasks[call_id] for call_id in snapshot.pending_call_ids}
        self._waits_at = self._line(snapshot.position)
        await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
        self._waits_at = None
        return {key: self._taken(key) for key, task in waiting.items() if task.done()}

    def _taken(self, call_id: int) -> Settled:
        task = self._tasks.pop(call_id)
        if task.cancelled():
            return raised("the call was cancelled")
        return task.result()

    async def _paused(self, snapshot: monty.AsyncFunctionSnapshot) -> monty.AsyncSnapshot:
        slept: Settled = {"return_value": None}
        pause = asyncio.sleep(min(max(float(snapshot.args[0]), 0.0), self._timeout), slept)
        if snapshot.function_name == "system.sleep":
            return await snapshot.resume(cast("Any", await pause))
        self._tasks[snapshot.call_id] = asyncio.ensure_future(pause)
        self._pauses.add(snapshot.call_id)
        return await snapshot.resume(IN_FUTURE)

    def _begun(self, snapshot: monty.AsyncFunctionSnapshot) -> Any:
        """A call is under way, unless it cannot be made at all."""
        name = snapshot.function_name
        tool = self._tools.get(name)
        if tool is None or snapshot.object_id is not None:
            return raised(f"name {name[:80]!r} is not defined", "NameError")
        if snapshot.args:
            return raised(f"{name} takes keyword arguments only", "TypeError")
        line = self._line(snapshot.position)
        if len(self._calls) >= self._limits.calls:
            raise Stopped(f"it makes more than {self._limits.calls} calls", line)
        try:
            written = json.dumps(snapshot.kwargs, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return raised(f"the arguments of {name} are no plain data", "TypeError")
        self._arguments_left -= len(written)
        if self._arguments_left < 0:
            raise Stopped(f"its arguments have more than {self._limits.arguments} bytes", line)
        arguments = json.loads(written)
        number = len(self._calls)
        call = CodeCall(tool.name, arguments, line, error=NEVER_SENT, repeatable=tool.idempotent)
        self._calls.append(call)
        self._tasks[snapshot.call_id] = asyncio.ensure_future(self._call(number, tool, arguments))
        return IN_FUTURE

    async def _call(self, number: int, tool: Tool, arguments: dict[str, Any]) -> Settled:
        async with self._slots:
            if self._failed or not self._time_left():
                return raised(NEVER_SENT)
            began = monotonic()
            self._note(number, began, Outcome.UNKNOWN, CANCELLED)  # unless it ends
            try:
                result = await self._sent(tool, arguments)
            except Exception as error:
                said = shortened(str(error), LONGEST_ERROR) or type(error).__name__
                outcome = OUTCOMES[getattr(error, "delivery", Delivery.UNKNOWN)]
            except asyncio.CancelledError:
                self._note(number, began, Outcome.UNKNOWN, CANCELLED)
                raise
            else:
                said, outcome = why_unusable(result), Outcome.RAN
                if not said:
                    self._note(number, began, outcome)
                    return {"return_value": data_of(result)}
            call = self._note(number, began, outcome, said)
            if is_lost(call):
                self._failed = True
                raise Stopped(call.error, call.line)
            return raised(call.error)

    def _note(self, number: int, began: float, outcome: Outcome, error: str = "") -> CodeCall:
        call = self._calls[number]
        seconds = monotonic() - began
        noted = dataclasses.replace(call, outcome=outcome, error=error, seconds=seconds)
        self._calls[number] = noted
        return noted

    async def _sent(self, tool: Tool, arguments: dict[str, Any]) -> CallResult:
        options: dict[str, Any] = {**self._options, "context": self._context}
        options["timeout"] = max(self._time_left(), 0.001)
        if not self._watched:
            return await self._runtime.call(tool, arguments, **options)
        async with self._runtime.stream(tool, arguments, **options) as call:
            async for event in call:
                self._emit(event)
            return await call.result()

    def _printer(self) -> Callable[[str, str], None]:
        """The sandbox prints from a thread of its own."""
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
            kept += "\n… more was printed, and dropped"
        self._printed += kept
        self._emit(Printed(text=kept))

    def _line(self, position: monty.SourceRange) -> int | None:
        if position.filename != PROGRAM_FILE:
            return None
        return self._source.encode()[: position.start].count(b"\n") + 1

    async def _settle(self, patience: float) -> None:
        """Wait for the calls that are still under way; cancel those that take too long."""
        tasks = self._tasks.values()
        for call_id in self._pauses & self._tasks.keys():
            self._tasks[call_id].cancel()
        if tasks and patience > 0:
            await asyncio.wait(tasks, timeout=patience)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_GRACE)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()  # noted in its call


# --- from one world to the other -----------------------------------------------------------------


def called_by_name() -> None:
    """Stands for a tool whose name a program uses as a value. Calls of it are ours to answer."""


def raised(message: str, kind: str = "RuntimeError") -> Settled:
    return {"exc_type": kind, "message": message}


def line_of(error: monty.MontyRuntimeError) -> int | None:
    lines = [frame.line for frame in error.traceback() if frame.filename == PROGRAM_FILE]
    return lines[-1] if lines else None


def problems(text: str, toolset: Toolset) -> list[str]:
    """What the type checker says, one line each. About a tool that cannot be called: why."""
    parts = PROBLEM.split(text.strip())
    found: list[str] = []
    for line, said in zip(parts[1:MOST_LINES:2], parts[2:MOST_LINES:2], strict=True):
        undefined = UNDEFINED.search(said)
        known = toolset.about(undefined[1]) if undefined else ""
        found.append(f"line {line}: {shortened(known or ' '.join(said.split()), LONGEST_PROBLEM)}")
    return found or [shortened(text, LONGEST_ERROR)]


def why_unusable(result: CallResult) -> str:
    """Why a program gets no value of a result; empty if it does."""
    if result.is_error:
        return shortened(result.text, LONGEST_ERROR) or "the tool failed and gave no reason"
    if MARK in result.meta:  # no part is to be taken for the whole
        return "its result is larger than its server's result_limit: ask the tool for less"
    return ""


def data_of(result: CallResult) -> Any:
    """What a program gets of a result: its structured content; or else its text, read as JSON if
    that is an object or a list; or else, if not all of it is text, its blocks as they are."""
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


def plain(value: Any) -> Any:
    """A program's value as data that JSON has words for; whatever else, as its text."""
    left = MOST_VALUES

    def walk(part: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or depth > DEEPEST_VALUE:
            raise Stopped("its value is too large: return less")
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
                return shortened(str(part), LONGEST_ERROR)

    return walk(value, 0)


def type_of(value: Any) -> str:
    match value:
        case bool() | int() | float() | str():
            return type(value).__name__
        case list():
            return "list[Any]"
        case dict():
            return "dict[str, Any]"
        case _:
            return "Any"
