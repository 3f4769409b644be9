"""Ten thousand tools of one server: opening, searching, finding one by its name.

python -m benchmarks.catalogue URL      in a process of its own; prints JSON
"""

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.cores import CLIENT, started_on
from benchmarks.stub import Stub
from benchmarks.worker import resident_kib
from benchmarks.workers import QUIET, ROOT, paths, python_of

TOOLS = 10_000
SEARCHES = 200
PATIENCE = 300.0
WORDS = (
    "refund an invoice of a customer",
    "list all alerts of the platform",
    "share a document with legal",
    "archive ticket",
    "export the payments of the clinic as a report",
    "calendar",
    "delete a branch number 4711",
    "which deployment became what",
)


def measure(stub: Stub, tools: int = TOOLS) -> dict[str, Any]:
    url = stub.url("legacy", "json", 100, tools)
    with started_on(CLIENT):
        process = subprocess.run(
            [python_of(""), "-m", "benchmarks.catalogue", url],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
            cwd=ROOT,
            env={**os.environ, **QUIET, "PYTHONPATH": paths()},
        )
    return json.loads(process.stdout.splitlines()[-1])


async def main(url: str) -> None:
    from toolkeep import Runtime

    memory, cpu, wall = resident_kib(), time.process_time(), time.perf_counter()
    async with Runtime.open([{"name": "stub", "url": url, "mode": "legacy"}]) as runtime:
        catalogue = runtime.catalogue
        opened = {
            "tools": len(catalogue.tools),
            "open_cpu_s": time.process_time() - cpu,
            "open_wall_s": time.perf_counter() - wall,
            "kib": resident_kib() - memory,
        }
        first = timed(lambda: catalogue.search(WORDS[0], limit=10))
        searches = [
            timed(lambda words=words: catalogue.search(words, limit=10))
            for words in WORDS * (SEARCHES // len(WORDS))
        ]
        names = [tool.name for tool in random.Random(7).choices(catalogue.tools, k=SEARCHES)]
        catalogue.tool(names[0])
        lookups = [timed(lambda name=name: catalogue.tool(name)) for name in names]
    figures = {
        "first_search_ms": first,
        "search_ms": statistics.median(searches),
        "search_ms_worst": max(searches),
        "lookup_ms": statistics.median(lookups),
    }
    print(json.dumps({**opened, **figures}))


def timed(work: Any) -> float:
    """Milliseconds of processor time: it waits for nothing."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
