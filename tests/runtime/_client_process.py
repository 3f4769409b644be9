"""A runtime alone in its process: opens what stdin names, and says what it found and what it took.

Run by `test_scale.py`. Each line of stdin is one order, each line of stdout its answer.
"""

import asyncio
import gc
import json
import sys
from pathlib import Path
from typing import Any

from toolkeep import CallContext, Runtime

PATIENCE = 30.0


def resident() -> float:
    """Megabytes of memory that this process occupies now."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")


class Answering:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def opened(self, empty: float) -> dict[str, Any]:
        shown = self._runtime.catalogue
        found = {
            "summary": self._runtime.summary(),
            "tools": len(shown),
            "stale": shown.stale,
            "opened": resident() - empty,
        }
        return {**found, **self._searched(), "searched": resident() - empty}

    def _searched(self) -> dict[str, Any]:
        shown = self._runtime.catalogue
        models = {one.model_name for one in shown}
        return {
            "models": len(models),
            "hits": [one.name for one in shown.search("unusual nightingale")],
            "limited": len(shown.search("customer", 7)),
        }

    async def resolve(self, names: list[str]) -> list[str]:
        return [one.name for one in await self._runtime.resolve(names)]

    async def call(self, name: str) -> str:
        return (await self._runtime.call(name, {"customer": "1"})).text

    async def await_tool(self, name: str) -> int:
        """The revision in which there is such a tool."""
        async with asyncio.timeout(PATIENCE):
            while name not in self._runtime.catalogue:
                await asyncio.sleep(0.01)
        return self._runtime.catalogue.revision

    async def views(self, count: int) -> float:
        """Megabytes that the views of so many principals take."""
        before = resident()
        contexts = [CallContext(principal=f"p{number}") for number in range(count)]
        kept = [await self._runtime.catalogue_for(context) for context in contexts]
        assert all(len(view) == len(self._runtime.catalogue) for view in kept)
        return resident() - before


async def main() -> None:
    lines = iter(sys.stdin.readline, "")
    servers = json.loads(next(lines))
    async with Runtime([], functions=[]):
        empty = resident()
    async with Runtime(servers) as runtime:
        answering = Answering(runtime)
        say(await answering.opened(empty))
        while line := await asyncio.to_thread(sys.stdin.readline):
            order, *details = json.loads(line)
            say(await getattr(answering, order)(*details))


def say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
