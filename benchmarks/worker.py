"""One contestant in a process of its own: opens what it is told to, and does turns.

    python -m benchmarks.worker CONTESTANT

One line of JSON on stdin is one order, one line on stdout what became of it:

    {"open": URL, "era": "legacy"}          open it, and make a first call
    {"turn": CALLS, "in_flight": N}         {"cpu_ms": …, "wall_ms": …} for one call
    {"memory": true}                        {"kib": …} resident
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


class Worker:
    """Holds what one contestant has open."""

    def __init__(self, contestant: Any) -> None:
        self._contestant = contestant
        self._stack = AsyncExitStack()
        self._send: Send | None = None

    async def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        if "open" in order:
            return await self._open(order["open"], order["era"])
        if "turn" in order:
            assert self._send is not None
            return await turn(self._send, order["turn"], order["in_flight"])
        if "memory" in order:
            gc.collect()
            return {"kib": resident_kib()}
        await self._stack.aclose()
        return {}

    async def _open(self, url: str, era: str) -> dict[str, Any]:
        opened = self._contestant.calls(url, era)
        self._send = await self._stack.enter_async_context(opened)
        answer = str(await self._send())
        if "xxxxxxxx" not in answer:
            raise RuntimeError(f"not an answer: {answer[:500]}")
        return {}


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


def resident_kib() -> float:
    """Linux only."""
    with open("/proc/self/statm", encoding="ascii") as found:
        return int(found.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


async def serve(contestant: Any) -> None:
    worker = Worker(contestant)
    for line in sys.stdin:
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
