"""What one of several processes does to a store: `python worker.py URL WORK`. Prints JSON."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from toolkeep.errors import StoreUnavailable
from toolkeep.state import RedisStore, SQLiteStore, Store

GENEROUS = 20.0
"""Seconds: eight processes on two busy cores are slow, and that is not what is tested."""


async def increment(store: Store) -> int:
    done = 0
    while done < 40:
        entry = await store.get("counter")
        number, version = (int(entry.value), entry.version) if entry else (0, 0)
        if await store.put("counter", b"%d" % (number + 1), if_version=version):
            done += 1
    return done


async def hold(store: Store) -> list[int]:
    """Holds a lease 12 times. What it protects would notice if two held it at once."""
    tokens: list[int] = []
    while len(tokens) < 12:
        lease = await store.lease("lease", 30)
        if lease is None:
            await asyncio.sleep(0.002)
            continue
        mark = await store.put("protected", lease.holder.encode())
        await asyncio.sleep(0.001)
        entry = await store.get("protected")
        assert entry is not None
        assert (entry.value, entry.version) == (lease.holder.encode(), mark)
        await store.append("tokens", b"%d" % lease.token, max_entries=1000, ttl=600)
        tokens.append(lease.token)
        await store.release(lease)
    return tokens


async def take(store: Store) -> dict[str, Any]:
    """Takes from a bucket as often as it can, for three seconds after all have begun."""
    await store.put(f"ready:{id(store)}:{time.time_ns()}", b"")
    while len([key async for key in store.scan("ready:")]) < 4:
        await asyncio.sleep(0.01)
    began, taken = time.time(), []
    while time.time() < began + 3:
        wait = await store.take("bucket", rate=100, burst=20)
        if wait:
            await asyncio.sleep(min(wait, 0.01))
        else:
            taken.append(time.time())
    return {"taken": taken}


async def main(url: str, work: Callable[[Store], Awaitable[Any]]) -> None:
    driver = RedisStore if url.startswith("redis") else SQLiteStore
    store = driver(url.removeprefix("sqlite://"), timeout=GENEROUS)
    try:
        sys.stdout.write(json.dumps(await work(store)))
    except StoreUnavailable as problem:
        sys.exit(str(problem))
    finally:
        await store.aclose()


if __name__ == "__main__":
    works = {"increment": increment, "hold": hold, "take": take}
    asyncio.run(main(sys.argv[1], works[sys.argv[2]]))
