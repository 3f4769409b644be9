"""A whole soak: the world, a runtime in it, the calls, and what is left when both are gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

from chaos.edits import Edits
from chaos.holdings import LEFT, Holdings, held, leftovers
from chaos.judge import Broken, Judge
from chaos.link import Journals, World
from chaos.schedule import Schedule
from chaos.soak import Findings, Limits, Soak
from mainstay import Backoff, Runtime
from mainstay._runtime.options import Options

CLOSING = 10.0
"""Seconds in which sockets and processes are gone after the runtime is closed."""
_GLANCE = 0.02
_OPTIONS: Options = {
    "backoff": Backoff(first=0.1, cap=1.0),
    "health_interval": 2.0,
    "connect_timeout": 5.0,
}


async def soaked(seed: int, limits: Limits, folder: Path) -> tuple[Findings, Judge]:
    """What was found, and the judge who knows the counts."""
    async with World(folder) as world:
        edits = Edits(world.specs)
        soak = Soak(Schedule(seed), world, edits, Journals(folder), limits)
        while not soak.is_over:
            before = held()
            runtime = Runtime(edits.configuration(), **_OPTIONS)
            async with runtime:
                await edits.govern(runtime)
                await soak.shift(runtime)
            soak.findings.broken += await _left(before, world)
        return soak.finish(), soak.judge


async def _left(before: Holdings, world: World) -> list[Broken]:
    """Nothing, within a time in which what was closed is gone."""
    try:
        async with asyncio.timeout(CLOSING):
            while list(leftovers(before, held())) or any((await world.holdings()).values()):
                await asyncio.sleep(_GLANCE)
    except TimeoutError:
        found = list(leftovers(before, held()))
        there = {name: count for name, count in (await world.holdings()).items() if count}
        if there:
            found.append(Broken(LEFT, None, "closed", f"servers still have of us: {there}"))
        return found
    return []
