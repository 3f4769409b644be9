"""What an import adds to the start of an interpreter; and what the first answer takes after it.

python -m benchmarks.imports    this part of `make bench` alone
"""

import os
import statistics
import subprocess
import time

from benchmarks import tables
from benchmarks.cores import CLIENT, started_on
from benchmarks.stub import Stub, running
from benchmarks.workers import python_of

TIMES = 5
NOTHING = "pass"
FIRST_ANSWER = """
import asyncio, {module}
async def main():
    async with {module}.Client({url!r}, mode="legacy") as client:
        await client.call_tool("echo", {{"text": "x"}})
asyncio.run(main())
"""
FIRST_ANSWER_OF_A_RUNTIME = """
import asyncio, toolkeep
async def main():
    stub = {{"name": "stub", "url": {url!r}, "mode": "legacy"}}
    async with toolkeep.Runtime.open([stub]) as runtime:
        await runtime.call("stub.echo", {{"text": "x"}})
asyncio.run(main())
"""


def measure(stub: Stub, times: int = TIMES) -> dict[str, dict[str, float]]:
    """Seconds of processor and wall time, over those of an interpreter that imports nothing."""
    url = stub.url("legacy", "json", 100)
    programs = {
        NOTHING: NOTHING,
        "import toolkeep": "import toolkeep",
        "from toolkeep import Client": "from toolkeep import Client",
        "import mcp": "import mcp",
        "import fastmcp": "import fastmcp",
        "toolkeep.Client, first answer": FIRST_ANSWER.format(module="toolkeep", url=url),
        "toolkeep.Runtime, first answer": FIRST_ANSWER_OF_A_RUNTIME.format(url=url),
        "mcp, first answer": FIRST_ANSWER.format(module="mcp", url=url),
        "fastmcp, first answer": FIRST_ANSWER.format(module="fastmcp", url=url),
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(times):
        for name, program in programs.items():
            taken[name].append(_run(program))
    cpu, wall = (
        {name: statistics.median(one[which] for one in found) for name, found in taken.items()}
        for which in (0, 1)
    )
    floor_cpu, floor_wall = cpu.pop(NOTHING), wall.pop(NOTHING)
    return {
        name: {"cpu_s": cpu[name] - floor_cpu, "wall_s": wall[name] - floor_wall} for name in cpu
    }


def _run(program: str) -> tuple[float, float]:
    began = time.perf_counter()
    with started_on(CLIENT):
        process = subprocess.Popen([python_of(""), "-c", program])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"it ended with {process.returncode}: {program}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - began


if __name__ == "__main__":
    with running() as server:
        print(tables.imports({"imports": measure(server)}))
