"""The driver's side of workers: starting them, telling them what to do, ending them."""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from benchmarks.cores import CLIENT, started_on

ROOT = Path(__file__).parent.parent
PATIENCE = 120.0
"""Seconds for one order: the slowest contestant, on a busy machine, has ten of them to spare."""
ENDING = 10.0
QUIET = {"PYTHONWARNINGS": "ignore", "PYTHONHASHSEED": "0"}


class WorkerFailed(Exception):
    """It said why."""


class Remote:
    """A worker's process. One order at a time."""

    def __init__(self, process: subprocess.Popen[str], said: IO[str]) -> None:
        self._process, self._said = process, said
        self.pid = process.pid

    def tell(self, *, patience: float = PATIENCE, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(self._last_words()) from None
        if not select.select([self._process.stdout], [], [], patience)[0]:
            raise WorkerFailed(f"no answer to {order} within {patience:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(self._last_words())
        told = json.loads(line)
        if "failed" in told:
            raise WorkerFailed(told["failed"])
        return told

    def _last_words(self) -> str:
        self._said.seek(0)
        return f"it ended: {self._said.read()[-2000:]}"


@contextmanager
def worker(contestant: str, environment: str = "", under: Sequence[str] = ()) -> Iterator[Remote]:
    """A worker for this contestant, run by the Python of that environment, under some tool."""
    command = [*under, python_of(environment), "-m", "benchmarks.worker", contestant]
    with tempfile.TemporaryFile("w+") as said:
        with started_on(CLIENT):
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                cwd=ROOT,
                env={**os.environ, **QUIET, "PYTHONPATH": paths()},
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Remote(process, said)
        finally:
            process.stdin.close()
            try:
                process.wait(ENDING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def paths() -> str:
    """The checkout, beside what is looked through anyway."""
    return os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))


def python_of(environment: str) -> str:
    """The interpreter of one of the checkout's environments; of this one if it has no name."""
    return str(ROOT / environment / "bin" / "python") if environment else sys.executable
