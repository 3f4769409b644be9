"""The driver's side of workers: starting them, telling them what to do, ending them."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.cores import CLIENT, started_on

ROOT = Path(__file__).parent.parent
PATIENCE = 10.0
QUIET = {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}


class WorkerFailed(Exception):
    """It said why."""


class Remote:
    """A worker's process. One order at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        told = json.loads(self._process.stdout.readline() or '{"failed": "it ended"}')
        if "failed" in told:
            raise WorkerFailed(told["failed"])
        return told


@contextmanager
def worker(contestant: str, environment: str) -> Iterator[Remote]:
    """A worker for this contestant, run by the Python of that environment."""
    with tempfile.TemporaryFile("w+") as said, started_on(CLIENT):
        process = subprocess.Popen(
            [python_of(environment), "-m", "benchmarks.worker", contestant],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            cwd=ROOT,
            env={**os.environ, **QUIET},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Remote(process)
        finally:
            process.stdin.close()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def python_of(environment: str) -> str:
    """The interpreter of one of the checkout's environments; of this one if it has no name."""
    return str(ROOT / environment / "bin" / "python") if environment else sys.executable
