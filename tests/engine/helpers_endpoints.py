"""What the tests of several addresses share: servers, a spec over all of them, what they have run.

Nothing here asserts anything, and nothing here knows the engine from within.
"""

import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.runtime._life import quiet_port
from toolkeep.config import ServerSpec
from toolkeep.testing import ScriptedServer

PATIENCE = 60.0
"""Nothing here takes as long; a wait that does is a hang."""


@asynccontextmanager
async def addresses(count: int = 3, **options: Any) -> AsyncGenerator[list[ScriptedServer]]:
    """Servers in this event loop."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(ScriptedServer.local(**options)) for _ in range(count)
        ]


@asynccontextmanager
async def processes(
    count: int, folder: Path, **options: Any
) -> AsyncGenerator[list[tuple[ScriptedServer, Path]]]:
    """Servers in processes of their own, each with a journal that outlives it."""
    async with AsyncExitStack() as stack:
        found: list[tuple[ScriptedServer, Path]] = []
        for number in range(count):
            journal = folder / f"{number}.journal"
            server = ScriptedServer.spawn(journal=str(journal), **options)
            found.append((await stack.enter_async_context(server), journal))
        yield found


def nobody() -> str:
    """An address at which nobody listens."""
    return f"http://127.0.0.1:{quiet_port()}/mcp"


async def gone(server: ScriptedServer) -> None:
    """From now on nobody listens there, and what was open is cut."""
    await server.__aexit__(None, None, None)


def spec_of(servers: Sequence[ScriptedServer | str], **more: Any) -> ServerSpec:
    urls = tuple(each if isinstance(each, str) else each.url for each in servers)
    return ServerSpec(name="kit", urls=urls, **more)


def journalled(journal: Path) -> Counter[str]:
    """How often each key ran, as a file has it."""
    if not journal.exists():
        return Counter()
    lines = (json.loads(line) for line in journal.read_text().splitlines())
    return Counter(line[1] for line in lines if line[0] == "ran")


async def runs(servers: Iterable[ScriptedServer]) -> Counter[str]:
    total = Counter[str]()
    for server in servers:
        total.update(await server.ledger())
    return total


async def calls_at(server: ScriptedServer) -> int:
    return len(await server.requests("tools/call"))


async def busy_one(servers: Sequence[ScriptedServer]) -> tuple[ScriptedServer, ScriptedServer]:
    """Of two, the one that was called, and the other."""
    first, second = servers
    return (first, second) if await calls_at(first) else (second, first)
