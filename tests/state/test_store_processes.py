"""Many processes at once, over SQLite and Redis: nothing is lost, doubled or given twice."""

import asyncio
import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.state.servers import programs, running
from tests.state.worker import GENEROUS
from toolkeep.state import RedisStore, SQLiteStore, Store

WORKER = Path(__file__).with_name("worker.py")
PATIENCE = 50.0

pytestmark = pytest.mark.requirement("D1")


@pytest.fixture(params=["sqlite", *programs()])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite://{tmp_path}/state/store.db"
        return
    with running(programs()[request.param], tmp_path) as server:
        yield server.url


async def run(url: str, work: str, processes: int) -> list[Any]:
    started = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, str(WORKER), url, work),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        for _ in range(processes)
    ]
    try:
        async with asyncio.timeout(PATIENCE):
            said = await asyncio.gather(*(one.communicate() for one in started))
    finally:
        for one in started:
            if one.returncode is None:
                one.kill()
                await one.wait()
    assert [one.returncode for one in started] == [0] * processes, said
    return [json.loads(out) for out, _ in said]


def opened(url: str) -> Store:
    driver = RedisStore if url.startswith("redis") else SQLiteStore
    return driver(url.removeprefix("sqlite://"), timeout=GENEROUS)


async def test_eight_processes_count_together(url: str):
    done = await run(url, "increment", 8)
    store = opened(url)
    entry = await store.get("counter")
    await store.aclose()
    assert entry is not None
    assert int(entry.value) == sum(done) == 8 * 40


async def test_a_lease_is_never_held_twice_and_its_tokens_grow(url: str):
    held = await run(url, "hold", 8)
    store = opened(url)
    tokens = [int(entry) for _, entry in await store.read("tokens", limit=1000)]
    await store.aclose()
    assert sorted(token for each in held for token in each) == tokens
    assert len(set(tokens)) == 8 * 12


async def test_a_bucket_is_exact_over_processes(url: str):
    """Within 5%, over the time in which they were taking."""
    found = await run(url, "take", 4)
    taken = sorted(moment for one in found for moment in one["taken"])
    assert len(taken) <= (20 + 100 * (taken[-1] - taken[0])) * 1.05 + 1
    # On a busy machine nothing may be taken for so long that the bucket runs over.
    gaps = [after - before for before, after in pairwise(taken)]
    used = sum(min(gap, 0.1) for gap in gaps)
    assert len(taken) >= 100 * used * 0.95


async def test_messages_of_another_process_arrive(url: str):
    program = (
        "import asyncio, sys\n"
        f"sys.path.insert(0, {str(WORKER.parents[2])!r})\n"
        "from tests.state.test_store_processes import opened\n"
        "async def main():\n"
        "    store = opened(sys.argv[1])\n"
        "    for number in range(5):\n"
        "        await store.publish('channel', b'%d' % number)\n"
        "    await store.aclose()\n"
        "asyncio.run(main())\n"
    )
    store = opened(url)
    async with asyncio.timeout(PATIENCE), store.subscribe("channel") as messages:
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", program, url)
        assert [await anext(messages) for _ in range(5)] == [b"%d" % n for n in range(5)]
        assert await other.wait() == 0
    await store.aclose()
