"""What this process holds: tasks, open files, child processes, memory. And whether it grows."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos.judge import Broken

_PROC = Path("/proc/self")
"""Linux only; elsewhere tasks alone are counted."""
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_MB = 1 << 20
_PAUSE = 1.2
"""Seconds; longer than idle sockets are kept."""

LEFT = "nothing is left when the runtime is closed, neither here nor at the servers"
GROWS = "memory, tasks and files of a runtime do not grow with the number of calls"
ROOM = {"tasks": 12, "files": 12, "children": 2, "memory": 24 * _MB}
"""How much more the last moments may hold than the first ones did: a stream that is being opened
again, a socket that is not idle for long enough.
"""
_ENOUGH = 3
"""Moments in which growth can be told from chance."""


@dataclass(frozen=True, slots=True)
class Holdings:
    tasks: int
    files: int
    children: int
    memory: int
    """Resident bytes."""

    def __str__(self) -> str:
        memory = f"{self.memory / _MB:.1f} MB"
        return f"{self.tasks} tasks, {self.files} files, {self.children} children, {memory}"


def held() -> Holdings:
    """Now, with what the collector can find gone."""
    gc.collect()
    return Holdings(len(asyncio.all_tasks()), _files(), _children(), _memory())


async def settled(within: float) -> Holdings:
    """As soon as it does not become less any more: idle sockets are on their way out."""
    least, end = held(), time.monotonic() + within
    while time.monotonic() < end:
        await asyncio.sleep(_PAUSE)
        now = held()
        if now.tasks >= least.tasks and now.files >= least.files and now.children >= least.children:
            return least
        least = now
    return least


def _files() -> int:
    return len(os.listdir(_PROC / "fd")) if _PROC.exists() else 0


def _children() -> int:
    threads = (_PROC / "task").iterdir() if _PROC.exists() else ()
    return sum(len((thread / "children").read_text().split()) for thread in threads)


def _memory() -> int:
    return int((_PROC / "statm").read_text().split()[1]) * _PAGE if _PROC.exists() else 0


def leftovers(before: Holdings, after: Holdings) -> Iterator[Broken]:
    """Memory is not among them: what Python keeps for itself is no leak."""
    for name in ("tasks", "files", "children"):
        if getattr(after, name) > getattr(before, name):
            yield Broken(LEFT, None, f"before: {before}", f"after: {after}")
            return


def growth(quiet: Sequence[Holdings]) -> Iterator[Broken]:
    """Of the last quiet moments beside the first ones, by the least that they held; the very first
    is warm-up.
    """
    if len(quiet) < _ENOUGH:
        return
    third = max(1, (len(quiet) - 1) // 3)
    early, late = quiet[1 : 1 + third], quiet[-third:]
    for name, room in ROOM.items():
        first, last = (min(getattr(one, name) for one in part) for part in (early, late))
        if last > first + room:
            yield Broken(GROWS, None, f"early: {early[0]}", f"late: {late[-1]}")
            return
