"""Instructions that one call takes on the client's side, counted by valgrind's callgrind.

The one figure that whatever else runs on the machine cannot move by more than a hundredth or two.
A worker runs under callgrind, which counts from the first order on only: its start would take
minutes. A short turn is taken from a long one, so that what a turn itself costs is in neither.
"""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.stub import Stub
from benchmarks.workers import Remote, worker

SHORT, LONG = 32, 128
"""Calls in a turn."""
WARM_UP = 64
PATIENCE = 300.0
CONTROL = "callgrind_control"


def available() -> bool:
    return shutil.which("valgrind") is not None and shutil.which(CONTROL) is not None


def instructions(
    stub: Stub,
    contestant: str,
    *,
    era: str = "legacy",
    answer: str = "json",
    in_flight: int = 1,
    environment: str = "",
    keep: Path | None = None,
) -> float:
    """Of one call. `keep`: where callgrind's own account goes, for callgrind_annotate."""
    with tempfile.TemporaryDirectory() as place:
        out = keep or Path(place) / "callgrind"
        under = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
        under += [f"--callgrind-out-file={out}", "--quiet"]
        with worker(contestant, environment, under) as remote:
            remote.tell(open=stub.url(era, answer, 100), era=era, patience=PATIENCE)
            remote.tell(turn=WARM_UP, in_flight=in_flight, patience=PATIENCE)
            _control(remote, "--instr=on")
            counted = [_during(remote, calls, in_flight) for calls in (SHORT, LONG)]
            _control(remote, "--instr=off")
            remote.tell(close=True, patience=PATIENCE)
    return (counted[1] - counted[0]) / (LONG - SHORT)


def _during(remote: Remote, calls: int, in_flight: int) -> int:
    before = _total(remote)
    remote.tell(turn=calls, in_flight=in_flight, patience=PATIENCE)
    return _total(remote) - before


def _total(remote: Remote) -> int:
    told = _control(remote, "--stat", "-e")
    return sum(
        int(found.replace(",", "")) for found in re.findall(r"^\s+Th \d+\s+([\d,]+)", told, re.M)
    )


def _control(remote: Remote, *what: str) -> str:
    command = [CONTROL, *what, str(remote.pid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return done.stdout
