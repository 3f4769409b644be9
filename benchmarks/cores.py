"""Client and server on cores of their own, where there are two."""

import contextlib
import os
import shutil
from collections.abc import Iterator


def all_cores() -> list[int]:
    """Those that this process may use; empty where nobody can say."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    return sorted(os.sched_getaffinity(0))


_CORES = all_cores()
CLIENT = {_CORES[0]} if len(_CORES) > 1 else set(_CORES)
SERVER = {_CORES[1]} if len(_CORES) > 1 else set(_CORES)


@contextlib.contextmanager
def started_on(cores: set[int]) -> Iterator[None]:
    """What is started in the block runs on these cores, with all its threads."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def pinned(cores: set[int]) -> list[str]:
    """What to put before a command that somebody else will start."""
    return ["taskset", "-c", ",".join(map(str, cores))] if cores and shutil.which("taskset") else []
