"""A store that processes share: what it costs to resume a session, and what a principal keeps.

Beside `make bench`, by itself: python -m benchmarks.shared. With the Redis of a wheel.
"""

import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import stub
from benchmarks.worker import resident_kib
from benchmarks.workers import ROOT
from tests.state.servers import programs, running
from toolkeep import CallContext, Runtime
from toolkeep.state import RedisStore

PRINCIPALS, WARM, IN_FLIGHT = 10_000, 200, 16
RESUMED = 500
PATIENCE = 600.0


def measure(server: stub.Stub) -> dict[str, Any]:
    """Empty without a Redis."""
    program = next(iter(programs().values()), None)
    if program is None:
        return {}
    with tempfile.TemporaryDirectory() as home, running(program, Path(home)) as redis:
        url = server.url("legacy", "json", 100)
        return {
            **_in_a_process("resumed", url, redis.url, server),
            **_in_a_process("kept", url, redis.url, server),
            "session_bytes": _bytes_of(redis, "toolkeep:session:"),
            "list_bytes": _bytes_of(redis, "toolkeep:list:"),
        }


def _in_a_process(what: str, url: str, state: str, server: stub.Stub) -> dict[str, Any]:
    server.counts()
    command = [sys.executable, "-m", "benchmarks.shared", what, url, state]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True, cwd=ROOT
    )
    seen = server.counts().methods
    return {**json.loads(done.stdout), f"{what}_handshakes": seen.get("initialize", 0)}


def _bytes_of(redis: Any, prefix: str) -> int:
    name = next(one for one in redis.ask("SCAN 0 COUNT 1000").split() if f"v:{prefix}" in one)
    return int(redis.ask(f"MEMORY USAGE {name}").strip().lstrip(":"))


class CountingStore(RedisStore):
    """Counts round trips: commands that are on their way at the same time are one."""

    trips = commands = under_way = 0

    async def _command(self, *parts: object, **target: Any) -> Any:
        self.trips += not self.under_way
        self.commands += 1
        self.under_way += 1
        try:
            return await super()._command(*parts, **target)
        finally:
            self.under_way -= 1


def _runtime(url: str, state: Any) -> Runtime:
    spec = {"name": "stub", "url": url, "mode": "legacy", "max_sessions": PRINCIPALS + WARM}
    return Runtime([spec], state=state)


async def _call(runtime: Runtime, number: int) -> None:
    who = CallContext(principal=f"user-{number}", headers={"x-user": f"user-{number}"})
    await runtime.call("stub.echo", {"text": "x" * 100}, context=who)


async def resumed(url: str, state: str) -> dict[str, Any]:
    """One process opens sessions, another goes on in them: the time and the round trips until the
    session is there."""
    from toolkeep._client.stored_session import SessionResumer

    store = CountingStore(state)
    took: list[float] = []
    trips: list[int] = []
    begin = SessionResumer.begin

    async def timed(self: SessionResumer) -> Any:
        before, began = store.trips, time.perf_counter()
        found = await begin(self)
        if found is not None:  # on a busy machine the store may have been given up for a second
            took.append(time.perf_counter() - began)
            trips.append(store.trips - before)
        return found

    async with _runtime(url, state) as one:
        for number in range(RESUMED):
            await _call(one, number)
    async with _runtime(url, store) as other:
        SessionResumer.begin = timed
        for number in range(RESUMED):
            await _call(other, number)
    await store.aclose()
    return {
        "resume_ms": statistics.median(took) * 1000,
        "resume_trips": max(trips),
        "resumed": len(took),
    }


async def kept(url: str, state: str) -> dict[str, Any]:
    """What a process keeps for each principal, and the store's commands for each."""
    async with _runtime(url, state) as runtime:

        async def some(numbers: Any) -> None:
            async def work() -> None:
                for number in numbers:
                    await _call(runtime, number)

            await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))

        await some(iter(range(PRINCIPALS, PRINCIPALS + WARM)))
        gc.collect()
        before, cpu = resident_kib(), time.process_time()
        await some(iter(range(PRINCIPALS)))
        cpu = time.process_time() - cpu
        gc.collect()
        return {
            "principal_kib": (resident_kib() - before) / PRINCIPALS,
            "principal_cpu_ms": cpu * 1000 / PRINCIPALS,
        }


def main() -> None:
    if len(sys.argv) > 1:
        what = {"resumed": resumed, "kept": kept}[sys.argv[1]]
        print(json.dumps(asyncio.run(what(*sys.argv[2:]))))
        return
    with stub.running() as server:
        print(json.dumps(measure(server), indent=1))


if __name__ == "__main__":
    main()
