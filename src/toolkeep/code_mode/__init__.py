"""Code mode: run a short Python program that calls tools, in a sandbox, and report each call.

    result = await run_code(runtime, "await shop__find(query='lamp')")

A program comes from a model (`code_tools`) or from you (`run_code`, `stream_code`). Each tool is an
async function, under its name for models. The program is type-checked against the tools' schemas
before it runs; it has no files, no network and no imports beyond the sandbox's own. Its calls go
through the runtime: same permissions, identity, deadlines and retries as any call.

- A call begins when its function is called; `await` returns its result. So
  `asyncio.gather(a(), b())` runs both concurrently.
- A program may call tools that are marked read-only, and those that `allow` names.
- A run ends when the program and all calls that it began have ended.
- A call whose outcome is unknown ends the program, unless its tool may be repeated: a program must
  not be able to send such a call again.

The sandbox is pydantic-monty, an interpreter in Rust in worker processes: `toolkeep[code]`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Self

from toolkeep._client.event_queue import EventQueue
from toolkeep.code_mode._access import Policy
from toolkeep.code_mode._model_tools import code_tools
from toolkeep.code_mode._program import TIMEOUT, CodeLimits, OnEvent, ProgramRun
from toolkeep.code_mode._report import (
    CodeCall,
    CodeEvent,
    CodeFailed,
    CodeFinished,
    CodeRefused,
    CodeResult,
    Outcome,
    Printed,
)
from toolkeep.context import CallContext
from toolkeep.events import Event
from toolkeep.runtime import Runtime

__all__ = [
    "CodeCall",
    "CodeEvent",
    "CodeFailed",
    "CodeFinished",
    "CodeLimits",
    "CodeRefused",
    "CodeResult",
    "CodeRun",
    "Outcome",
    "Printed",
    "code_tools",
    "run_code",
    "stream_code",
]


async def run_code(
    runtime: Runtime,
    source: str,
    *,
    context: CallContext | None = None,
    tools: Collection[str] | None = None,
    allow: Collection[str] = (),
    inputs: Mapping[str, Any] | None = None,
    timeout: float = TIMEOUT,
    limits: CodeLimits | None = None,
) -> CodeResult:
    """Check a program, run it, and report its result and each of its calls.

    `tools`: patterns of the tools that it may use; None for all that the context may see. `allow`:
    patterns of tools that it may call although they are not marked read-only. `inputs`: plain data
    that the program sees as variables. `timeout`: seconds for the whole run.

    Raises `CodeRefused` before anything runs. Later failures are in the result. Cancelling it
    cancels its running calls; `stream_code` reports their outcomes.
    """
    policy = Policy.of(tools, allow)
    program = ProgramRun(runtime, source, context, policy, inputs, timeout, limits)
    return await program.run(lambda event: None)


def stream_code(
    runtime: Runtime,
    source: str,
    *,
    context: CallContext | None = None,
    tools: Collection[str] | None = None,
    allow: Collection[str] = (),
    inputs: Mapping[str, Any] | None = None,
    timeout: float = TIMEOUT,
    limits: CodeLimits | None = None,
) -> CodeRun:
    """Run a program and stream its events: `async with stream_code(…) as run`, then iterate it.

    Yields the events of the program's calls (`Started`, `Progress`, …), `Printed`, and finally
    `CodeFinished`. The arguments are those of `run_code`.
    """
    policy = Policy.of(tools, allow)
    program = ProgramRun(
        runtime, source, context, policy, inputs, timeout, limits, with_events=True
    )
    return CodeRun(program.run)


class CodeRun:
    """A run that streams its events: made by `stream_code`, entered once, iterated by one task.

    Leaving the block early cancels the run; `result` then reports the calls that were running.
    Iterating is optional: `result()` alone works too. At most 8 MB of progress and log events are
    buffered; then the oldest are dropped.
    """

    def __init__(self, run: Callable[[OnEvent], Awaitable[CodeResult]]) -> None:
        self._run = run
        self._queue = EventQueue[Event, CodeResult](self._report, what="run", made_by="stream_code")
        self._result: CodeResult | None = None

    def __repr__(self) -> str:
        return f"<CodeRun, {self._queue}>"

    async def result(self) -> CodeResult:
        """Wait for the result. Raises `CodeRefused` if the program was refused."""
        task = await self._queue.wait()
        if task.cancelled():
            return self._result or CodeResult(error="it was cancelled before it began")
        return task.result()

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

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        event = await self._queue.next_event()
        if event is not None:
            return event
        task = self._queue.task
        if not task.cancelled() and (refused := task.exception()) is not None:
            raise refused
        raise StopAsyncIteration

    async def _report(self, emit: OnEvent) -> CodeResult:
        def on_event(event: Event) -> None:
            if isinstance(event, CodeFinished):
                self._result = event.result
            emit(event)

        return await self._run(on_event)
