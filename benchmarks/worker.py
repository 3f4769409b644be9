"""One contestant in a process of its own: opens what it is told to, and does turns.

    python -m benchmarks.worker CONTESTANT

One line of JSON on stdin is one order, one line on stdout what became of it. The event loop runs in
between, as it does in a program: whoever looks after idle sockets can do so.

    {"be": CONTESTANT}                   another one, from the next opening on
    {"open": URL, "era": ERA}            open it (and close what was open), and make a first call
    {"turn": CALLS, "in_flight": N}      {"cpu_ms": …, "wall_ms": …} of one call
    {"once": true}                       one call, which may fail: {…, "error": how or null}
    {"many": [URL, …], "era": ERA}       open all: {"cpu_ms": …, "wall_ms": …, "kib": …} of one
    {"close": true}
"""

import asyncio
import gc
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

Send = Callable[[], Awaitable[Any]]
WARM = 5
"""Servers that are opened before others are counted: what is loaded once is then loaded."""
HANGS = 15.0
"""Seconds after which one call has failed."""


class Worker:
    """Holds what one contestant has open."""

    def __init__(self, contestant: Any) -> None:
        self._contestant = contestant
        self._stack = AsyncExitStack()
        self._send: Send | None = None

    async def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        if "be" in order:
            self._contestant = importlib.import_module(f"benchmarks.contestants.{order['be']}")
            return {}
        if "open" in order:
            return await self._open(order["open"], order["era"])
        if "turn" in order:
            return await turn(self._opened(), order["turn"], order["in_flight"])
        if "once" in order:
            return await once(self._opened())
        if "many" in order:
            return await self._many(order["many"], order["era"])
        await self._stack.aclose()
        return {}

    def _opened(self) -> Send:
        assert self._send is not None
        return self._send

    async def _open(self, url: str, era: str) -> dict[str, Any]:
        await self._stack.aclose()
        send: Send = await self._stack.enter_async_context(self._contestant.calls(url, era))
        self._send = send
        check(await send())
        return {}

    async def _many(self, urls: list[str], era: str) -> dict[str, float]:
        many = self._contestant.many
        await self._stack.enter_async_context(many(urls[:WARM], era))
        urls = urls[WARM:]
        gc.collect()
        memory, cpu, wall = resident_kib(), time.process_time(), time.perf_counter()
        await self._stack.enter_async_context(many(urls, era))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        gc.collect()
        grown = resident_kib() - memory
        each = {"cpu_ms": cpu * 1000, "wall_ms": wall * 1000, "kib": grown}
        return {key: value / len(urls) for key, value in each.items()}


async def turn(send: Send, calls: int, in_flight: int) -> dict[str, float]:
    """What one call costs, in milliseconds."""
    each = calls // in_flight

    async def some() -> None:
        for _ in range(each):
            await send()

    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(some() for _ in range(in_flight)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    made = each * in_flight
    return {"cpu_ms": cpu / made * 1000, "wall_ms": wall / made * 1000}


def check(answer: object) -> None:
    """Some libraries return their errors. A result of ours shows its content in `raw` alone."""
    shown = str(getattr(answer, "raw", answer))
    if "xxxxxxxx" not in shown:
        raise NoAnswer(f"not an answer: {shown[:500]}")


class NoAnswer(Exception):
    """Something else came back."""


async def once(send: Send) -> dict[str, Any]:
    error = None
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        async with asyncio.timeout(HANGS):
            check(await send())
    except NoAnswer:
        error = "an answer that says so"
    except Exception as caught:
        error = type(caught).__name__
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu_ms": cpu * 1000, "wall_ms": wall * 1000, "error": error}


def resident_kib() -> float:
    """Linux only; elsewhere not a number."""
    try:
        with open("/proc/self/statm", encoding="ascii") as found:
            return int(found.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024
    except OSError:
        return float("nan")


async def serve(contestant: Any) -> None:
    worker, loop = Worker(contestant), asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        try:
            told = await worker.obey(order)
        except Exception as error:
            told = {"failed": "".join(traceback.format_exception(error))}
        print(json.dumps(told), file=OUT, flush=True)
        if "close" in order:
            return


if __name__ == "__main__":
    # What a library prints must not get between the lines.
    OUT = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(serve(importlib.import_module(f"benchmarks.contestants.{sys.argv[1]}")))
