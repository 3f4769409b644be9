"""The kit's side of a driven client: its process, what it is asked, what its caller was told.

No wait here is without a bound, and a process that did not end its scenario well is never used
again: a client that hangs, or that cancels whoever calls it, spoils nothing but its own verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from toolkeep.testing.script import JsonObject

PROGRAM = Path(__file__).with_name("_process.py")
STARTING = 120.0
"""Seconds for a process to import its client: some import half a cloud."""
ENDING = 3.0
_LONGEST_LINE = 1 << 26
_TAIL = 2000
"""Characters of stderr that are kept, for a process that never gets ready."""

_ENDED: JsonObject = {"error": "the process ended", "outcome": None}


def environment() -> dict[str, str]:
    """That of this process, with the checkout on the path: an adapter's file may import this
    package."""
    path = [os.environ.get("PYTHONPATH", ""), str(PROGRAM.parents[2])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


What = Literal["answer", "error", "cancelled", "nothing", "unsupported"]


@dataclass(frozen=True, slots=True)
class Told:
    """What the caller was told, and when."""

    what: What
    """`cancelled`: the caller's task was cancelled. `nothing`: the call went on and on."""
    text: str = ""
    """The answer, the error, or why it is unsupported."""
    failed: bool = False
    """Whether the tool says that it failed."""
    tools: tuple[str, ...] = ()
    outcome: str | None = None
    """What the error says of the call: `ran`, `not run`, `unknown`."""
    seconds: float = 0.0
    steps: tuple[tuple[float, float], ...] = ()
    """Progress, and how many seconds before the end it was told."""

    @property
    def good(self) -> bool:
        return self.what == "answer" and not self.failed

    def __str__(self) -> str:
        match self.what:
            case "answer":
                return f"{'a tool error' if self.failed else 'an answer'}: {self.text[:80]!r}"
            case "error":
                return self.text
            case "cancelled":
                return "the caller's own task was cancelled"
            case "nothing":
                return f"nothing within {self.seconds:.0f} s"
            case "unsupported":
                return f"not supported: {self.text}"


@dataclass(slots=True)
class Turn:
    """One thing that the client was asked to do, under way or done."""

    number: int
    began: float
    answer: asyncio.Future[JsonObject]
    steps: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    cancelled: float | None = None
    """When the kit asked for it to be cancelled."""

    async def told(self, within: float) -> Told:
        """What came of it; counted from its beginning, or from when it was cancelled."""
        begun = self.cancelled or self.began
        left = max(0.0, within - (time.monotonic() - begun))
        done, _ = await asyncio.wait((self.answer,), timeout=left)
        ended = time.monotonic()
        if not done:
            return Told("nothing", seconds=ended - begun)
        steps = tuple((value, ended - at) for value, at in self.steps)
        return _told(self.answer.result(), ended - begun, steps)


def _told(said: JsonObject, seconds: float, steps: tuple[tuple[float, float], ...]) -> Told:
    if "unsupported" in said:
        return Told("unsupported", said["unsupported"])
    if "cancelled" in said:
        return Told("cancelled", seconds=seconds)
    if "error" in said:
        return Told("error", said["error"], outcome=said["outcome"], seconds=seconds)
    return Told(
        "answer",
        said.get("text", ""),
        failed=said.get("failed", False),
        tools=tuple(said.get("tools", ())),
        seconds=seconds,
        steps=steps,
    )


class ClientProcess:
    """The process of a driven client. Serves scenario after scenario until it is closed."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._numbers = itertools.count(1)
        self._turns: dict[int, Turn] = {}
        self._ready: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._words = ""
        self._reading = (
            asyncio.create_task(self._read()),
            asyncio.create_task(self._listen()),
        )

    @classmethod
    async def start(cls, adapter: str, python: str = sys.executable) -> ClientProcess:
        """Raises RuntimeError if the adapter cannot be loaded there."""
        started = cls(
            await asyncio.create_subprocess_exec(
                *(python, str(PROGRAM), adapter),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=environment(),
                limit=_LONGEST_LINE,
            )
        )
        try:
            async with asyncio.timeout(STARTING):
                await started._ready
        except BaseException:
            await started.close()
            raise
        return started

    @property
    def facts(self) -> JsonObject:
        return self._ready.result()

    def ask(self, do: str, **details: Any) -> Turn:
        number = next(self._numbers)
        answer: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        turn = self._turns[number] = Turn(number, time.monotonic(), answer)
        if self._reading[0].done():
            answer.set_result(_ENDED)
        self._send({"do": do, "number": number, **details})
        return turn

    def cancel(self, turn: Turn) -> None:
        turn.cancelled = time.monotonic()
        self._send({"do": "cancel", "number": turn.number})

    async def end(self) -> bool:
        """End the scenario; whether the process is fit for another one."""
        self._ended.clear()
        self._send({"do": "end", "number": 0})
        try:
            async with asyncio.timeout(ENDING):
                await self._ended.wait()
        except TimeoutError:
            return False
        return self._process.returncode is None

    async def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await asyncio.wait(self._reading)
        await self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while raw := await self._process.stdout.readline():
            self._take(json.loads(raw))
        for turn in self._turns.values():
            if not turn.answer.done():
                turn.answer.set_result(_ENDED)
        if not self._ready.done():
            await asyncio.wait(self._reading[1:])
            self._ready.set_exception(RuntimeError(f"no client: {self._words.strip()}"))
        self._ended.set()

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while raw := await self._process.stderr.read(65536):
            self._words = (self._words + raw.decode("utf-8", "replace"))[-_TAIL:]

    def _take(self, said: JsonObject) -> None:
        if "ready" in said:
            self._ready.set_result(said["ready"])
        elif "ended" in said:
            self._turns.clear()
            self._ended.set()
        elif (turn := self._turns.get(said["number"])) is not None:
            if "progress" in said:
                turn.steps.append((said["progress"], time.monotonic()))
            elif not turn.answer.done():
                turn.answer.set_result(said)
