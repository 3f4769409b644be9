"""What the tests of code mode share: servers, a runtime over them, and short programs."""

import os
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from toolkeep import Runtime
from toolkeep.code_mode import CodeResult
from toolkeep.testing import ScriptedServer

PATIENCE = 20.0
"""Nothing here takes as long; a wait that does is a hang."""
LONG = 30
"""Seconds of a call that is never waited for."""
SOON = 1.5
"""Seconds in which a call is certainly sent, and none of `LONG` ends."""

WAYS = ["http json", "http sse", "http+sse", "stdio"]


@asynccontextmanager
async def opened(
    way: str = "http json", functions: Iterable[Any] = (), **options: Any
) -> AsyncGenerator[tuple[Runtime, ScriptedServer]]:
    """A runtime over the server `one`, on one of the transports."""
    more: dict[str, Any] = options.pop("server", {})
    spec: dict[str, Any] = options.pop("spec", {})
    made: Any = ScriptedServer.stdio if way == "stdio" else ScriptedServer.local
    if way == "http sse":
        more = {"encoding": "sse", **more}
    elif way == "http+sse":
        more = {"transport": "sse", "era": "legacy", **more}
    async with (
        made(**more) as server,
        Runtime({"one": {**server.spec, **spec}}, functions=functions, **options) as runtime,
    ):
        yield runtime, server


def account(result: CodeResult) -> list[tuple[str, str]]:
    return [(call.tool, call.outcome.value) for call in result.calls]


def workers() -> set[int]:
    """The sandbox's processes that belong to this one."""
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if name.startswith("monty") and int(parent) == os.getpid() and state != "Z":
            found.add(int(folder.name))
    return found
