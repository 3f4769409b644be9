"""Where a scripted server lives: in this event loop, or in a process of its own.

Both answer the same questions (`ask`), so that a test reads the same with either.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from toolkeep.testing._engine import Engine
from toolkeep.testing._exchange import converse
from toolkeep.testing._options import Settings
from toolkeep.testing._telling import LASTING, tell
from toolkeep.testing.script import JsonObject

PATIENCE = 15.0
_ROOT = str(Path(__file__).resolve().parents[2])


class Home(Protocol):
    port: int

    @property
    def pid(self) -> int: ...
    async def open(self) -> None: ...
    async def ask(self, question: str, **details: Any) -> Any: ...
    async def restart(self) -> None: ...
    async def close(self) -> None: ...


@dataclass(slots=True)
class Past:
    """What the processes before this one have seen."""

    requests: list[JsonObject] = field(default_factory=list[JsonObject])
    ledger: dict[str, int] = field(default_factory=dict[str, int])
    cancelled: list[JsonObject] = field(default_factory=list[JsonObject])
    accepted: int = 0
    sequence: int = 0


class LocalHome:
    """The server in the caller's event loop."""

    def __init__(self, settings: Settings) -> None:
        self._engine = Engine(settings, converse)
        self.port = 0

    @property
    def pid(self) -> int:
        raise TypeError("a local server has no process of its own; use spawn")

    async def open(self) -> None:
        await self._engine.listen()
        self.port = self._engine.port

    async def ask(self, question: str, **details: Any) -> Any:
        return tell(self._engine, question, details)

    async def restart(self) -> None:
        await self._engine.restart()

    async def close(self) -> None:
        await self._engine.hang_up()


class SpawnedHome:
    """The server in a child process, which ends when its stdin does."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self.port = settings.port
        self._asked = 0
        self._kept: dict[tuple[str, str], JsonObject] = {}
        self._past = Past()

    @property
    def pid(self) -> int:
        if self._child is None:
            raise RuntimeError("the scripted server is not running")
        return self._child.pid

    async def open(self) -> None:
        path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
        self._child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "toolkeep.testing.server"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            limit=1 << 30,
            start_new_session=True,
        )
        past = self._past
        first = {"sequence": past.sequence, "accepted": past.accepted}
        settings = {**self._settings.to_json(), "port": self.port}
        kept = [(question, details) for (question, _), details in self._kept.items()]
        start = {"settings": settings, "first": first, "kept": kept}
        self.port = await self._exchange(start)

    async def ask(self, question: str, **details: Any) -> Any:
        answer = await self._exchange({"question": question, "details": details})
        if question in LASTING:
            self._kept[question, details.get("uri", "")] = details
        return self._merged(question, details, answer)

    async def _exchange(self, line: JsonObject) -> Any:
        child = self._child
        if child is None or child.stdin is None or child.stdout is None:
            raise RuntimeError("the scripted server is not running")
        async with self._turn, asyncio.timeout(PATIENCE):
            self._asked += 1
            child.stdin.write(json.dumps({**line, "number": self._asked}).encode() + b"\n")
            await child.stdin.drain()
            answer = await self._answer(child.stdout)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]

    async def _answer(self, lines: asyncio.StreamReader) -> JsonObject:
        """The answer to the last question; those to questions whose asker was cancelled are
        skipped.
        """
        while raw := await lines.readline():
            answer: JsonObject = json.loads(raw)
            if answer["number"] == self._asked:
                return answer
        raise RuntimeError("the scripted server's process has ended")

    def _merged(self, question: str, details: JsonObject, answer: Any) -> Any:
        past = self._past
        if question == "clear":
            past.requests = []
        if question == "arrived":
            return answer + sum(_is(raw, **details) for raw in past.requests)
        if question == "gave_up":
            return answer + len(past.cancelled)
        if question == "ledger":
            return _summed(past.ledger, answer)
        if question == "snapshot":
            return {
                **answer,
                "requests": past.requests + answer["requests"],
                "ledger": _summed(past.ledger, answer["ledger"]),
                "cancelled": past.cancelled + answer["cancelled"],
            }
        return answer

    async def restart(self) -> None:
        self._past = Past(**await self.ask("snapshot"))
        await self._end(kill=True)
        await self.open()

    async def close(self) -> None:
        await self._end(kill=False)

    async def _end(self, *, kill: bool) -> None:
        child, self._child = self._child, None
        if child is None or child.stdin is None or child.stdout is None:
            return
        if kill and child.returncode is None:
            child.kill()
        child.stdin.close()
        try:
            async with asyncio.timeout(PATIENCE / 3):
                await child.stdout.read()
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.stdout.read()
            await child.wait()


def _is(raw: JsonObject, method: str | None, tool: str | None) -> bool:
    return method in (None, raw["rpc_method"]) and tool in (None, raw["tool"])


def _summed(one: JsonObject, other: JsonObject) -> JsonObject:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}
