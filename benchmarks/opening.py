"""Fifty servers: what each takes to open, and what it keeps while it is open.

Each repetition is in a process of its own, after a few servers that bring everything into memory.
"""

import statistics
from typing import Any

from benchmarks.roster import ROSTER
from benchmarks.stub import Stub
from benchmarks.worker import WARM
from benchmarks.workers import WorkerFailed, worker

SERVERS = 50
REPETITIONS = 3
WHO = (
    *("client", "runtime", "sdk", "fastmcp", "openai_agents"),
    *("mcp_use", "langchain_mcp_adapters"),
)


def measure(stub: Stub, repetitions: int = REPETITIONS) -> dict[str, dict[str, float]]:
    """Of one server: processor time, wall time and resident memory."""
    here = [name for name in WHO if ROSTER[name].is_here]
    urls = [stub.url("legacy", "json", 100, 1, f"s{n}") for n in range(WARM + SERVERS)]
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in here}
    for _ in range(repetitions):
        for name in here:
            with worker(name, ROSTER[name].environment) as remote:
                try:
                    taken[name].append(remote.tell(many=urls, era="legacy"))
                    remote.tell(close=True)
                except WorkerFailed as failure:
                    print(f"{name} failed: {failure}", flush=True)
    return {
        name: {key: statistics.median(one[key] for one in found) for key in found[0]}
        for name, found in taken.items()
        if found
    }
