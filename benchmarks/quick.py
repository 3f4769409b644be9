"""Whether every contestant runs, and whether the counts are as claimed; no times.

Nothing is timed, so all of one environment can be in one process. A call is one request on a socket
that is there already, whatever the answer's form; a lost session costs one handshake. That is
claimed of ours only: of others it is merely printed.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks import recovery
from benchmarks.calls import counted
from benchmarks.cells import CELLS, Cell
from benchmarks.roster import ROSTER
from benchmarks.stub import Stub
from benchmarks.workers import Remote

CALLS, IN_FLIGHT = 16, 4
WAIT, MOST_WAITS = 0.1, 50


def cells(name: str) -> Iterator[Cell]:
    """One for each way to answer that it is measured with."""
    seen: set[tuple[str, str]] = set()
    for cell in CELLS:
        if name in cell.who and (cell.era, cell.answer) not in seen:
            seen.add((cell.era, cell.answer))
            yield cell


def counts(stub: Stub, remote: Remote, name: str) -> Iterator[dict[str, Any]]:
    """What one contestant's calls cost the server."""
    remote.tell(be=name)
    for cell in cells(name):
        remote.tell(open=stub.url(*cell.place), era=cell.era)
        settle(stub)
        in_flight = 1 if name == "bare_pipe" else IN_FLIGHT
        took = counted(stub, remote, CALLS, in_flight)
        kept = {key: took[key] for key in ("requests", "connections")}
        yield {"contestant": name, "era": cell.era, "answer": cell.answer, **kept}


def settle(stub: Stub) -> None:
    """Opening is over: whoever listens to a server does so by now, and that is no call's doing."""
    stub.counts()
    for _ in range(MOST_WAITS):
        time.sleep(WAIT)
        seen = stub.counts()
        if not seen.requests and not seen.connections:
            return


def problems(rows: Iterable[dict[str, Any]]) -> list[str]:
    """What is not as we claim."""
    wrong: list[str] = []
    for row in rows:
        expected = 0.0 if row["answer"] == "stdio" else 1.0
        ours = ROSTER[row["contestant"]].kind == "ours"
        if ours and (row["requests"], row["connections"]) != (expected, 0.0):
            wrong.append(str(row))
    return wrong


def lost_session(stub: Stub, remote: Remote, name: str) -> list[str]:
    """What is not as we claim when one was lost."""
    remote.tell(be=name)
    found = recovery.one(stub, remote, times=2)
    as_claimed = not found["error"] and found["handshakes"] == 1
    if name == "client":  # a runtime also lists again, beside the call
        as_claimed &= (found["requests"], found["connections"]) == (2, 0)
    return [] if as_claimed else [f"{name}: {found}"]
