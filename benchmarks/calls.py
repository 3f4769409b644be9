"""What a call costs on the client's side: mainstay's client and runtime, the SDK's own client, and
a bare HTTP POST.

All contenders talk to the same server (a process of its own) and take turns, so that whatever else
the machine does hits all of them alike; each figure is the median of its turns. CPU time is that of
this process, so the server's work is not in it. The bare POST sends the very body and headers of a
real call and reads the answer without looking at it: it is the floor for anything built on aiohttp.

    python benchmarks/calls.py [--json FILE] [--calls N] [--turns N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

from mainstay.testing import ScriptedServer

Mode = Literal["legacy", "modern"]
Send = Callable[[], Awaitable[Any]]

MODES: tuple[Mode, ...] = ("legacy", "modern")
ENCODINGS: tuple[Literal["json", "sse"], ...] = ("json", "sse")
IN_FLIGHT = (1, 32)
ANSWER = "x" * 100
WARM_UP = 40
SDK_MODE = {"legacy": "legacy", "modern": "2026-07-28"}
SESSIONS = 50
PATIENCE = 60.0
SET_BY_HTTP = ("host", "content-length", "accept-encoding", "user-agent", "connection")


# -- the contenders -----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def mainstay_calls(server: ScriptedServer, mode: Mode) -> AsyncIterator[Send]:
    from mainstay import Client

    async with Client(server.url, mode=mode) as client:
        await client.list_tools()
        yield lambda: client.call_tool("echo", {"text": ANSWER})


@contextlib.asynccontextmanager
async def runtime_calls(server: ScriptedServer, mode: Mode) -> AsyncIterator[Send]:
    from mainstay import Runtime

    async with Runtime.open([{"name": "kit", "url": server.url, "mode": mode}]) as runtime:
        yield lambda: runtime.call("kit.echo", {"text": ANSWER})


@contextlib.asynccontextmanager
async def principals_calls(server: ScriptedServer, mode: Mode) -> AsyncIterator[Send]:
    from mainstay import CallContext, Runtime

    context = CallContext(principal="ada", headers={"authorization": "Bearer token"})
    async with Runtime.open([{"name": "kit", "url": server.url, "mode": mode}]) as runtime:
        yield lambda: runtime.call("kit.echo", {"text": ANSWER}, context=context)


@contextlib.asynccontextmanager
async def sdk_calls(server: ScriptedServer, mode: Mode) -> AsyncIterator[Send]:
    import mcp

    async with mcp.Client(server.url, mode=SDK_MODE[mode]) as client:
        await client.list_tools()
        yield lambda: client.call_tool("echo", {"text": ANSWER})


@contextlib.asynccontextmanager
async def bare_posts(server: ScriptedServer, mode: Mode) -> AsyncIterator[Send]:
    import aiohttp

    from mainstay import Client

    headers, body = await recorded_call(mode)
    async with Client(server.url, mode=mode) as client, aiohttp.ClientSession() as http:
        if client.session_id is not None:
            headers["mcp-session-id"] = client.session_id

        async def send() -> None:
            async with http.post(server.url, data=body, headers=headers) as response:
                answer = await response.read()
            if response.status != 200 or ANSWER.encode() not in answer:
                raise RuntimeError(f"not an answer: HTTP {response.status} {answer[:200]!r}")

        yield send


async def recorded_call(mode: Mode) -> tuple[dict[str, str], bytes]:
    """Headers and body of a real call, as a server saw them."""
    async with ScriptedServer.local() as server, mainstay_calls(server, mode) as send:
        await send()
        (seen,) = await server.requests("tools/call")
    headers = {name: value for name, value in seen.headers.items() if name not in SET_BY_HTTP}
    return headers, json.dumps(seen.body, separators=(",", ":")).encode()


CONTENDERS = {
    "mainstay": mainstay_calls,
    "runtime": runtime_calls,
    "principal": principals_calls,
    "sdk": sdk_calls,
    "bare": bare_posts,
}


# -- calls --------------------------------------------------------------------------------------


async def turn(send: Send, calls: int, in_flight: int) -> float:
    """Milliseconds of this process's CPU time for one call."""

    async def some() -> None:
        for _ in range(calls // in_flight):
            await send()

    gc.collect()
    started = time.process_time()
    await asyncio.gather(*(some() for _ in range(in_flight)))
    return (time.process_time() - started) / (calls // in_flight * in_flight) * 1000


async def compare(
    server: ScriptedServer, mode: Mode, in_flight: int, calls: int, turns: int
) -> dict[str, dict[str, float]]:
    """Median CPU time and TCP connections of each contender, taking turns."""
    figures: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    sockets = dict.fromkeys(CONTENDERS, 0)
    async with contextlib.AsyncExitStack() as stack:
        senders: dict[str, Send] = {}
        for name, contender in CONTENDERS.items():
            senders[name] = await stack.enter_async_context(contender(server, mode))
            await turn(senders[name], max(WARM_UP, in_flight), in_flight)
        for _ in range(turns):
            for name, send in senders.items():
                before = await server.connections()
                figures[name].append(await turn(send, calls, in_flight))
                sockets[name] += await server.connections() - before
    return {
        name: {"cpu_ms": statistics.median(figures[name]), "new_sockets": sockets[name]}
        for name in CONTENDERS
    }


async def all_calls(calls: int, turns: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for encoding in ENCODINGS:
        async with ScriptedServer.spawn(encoding=encoding, record=False) as server:
            for mode in MODES:
                for in_flight in IN_FLIGHT:
                    found = await compare(server, mode, in_flight, calls, turns)
                    cell = {"answer": encoding, "mode": mode, "in_flight": in_flight}
                    rows.append({**cell, **found})
                    print(call_line(rows[-1]), flush=True)
    return rows


def call_line(row: dict[str, Any]) -> str:
    cpu = {name: row[name]["cpu_ms"] for name in CONTENDERS}
    sockets = "/".join(str(row[name]["new_sockets"]) for name in CONTENDERS)
    return (
        f"{row['answer']:<6} {row['mode']:<7} {row['in_flight']:>9} "
        f"{cpu['mainstay']:>9.3f} {cpu['sdk']:>9.3f} {cpu['bare']:>9.3f} "
        f"{cpu['mainstay'] / cpu['sdk']:>6.2f} {cpu['mainstay'] / cpu['bare']:>6.2f} "
        f"{cpu['runtime'] / cpu['mainstay']:>8.2f} {cpu['principal'] / cpu['mainstay']:>10.2f} "
        f"{sockets:>12}"
    )


# -- sessions -----------------------------------------------------------------------------------


async def open_many(contender: str, url: str) -> dict[str, float]:
    """In a process of its own: CPU time and resident memory of each further open session."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(5):
            await stack.enter_async_context(_opened(contender, url))
        gc.collect()
        memory, started = resident_kib(), time.process_time()
        for _ in range(SESSIONS):
            await stack.enter_async_context(_opened(contender, url))
        used = time.process_time() - started
        gc.collect()
        grown = resident_kib() - memory
    return {"cpu_ms": used / SESSIONS * 1000, "kib": grown / SESSIONS}


def _opened(contender: str, url: str) -> Any:
    if contender == "mainstay":
        from mainstay import Client

        return Client(url, mode="legacy")
    import mcp

    return mcp.Client(url, mode="legacy")


def resident_kib() -> float:
    """Linux only; elsewhere not a number."""
    with contextlib.suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1024
    return float("nan")


async def all_sessions(turns: int) -> dict[str, dict[str, float]]:
    found: dict[str, list[dict[str, float]]] = {"mainstay": [], "sdk": []}
    async with ScriptedServer.spawn(era="legacy", record=False) as server:
        for _ in range(turns):
            for contender, figures in found.items():
                figures.append(await asyncio.to_thread(_in_a_process, contender, server.url))
    return {
        contender: {key: statistics.median(one[key] for one in figures) for key in figures[0]}
        for contender, figures in found.items()
    }


def _in_a_process(contender: str, url: str) -> dict[str, float]:
    return json.loads(_python(__file__, "--open", contender, url))


# -- imports ------------------------------------------------------------------------------------


def import_times(turns: int) -> dict[str, float]:
    """Seconds that an import adds to a fresh interpreter's start."""
    statements = {"nothing": "pass", "mainstay": "import mainstay", "sdk": "import mcp"}
    statements["mainstay.Client"] = "from mainstay import Client"
    taken: dict[str, list[float]] = {name: [] for name in statements}
    for _ in range(turns):
        for name, statement in statements.items():
            started = time.perf_counter()
            _python("-c", statement)
            taken[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(times) for name, times in taken.items()}
    floor = medians.pop("nothing")
    return {name: seconds - floor for name, seconds in medians.items()}


def _python(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return done.stdout


# -- the program --------------------------------------------------------------------------------


def surroundings() -> dict[str, Any]:
    from importlib.metadata import version

    from mainstay import __version__

    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "versions": {
            "mainstay": __version__,
            **{name: version(name) for name in ("mcp", "aiohttp")},
        },
    }


def measure(calls: int, turns: int) -> dict[str, Any]:
    about = surroundings()
    named = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    print(f"{about['date']}, {about['system']}, {about['cores']} cores, Python {about['python']}")
    print(f"{named}; median of {turns} turns of {calls} calls each\n")
    print("Client CPU for one call, in ms (an answer of 100 bytes); runtime and principal: a call")
    print("through the runtime, for nobody and for a principal with a token, in calls of a client")
    print(
        "answer mode    in flight    client       sdk      bare   /sdk  /bare  runtime  principal"
        "  new sockets"
    )
    report: dict[str, Any] = {"about": about, "calls": asyncio.run(all_calls(calls, turns))}
    print("\nEach further open session (legacy), and an import")
    sessions = report["sessions"] = asyncio.run(all_sessions(3))
    for name, found in sessions.items():
        print(f"{name:<16} {found['cpu_ms']:>7.1f} ms CPU {found['kib']:>8.0f} KiB resident")
    imports = report["import_seconds"] = import_times(5)
    for name, seconds in imports.items():
        print(f"import {name:<16} {seconds:>6.2f} s")
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a call costs.")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    parser.add_argument("--calls", type=int, default=128, help="calls in one turn")
    parser.add_argument("--turns", type=int, default=7, help="turns of each contender")
    parser.add_argument("--open", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.open:
        print(json.dumps(asyncio.run(open_many(*given.open))))
        return
    started = time.monotonic()
    report = measure(given.calls, given.turns)
    print(f"\n{time.monotonic() - started:.0f} s in all")
    if given.json:
        Path(given.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
