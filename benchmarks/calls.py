"""What a call costs: contestants take turns, cell by cell, and each figure is a median."""

import statistics
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.cells import Cell
from benchmarks.roster import ROSTER
from benchmarks.stub import Stub
from benchmarks.workers import Remote, WorkerFailed, worker

TURNS = 7
TURN_SECONDS = 0.25
MOST_CALLS = 1024
FIRST = 8
"""Calls that say how many fit into a turn."""

Row = dict[str, Any]


class Crew:
    """The workers of a run, each with what it has open."""

    def __init__(self, stub: Stub, stack: ExitStack) -> None:
        self._stub, self._stack = stub, stack
        self._remotes: dict[str, Remote] = {}
        self._open: dict[str, tuple[str, str, int]] = {}

    def ready(self, name: str, cell: Cell) -> Remote:
        """Who makes the calls of this cell, with it opened."""
        if name not in self._remotes:
            remote = self._stack.enter_context(worker(name, ROSTER[name].environment))
            self._remotes[name] = remote
        remote = self._remotes[name]
        if self._open.get(name) != cell.place:
            remote.tell(open=self._stub.url(*cell.place), era=cell.era)
            self._open[name] = cell.place
        return remote


@contextmanager
def crew(stub: Stub) -> Iterator[Crew]:
    with ExitStack() as stack:
        yield Crew(stub, stack)


def measure(stub: Stub, found: Crew, cells: Iterable[Cell], turns: int = TURNS) -> Iterator[Row]:
    """Who fails in a cell has no figures there; the others go on."""
    for cell in cells:
        made: dict[str, list[Row]] = {name: [] for name in cell.who if ROSTER[name].is_here}
        calls: dict[str, int] = {}
        for _ in range(turns):
            for name, taken in tuple(made.items()):
                try:
                    remote = found.ready(name, cell)
                    if name not in calls:
                        calls[name] = _calls(remote, cell.in_flight)
                    taken.append(counted(stub, remote, calls[name], cell.in_flight))
                except WorkerFailed as failure:
                    print(f"{name} failed: {failure}", flush=True)
                    del made[name]
        for name, taken in made.items():
            yield {**cell.about, "contestant": name, **_figures(taken)}


def counted(stub: Stub, remote: Remote, calls: int, in_flight: int) -> Row:
    """One turn, and what the server saw of it."""
    # Sockets may have been given up while others had their turns: that is not a call's doing.
    remote.tell(turn=in_flight, in_flight=in_flight)
    stub.counts()
    took = remote.tell(turn=calls, in_flight=in_flight)
    seen, made = stub.counts(), calls // in_flight * in_flight
    return {
        **took,
        "requests": seen.requests / made,
        "connections": seen.connections / made,
        "server_busy": seen.busy_ms / (took["wall_ms"] * made),
    }


def _calls(remote: Remote, in_flight: int) -> int:
    """How many fit into a turn."""
    first = max(FIRST, in_flight)
    remote.tell(turn=first, in_flight=in_flight)
    each = remote.tell(turn=first, in_flight=in_flight)["wall_ms"] / 1000
    rounds = round(TURN_SECONDS / each / in_flight)
    return in_flight * min(max(2, rounds), max(2, MOST_CALLS // in_flight))


def _figures(taken: list[Row]) -> Row:
    medians = {key: statistics.median(one[key] for one in taken) for key in taken[0]}
    costs = sorted(one["cpu_ms"] for one in taken)
    return {**medians, "cpu_ms_least": costs[0], "cpu_ms_most": costs[-1]}
