"""A whole soak: the world, a runtime in it, the calls, and what is left when both are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from chaos.edits import Edits
from chaos.holdings import LEFT, Holdings, held, leftovers
from chaos.judge import Broken, Judge
from chaos.link import Journals, World
from chaos.schedule import Schedule
from chaos.soak import Findings, Limits, Soak
from toolkeep import Runtime
from toolkeep._runtime.options import RuntimeOptions
from toolkeep.group import Backoff
from toolkeep.state import MemoryStore

_GLANCE = 0.02
_OPTIONS: RuntimeOptions = {
    "backoff": Backoff(first=0.1, cap=1.0),
    "health_interval": 2.0,
    "connect_timeout": 5.0,
}


async def soaked(
    seed: int,
    limits: Limits,
    folder: Path,
    runtime_of: Callable[..., Runtime] = Runtime,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[Findings, Judge]:
    """What was found, and the judge who knows the counts. Who doubts the judge has another runtime
    made, one that lies.
    """
    async with World(folder) as world:
        edits, store = Edits(world.specs), MemoryStore()
        soak = Soak(Schedule(seed), world, edits, Journals(folder), limits, tell)
        async with soak.witness.listening():
            while not soak.is_over:
                before = held()
                # The first by itself; each later one goes on in the sessions of the one before.
                kept: RuntimeOptions = {
                    **_OPTIONS,
                    "state": store if soak.findings.shifts else None,
                }
                runtime = runtime_of(edits.configuration(), **kept)
                async with runtime:
                    await edits.govern(runtime)
                    await soak.shift(runtime)
                soak.findings.broken += await _left(before, world, limits.closing)
        return soak.finish(), soak.judge


async def _left(before: Holdings, world: World, within: float) -> list[Broken]:
    """Nothing, within a time in which what was closed is gone."""
    try:
        async with asyncio.timeout(within):
            while list(leftovers(before, held())) or any((await world.holdings()).values()):
                await asyncio.sleep(_GLANCE)
    except TimeoutError:
        found = list(leftovers(before, held()))
        there = {name: count for name, count in (await world.holdings()).items() if count}
        if there:
            found.append(Broken(LEFT, None, "closed", f"servers still have of us: {there}"))
        return found
    return []
