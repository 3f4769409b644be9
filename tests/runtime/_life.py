"""What the tests of a runtime's life share: servers of every kind, an ear, and questions that wait.

Nothing here asserts anything, and nothing here knows the runtime from within.
"""

import asyncio
import contextlib
import json
import random
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from toolkeep import Runtime, ToolkeepError
from toolkeep.events import Event, InputNeeded
from toolkeep.group import Backoff
from toolkeep.testing import Recorded, ScriptedServer

PATIENCE = 15.0
"""Nothing here takes as long; a wait that does is a hang."""
QUICK = Backoff(first=0.02, cap=0.05)
LONG = 30
"""Seconds of a call that nobody waits for."""

E = TypeVar("E", bound=Event)
eras = pytest.mark.parametrize("era", ["legacy", "modern"])


def config_of(**servers: Any) -> dict[str, Any]:
    """As a file would have it, of servers of the kit, or of what a file says."""
    specs = {
        name: server.spec if isinstance(server, ScriptedServer) else server
        for name, server in servers.items()
    }
    return {"mcpServers": specs}


def write(path: Path, config: Mapping[str, Any] | str) -> None:
    path.write_text(config if isinstance(config, str) else json.dumps(config))


class Ear:
    """An observer that one can wait for."""

    def __init__(self, runtime: Runtime) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()
        self.handle = runtime.observe(self)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    def of(self, kind: type[E], server: str | None = None) -> list[E]:
        return [
            event
            for event in self.events
            if isinstance(event, kind) and server in (None, event.server)
        ]

    async def until(self, true: Callable[[], object]) -> None:
        """What is looked at changes only when an event comes."""
        async with asyncio.timeout(PATIENCE):
            while not true():
                self._news.clear()
                await self._news.wait()

    async def first(self, kind: type[E], server: str | None = None, *, since: int = 0) -> E:
        """The first of these, of those that come after the first `since` of them."""
        await self.until(lambda: len(self.of(kind, server)) > since)
        return self.of(kind, server)[since]


class Hesitant:
    """Answers no question before it is told to: a call that asks one is under way until then."""

    def __init__(self) -> None:
        self.asked: list[InputNeeded] = []
        self.go = asyncio.Event()
        self._news = asyncio.Event()

    async def __call__(self, needed: InputNeeded) -> Any:
        self.asked.append(needed)
        self._news.set()
        await self.go.wait()
        return {"action": "accept", "content": {"name": str(len(self.asked))}}

    async def until(self, asked: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.asked) < asked:
                self._news.clear()
                await self._news.wait()


async def failure_of(work: Awaitable[Any]) -> ToolkeepError:
    """The error that the work must end with."""
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ToolkeepError) as caught:
            await work
    return caught.value


async def eventually(look: Callable[[], Awaitable[Any] | Any]) -> Any:
    """What a look brings, once it brings something. For what happens where no event tells of it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = look()
            found = await found if isinstance(found, Awaitable) else found
            if found:
                return found
            await asyncio.sleep(0.005)


async def ended(*tasks: "asyncio.Task[Any]") -> list[Any]:
    """All of them, within bounds; what one raises is its result."""
    async with asyncio.timeout(PATIENCE):
        return await asyncio.gather(*tasks, return_exceptions=True)


def sessions_in(seen: list[Recorded]) -> set[str]:
    return {record.session_id for record in seen if record.session_id}


def quiet_port() -> int:
    """A port at which nobody listens. Below those that the system gives to whoever asks for any, so
    that no other test is given it meanwhile."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")
