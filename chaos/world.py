"""`python -m chaos.world FOLDER`: the servers with their proxies, in a process that is not judged.

Speaks JSON lines with `chaos.link` on stdin and stdout: first the servers' specs, then one answer
for each order, in any order. Ends when its stdin does, and all that it started ends with it. Each
server keeps its journal in the folder, under its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

from chaos.faults import OF_ONE, TROUBLES
from chaos.scene import PLACES, TOOLS, Server
from toolkeep.testing import Behaviour, FaultProxy, Rule, ScriptedServer
from toolkeep.testing.scripted import ScriptedProgram


class Place:
    """One address of a server, and what stands in front of it. One trouble at a time."""

    def __init__(self, server: ScriptedServer, proxy: FaultProxy | None) -> None:
        self.server, self.proxy = server, proxy
        self._turn = asyncio.Lock()

    @property
    def spec(self) -> dict[str, Any]:
        if self.proxy is None:
            return self.server.spec
        path = self.server.url.rpartition("/")[2]
        return {**self.server.spec, "url": self.proxy.url(f"/{path}"), "proxy": ""}

    async def befall(self, kind: str, seconds: float, amount: int) -> int:
        """Returns how much was hit: connections, processes, or just one."""
        async with self._turn:
            if isinstance(self.server, ScriptedProgram):
                return await _upset_program(self.server, kind, seconds, amount)
            assert self.proxy is not None
            if kind == "sessions stranded":
                return await _strand(self.server, seconds)
            if TROUBLES[kind].longest:
                return await _disturb(self.proxy, kind, seconds, amount)
            return await _upset(self.server, self.proxy, kind)

    async def holds(self) -> int:
        """Connections or processes that clients still have here."""
        if isinstance(self.server, ScriptedProgram):
            return len(await self.server.processes())
        assert self.proxy is not None
        return self.proxy.open_connections


async def _upset(server: ScriptedServer, proxy: FaultProxy, kind: str) -> int:
    match kind:
        case "restart":
            await server.restart()
        case "sessions forgotten":
            await server.forget_sessions()
        case "connections reset":
            return proxy.kill_connections(reset=True)
        case "connections closed":
            return proxy.kill_connections(reset=False)
        case "streams broken":
            return await server.break_streams()
        case "streams that end at once":
            body, kind = "retry: 0\n\n", "text/event-stream"
            ends = Behaviour(run=False, body=body, content_type=kind)
            await server.script(Rule(http="GET", times=3, do=ends))
            return await server.break_streams()
        case "list changed":
            return await server.notify("notifications/tools/list_changed", listeners=0)
        case _:
            raise ValueError(kind)
    return 1


async def _strand(server: ScriptedServer, seconds: float) -> int:
    """The instance of the sessions there are is gone; later the balancer knows it, too."""
    await server.strand_sessions()
    await asyncio.sleep(seconds)
    await server.forget_sessions()
    return 1


async def _disturb(proxy: FaultProxy, kind: str, seconds: float, amount: int) -> int:
    before = proxy.accepted
    hit = proxy.open_connections
    match kind:
        case "deaf":
            proxy.stall()
        case "refusing":
            proxy.refuse()
            proxy.kill_connections(reset=False)
        case "throttled":
            proxy.throttle(30_000 + 100 * amount)
        case "reset in requests":
            proxy.reset(amount, "up")
        case "reset in answers":
            proxy.reset(amount, "down")
        case "closed in answers":
            proxy.cut(amount, "down")
        case _:
            raise ValueError(kind)
    try:
        await asyncio.sleep(seconds)
    finally:
        await proxy.heal()
    return hit + proxy.accepted - before


async def _upset_program(server: ScriptedProgram, kind: str, seconds: float, amount: int) -> int:
    living = await server.processes()
    if not living:
        return 0
    match kind:
        case "processes killed":
            chosen, number = living, signal.SIGKILL
        case "one process killed":
            chosen, number = [living[amount % len(living)]], signal.SIGKILL
        case "processes stopped":
            chosen, number = living, signal.SIGSTOP
        case _:
            raise ValueError(kind)
    _signal(server, chosen, number)
    if number == signal.SIGSTOP:
        await asyncio.sleep(seconds)
        _signal(server, chosen, signal.SIGCONT)
    return len(chosen)


def _signal(server: ScriptedProgram, pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            server.kill(pid, number)


async def _open(stack: contextlib.AsyncExitStack, server: Server, journal: Path) -> Place:
    shared: dict[str, Any] = {
        "era": server.era,
        "tools": TOOLS,
        "journal": str(journal),
        "call_behaviours": True,
        "record": False,
    }
    if server.kind == "stdio":
        return Place(await stack.enter_async_context(ScriptedServer.stdio(**shared)), None)
    shared["encoding"] = "sse" if server.era == "modern" else "json"
    shared["session_loss"] = server.loss
    if server.kind == "sse":
        shared["transport"] = "sse"
    scripted = await stack.enter_async_context(ScriptedServer.spawn(**shared))
    proxy = await stack.enter_async_context(FaultProxy.to("127.0.0.1", scripted.port))
    return Place(scripted, proxy)


def _specs(places: dict[str, Place]) -> dict[str, dict[str, Any]]:
    """As they are configured: a server with several addresses is one."""
    specs: dict[str, dict[str, Any]] = {}
    for name, place in places.items():
        spec = specs.setdefault(PLACES[name].name, place.spec)
        if PLACES[name].addresses > 1:
            spec.setdefault("urls", []).append(spec.pop("url", None) or place.spec["url"])
    return specs


async def _obey(places: dict[str, Place], order: dict[str, Any]) -> Any:
    if order["order"] == "holdings":
        return {name: await place.holds() for name, place in places.items()}
    kind, seconds, amount = order["kind"], order["seconds"], order["amount"]
    if (of_one := OF_ONE.get(kind)) is None:
        return await places[order["target"]].befall(kind, seconds, amount)
    fitting = [place for place in places.values() if place.proxy is not None]
    return sum(await asyncio.gather(*(p.befall(of_one, seconds, amount) for p in fitting)))


async def _answer(places: dict[str, Place], order: dict[str, Any]) -> None:
    number = order["number"]
    try:
        _say({"number": number, "answer": await _obey(places, order)})
    except Exception as error:  # told to the process that asked; it fails there
        _say({"number": number, "error": f"{order}: {type(error).__name__}: {error}"})


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


async def _orders() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=1 << 24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def main(folder: Path) -> None:
    orders = await _orders()
    async with contextlib.AsyncExitStack() as stack:
        places = {
            name: await _open(stack, server, folder / server.name)
            for name, server in PLACES.items()
        }
        _say(_specs(places))
        async with asyncio.TaskGroup() as tasks:
            while raw := await orders.readline():
                tasks.create_task(_answer(places, json.loads(raw)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
