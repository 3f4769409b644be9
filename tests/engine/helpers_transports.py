"""What the matrices over stdio, HTTP+SSE and in-process share: one server, whatever carries it.

Each transport is served by something that can be asked the same questions (`Served`): who ran, who
was given up, how often it was opened; and that can be told to die under a call. Behind stdio and
HTTP+SSE stands the test kit, in this process the SDK's `MCPServer`.
"""

import asyncio
import os
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import anyio
import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations

from tests.engine.helpers_tasks import HANDSHAKE, Era, closing, until
from tests.engine.troubles import ALWAYS, NEVER, OWN_TOOLS
from toolkeep import Client
from toolkeep.testing import Behaviour, Rule, ScriptedServer
from toolkeep.testing._stdio import is_alive
from toolkeep.testing.scripted import ScriptedProgram

When = Literal["on reading", "after the run", "in the answer"]
_DROPS: dict[When, Any] = {
    "on reading": "after_body",
    "after the run": "after_run",
    "in the answer": "mid_answer",
}


@dataclass(frozen=True)
class Way:
    """One transport in one era."""

    transport: Literal["stdio", "sse", "in-process"]
    era: Era

    def __str__(self) -> str:
        return f"{self.transport} {self.era}"


STDIO = (Way("stdio", "legacy"), Way("stdio", "modern"))
SSE = Way("sse", "legacy")
IN_PROCESS = (Way("in-process", "legacy"), Way("in-process", "modern"))
WAYS = (*STDIO, SSE, *IN_PROCESS)
every_way = pytest.mark.parametrize("way", WAYS, ids=str)
over_stdio = pytest.mark.parametrize("way", STDIO, ids=str)
over_kit = pytest.mark.parametrize("way", [*STDIO, SSE], ids=str)


class Served(Protocol):
    """What the matrices ask of a server."""

    @property
    def spec(self) -> dict[str, Any]: ...

    async def arrived(self, tool: str, at_least: int = 0) -> int:
        """How many calls of a tool have come; waits for so many."""
        ...

    async def moments(self, tool: str) -> list[float]:
        """When its calls came, in seconds."""
        ...

    async def ledger(self) -> dict[str, int]: ...

    async def executions(self, key: str) -> int: ...

    async def given_up(self, at_least: int = 0) -> list[str | None]:
        """The tools whose calls the client has given up; waits for so many."""
        ...

    async def openings(self) -> int:
        """How many connections were opened and agreed on."""
        ...

    async def doom(self, tool: str, when: When, *, times: int | None = 1) -> None:
        """Die at the next calls of a tool."""
        ...

    async def die(self) -> None:
        """Now, under whatever runs."""
        ...


class Kit:
    """A scripted server over stdio or HTTP+SSE."""

    def __init__(self, server: ScriptedServer, way: Way) -> None:
        self.server, self._way = server, way

    @property
    def spec(self) -> dict[str, Any]:
        if isinstance(self.server, ScriptedProgram):
            return dict(self.server.spec)
        return {"url": self.server.url, "transport": "sse"}

    async def arrived(self, tool: str, at_least: int = 0) -> int:
        return len(await self.server.requests(tool=tool, at_least=at_least))

    async def moments(self, tool: str) -> list[float]:
        return [record.at for record in await self.server.requests(tool=tool)]

    async def ledger(self) -> dict[str, int]:
        return await self.server.ledger()

    async def executions(self, key: str) -> int:
        return await self.server.executions(key)

    async def given_up(self, at_least: int = 0) -> list[str | None]:
        return [one.tool for one in await self.server.cancelled(at_least=at_least)]

    async def openings(self) -> int:
        return len(await self.server.requests(HANDSHAKE[self._way.era]))

    async def doom(self, tool: str, when: When, *, times: int | None = 1) -> None:
        await self.server.script(Rule(tool=tool, times=times, do=Behaviour(drop=_DROPS[when])))

    async def die(self) -> None:
        if isinstance(self.server, ScriptedProgram):
            self.server.kill()
        else:
            await self.server.break_streams(reset=True)


class Workshop:
    """The kit's tools on the SDK's own server in this process, with a ledger beside it."""

    def __init__(self) -> None:
        self._ledger: Counter[str] = Counter()
        self._calls: dict[str, list[float]] = defaultdict(list)
        self._given_up: list[str | None] = []
        self._doomed: dict[str, tuple[When, int | None]] = {}
        self._lives = 0
        self._fate = asyncio.Event()
        self._server = MCPServer("kit", lifespan=self._life)
        for name, hints in _WORKSHOP.items():
            self._server.add_tool(self._tool(name), name=name, annotations=hints)
        for work in (self.echo, self.slow, self.steps, self.fail):
            self._server.add_tool(work)

    @property
    def spec(self) -> dict[str, Any]:
        return {"server": self._server}

    # -- its tools ------------------------------------------------------------------------------

    def _tool(self, name: str) -> Any:
        async def record(key: str = name) -> str:
            async with self._at_work(name, key):
                return "recorded"

        return record

    async def echo(self, text: str, key: str = "echo") -> str:
        async with self._at_work("echo", key):
            return text

    async def slow(self, seconds: float, key: str = "slow") -> str:
        async with self._at_work("slow", key):
            await anyio.sleep(seconds)
            return "done"

    async def steps(self, ctx: Context, count: int, gap: float = 0.0, key: str = "steps") -> str:
        async with self._at_work("steps", key):
            for step in range(1, count + 1):
                await ctx.report_progress(step, count, f"step {step} of {count}")
                await anyio.sleep(gap)
            return f"{count} steps"

    async def fail(self, message: str, key: str = "fail") -> str:
        async with self._at_work("fail", key):
            raise LookupError(message)

    @asynccontextmanager
    async def _at_work(self, tool: str, key: str) -> AsyncIterator[None]:
        """Write down who runs; be cancelled where somebody wants that."""
        self._calls[tool].append(time.monotonic())
        when, times = self._doomed.get(tool, (None, 0))
        if when and times is not None:
            self._doomed[tool] = (when, times - 1)
        doomed = when is not None and times != 0
        self._ledger[key] += not (doomed and when == "on reading")
        try:
            if doomed:
                self._fate.set()
                await anyio.sleep_forever()
            yield
        except asyncio.CancelledError:
            if not self._fate.is_set():
                self._given_up.append(tool)
            raise

    @asynccontextmanager
    async def _life(self, server: Any) -> AsyncIterator[None]:
        self._lives += 1
        self._fate.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._fail_when_told)
            yield
            tasks.cancel_scope.cancel()

    async def _fail_when_told(self) -> None:
        await self._fate.wait()
        raise ZeroDivisionError

    # -- what it is asked -----------------------------------------------------------------------

    async def arrived(self, tool: str, at_least: int = 0) -> int:
        await until(lambda: len(self._calls[tool]) >= at_least, f"calls of {tool}")
        return len(self._calls[tool])

    async def moments(self, tool: str) -> list[float]:
        return list(self._calls[tool])

    async def ledger(self) -> dict[str, int]:
        return {key: runs for key, runs in self._ledger.items() if runs}

    async def executions(self, key: str) -> int:
        return self._ledger[key]

    async def given_up(self, at_least: int = 0) -> list[str | None]:
        await until(lambda: len(self._given_up) >= at_least, "calls given up")
        return list(self._given_up)

    async def openings(self) -> int:
        return self._lives

    async def doom(self, tool: str, when: When, *, times: int | None = 1) -> None:
        self._doomed[tool] = (when, times)

    async def die(self) -> None:
        self._fate.set()


_WORKSHOP = {
    "record": None,
    "record_read_only": ToolAnnotations(read_only_hint=True),
    "record_idempotent": ToolAnnotations(idempotent_hint=True, read_only_hint=False),
    ALWAYS: None,
    NEVER: ToolAnnotations(read_only_hint=True),
}


@asynccontextmanager
async def served(way: Way, **options: Any) -> AsyncIterator[Any]:
    """A server of this kind. `options` are the kit's."""
    options = {"tools": OWN_TOOLS, **options}
    match way.transport:
        case "in-process":
            yield Workshop()
        case "stdio":
            async with ScriptedServer.stdio(era=way.era, **options) as program:
                yield Kit(program, way)
        case "sse":
            async with ScriptedServer.local(era="legacy", transport="sse", **options) as server:
                yield Kit(server, way)


def client_of(server: Served, way: Way, **spec: Any) -> Client:
    return Client({"name": "kit", "mode": way.era, **server.spec, **spec})


@asynccontextmanager
async def serving(
    way: Way, spec: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Any, Client]]:
    """A server, and an unopened client of it that is closed at the end."""
    async with (
        served(way, **options) as server,
        closing(client_of(server, way, **(spec or {}))) as client,
    ):
        yield server, client


def wait_in_place(process: int) -> None:
    """Wait for the end of a process while the event loop stands still and can notice nothing."""
    deadline = time.monotonic() + 5.0
    while is_alive(process) or _threads(process) > 1:
        if time.monotonic() > deadline:
            pytest.fail(f"process {process} does not end")
        time.sleep(0.002)


def _threads(process: int) -> int:
    """A zombie's other threads may still be on their way, and hold its pipes open."""
    try:
        return len(os.listdir(f"/proc/{process}/task"))
    except OSError:
        return 0


async def ended(task: "asyncio.Task[Any]", within: float = 5.0) -> None:
    """Wait for a task without cancelling it, and without caring how it ends."""
    await asyncio.wait((task,), timeout=within)
    assert task.done(), "still running"
