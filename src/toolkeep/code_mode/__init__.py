"""Code mode: a short Python program calls tools, in a sandbox, and says what became of each call.

    result = await run_code(runtime, "await shop__find(query='lamp')")

A program is written by a model (`code_tools`) or a person (`run_code`, `stream_code`). Each tool is
an async function, by its name for models. The program is type-checked against the tools' schemas
before it runs; it has no files, no network and no imports beyond the sandbox's own. Whatever it
calls goes through the runtime: same permissions, identity, deadlines and retries as any call.

- A call begins when its function is called; `await` gives its result. So
  `asyncio.gather(a(), b())` runs both at once.
- A program may call tools that are marked read-only, and those that `allow` names.
- A run ends when the program has ended and each call that it began has ended.
- A call whose outcome is unknown ends the program, unless its tool may be repeated: no program can
  send such a call again.

The sandbox is pydantic-monty, an interpreter in Rust in worker processes: `toolkeep[code]`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Self

from toolkeep._rules.unread import Unread, size_of_report
from toolkeep.code_mode._account import (
    CodeCall,
    CodeEvent,
    CodeFailed,
    CodeFinished,
    CodeRefused,
    CodeResult,
    Outcome,
    Printed,
)
from toolkeep.code_mode._program import TIMEOUT, CodeLimits, OnEvent, Policy, Program
from toolkeep.code_mode._tools import code_tools
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
    """Check a program, run it, and say what became of it and of each of its calls.

    `tools`: patterns of the tools that it may use; None: all that the context may see. `allow`:
    patterns of those that it may call although they are not marked read-only. `inputs`: plain data
    that it finds as variables. `timeout`: seconds for everything.

    Raises `CodeRefused` before anything runs. After that, a failure is in the result. When it is
    cancelled, the calls under way are cancelled; `stream_code` tells what became of them.
    """
    policy = Policy.of(tools, allow)
    program = Program(runtime, source, context, policy, inputs, timeout, limits)
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
    """Run a program and watch it: `async with stream_code(…) as run`, then iterate it.

    It gives the events of the program's calls (`Started`, `Progress`, …), `Printed`, and at last
    `CodeFinished`. The arguments are those of `run_code`.
    """
    policy = Policy.of(tools, allow)
    program = Program(runtime, source, context, policy, inputs, timeout, limits, watched=True)
    return CodeRun(program.run)


class CodeRun:
    """A run that is watched: made by `stream_code`, entered once, iterated by one task.

    Leaving the block early cancels the run; `result` says then what was under way. Iterating is
    optional: `result()` alone works too. Of progress and log lines no more than 8 MB wait to be
    read: then the oldest are dropped.
    """

    def __init__(self, run: Callable[[OnEvent], Awaitable[CodeResult]]) -> None:
        self._run = run
        self._task: asyncio.Task[CodeResult] | None = None
        self._events = Unread[Event](size_of_report)
        self._news = asyncio.Event()
        self._result: CodeResult | None = None

    async def result(self) -> CodeResult:
        """The result, as soon as there is one; raises `CodeRefused` if the program was refused."""
        task = self._running()
        await asyncio.wait((task,))
        if task.cancelled():
            return self._result or CodeResult(error="it was cancelled before it began")
        return task.result()

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("a run is entered once; call stream_code again for another")
        self._task = asyncio.ensure_future(self._run(self._receive))
        self._task.add_done_callback(lambda _: self._news.set())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task = self._running()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # raised by `result`; never "never retrieved"

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        task = self._running()
        while not self._events:
            if task.done():
                if not task.cancelled() and (refused := task.exception()) is not None:
                    raise refused
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._events.popleft()

    def _receive(self, event: Event) -> None:
        if isinstance(event, CodeFinished):
            self._result = event.result
        self._events.append(event)
        self._news.set()

    def _running(self) -> asyncio.Task[CodeResult]:
        if self._task is None:
            raise RuntimeError("enter it first: async with stream_code(…) as run")
        return self._task
