"""Two processes share counters and a limit in one store."""

import asyncio
import sys
import tempfile
from contextlib import aclosing

from toolkeep.state import Store, open_store


async def work(url: str) -> None:
    async with aclosing(open_store(url)) as store:
        for _ in range(20):
            await add(store, "demo:tried")
            if await store.take("demo:limit", rate=0.001, burst=15) == 0:
                await add(store, "demo:allowed")


async def add(store: Store, key: str) -> None:
    """Add one, whatever the other process does meanwhile."""
    while True:
        entry = await store.get(key)
        number, version = (int(entry.value), entry.version) if entry else (0, 0)
        if await store.put(key, b"%d" % (number + 1), if_version=version):
            break


async def main(url: str) -> None:
    for process in [await asyncio.create_subprocess_exec(*sys.orig_argv, url) for _ in "ab"]:
        await process.wait()
    async with aclosing(open_store(url)) as store:
        for key in ("demo:tried", "demo:allowed"):
            if entry := await store.get(key):
                print(key, entry.value.decode())


with tempfile.TemporaryDirectory() as home:
    asyncio.run(work(sys.argv[1]) if sys.argv[1:] else main(f"sqlite://{home}/store.db"))
