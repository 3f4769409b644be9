"""The judged process's end of the line to the world: orders out, answers in, journals read."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chaos.scene import SERVERS
from chaos.schedule import Event

PATIENCE = 30.0
"""For the world to do as it is told, on a machine that does other things as well."""
_ROOT = Path(__file__).resolve().parent.parent


class World:
    """The other process. Lives as long as its block."""

    def __init__(self, folder: Path) -> None:
        self.specs: dict[str, dict[str, Any]] = {}
        self._folder = folder
        self._child: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._asked = 0

    async def __aenter__(self) -> Self:
        path = os.pathsep.join((str(_ROOT), str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")))
        self._child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "chaos.world", str(self._folder)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        assert self._child.stdout is not None
        async with asyncio.timeout(PATIENCE):
            self.specs = json.loads(await self._child.stdout.readline())
        self._reader = asyncio.create_task(self._read(self._child.stdout))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._child.wait()
        except TimeoutError:
            self._child.kill()
            await self._child.wait()
        if self._reader is not None:
            await self._reader

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    async def befall(self, event: Event) -> int:
        """Bring this trouble about; returns how much it hit."""
        facts = {"kind": event.kind, "target": event.target}
        more = {"seconds": event.seconds, "amount": event.amount}
        return await self._ask(order="befall", **facts, **more)

    async def holdings(self) -> dict[str, int]:
        """What each server still has of us: connections, or processes."""
        return await self._ask(order="holdings")

    async def _ask(self, **order: Any) -> Any:
        assert self._child is not None
        assert self._child.stdin is not None
        self._asked += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._asked] = answer
        self._child.stdin.write(json.dumps({**order, "number": self._asked}).encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            return await answer

    async def _read(self, lines: asyncio.StreamReader) -> None:
        while raw := await lines.readline():
            said: dict[str, Any] = json.loads(raw)
            answer = self._waiting.pop(said["number"])
            if answer.done():
                continue
            if "error" in said:
                answer.set_exception(RuntimeError(said["error"]))
            else:
                answer.set_result(said["answer"])
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(RuntimeError("the world has ended"))


class Journals:
    """What the servers wrote down, each line once. Reads no half line."""

    def __init__(self, folder: Path) -> None:
        self._read = {folder / server.name: 0 for server in SERVERS}

    def news(self) -> Iterator[tuple[str, list[Any]]]:
        """Names of servers, with what they wrote since the last time."""
        for path, position in self._read.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(position)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = position + len(whole)
            for line in whole.splitlines():
                yield path.name, json.loads(line)
