"""What the tests of rounds, subscriptions and the response cache share: ways to a server, an ear.

Nothing here asserts anything.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

import pytest

from toolkeep import Client
from toolkeep.events import Changed, Event, InputNeeded
from toolkeep.testing import Recorded, ScriptedServer

BOUND = 10.0
"""Nothing here takes as long; a wait that does is a hang."""

FORM = {"message": "Your name?", "requestedSchema": {"type": "object", "properties": {}}}
PROMPT = {"messages": [{"role": "user", "content": {"type": "text", "text": "?"}}], "maxTokens": 9}
ELICIT = {"method": "elicitation/create", "params": {"mode": "form", **FORM}}
SAMPLE = {"method": "sampling/createMessage", "params": PROMPT}
ROOTS = {"method": "roots/list"}
ADA = {"action": "accept", "content": {"name": "Ada"}}
SAID = {"role": "assistant", "content": {"type": "text", "text": "42"}, "model": "none"}
HOMES = {"roots": [{"uri": "file:///a"}]}
TOOLS_CHANGED = "notifications/tools/list_changed"


class Way(NamedTuple):
    """How a client and a server meet."""

    transport: str
    era: Any

    def __str__(self) -> str:
        return f"{self.transport}-{self.era}"


LEGACY = [Way(each, "legacy") for each in ("json", "sse-answers", "stdio", "http+sse")]
MODERN = [Way(each, "modern") for each in ("json", "sse-answers", "stdio")]
ONE_EACH = [Way("json", "legacy"), Way("json", "modern")]
every_way = pytest.mark.parametrize("way", [*LEGACY, *MODERN], ids=str)
legacy_ways = pytest.mark.parametrize("way", LEGACY, ids=str)
modern_ways = pytest.mark.parametrize("way", MODERN, ids=str)
both_eras = pytest.mark.parametrize("way", ONE_EACH, ids=str)


def server_of(way: Way, **options: Any) -> Any:
    if way.transport == "stdio":
        return ScriptedServer.stdio(era=way.era, **options)
    if way.transport == "http+sse":
        return ScriptedServer.local(era=way.era, transport="sse", **options)
    encoding: Any = "sse" if way.transport == "sse-answers" else "json"
    return ScriptedServer.local(era=way.era, encoding=encoding, **options)


@asynccontextmanager
async def client_of(server: Any, way: Way, **given: Any) -> AsyncIterator[Client]:
    """A client that opens itself at its first use. What is not an argument of its is a setting."""
    own = {"sampling", "elicitation", "roots", "state", "principal", "auth", "on_progress"}
    settings = {name: given.pop(name) for name in tuple(given) if name not in own}
    where = {"url": server.url, "transport": "sse"} if way.transport == "http+sse" else server.spec
    client = Client({"name": "kit", **where, "mode": way.era, **settings}, **given)
    async with aclosing(client), asyncio.timeout(BOUND):
        yield client


@asynccontextmanager
async def meeting(way: Way, **given: Any) -> AsyncIterator[tuple[Any, Client]]:
    async with server_of(way) as server, client_of(server, way, **given) as client:
        yield server, client


Answerer = Callable[[InputNeeded], Awaitable[Any]]


def answering(answer: Any) -> Answerer:
    """A function that always answers the same."""

    async def answered(needed: InputNeeded) -> Any:
        return answer

    return answered


class Thinker:
    """Somebody who is asked and does not answer before being told what."""

    def __init__(self) -> None:
        self.asked: list[InputNeeded] = []
        self.cancelled = 0
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._news = asyncio.Event()

    async def __call__(self, needed: InputNeeded) -> Any:
        self.asked.append(needed)
        self._news.set()
        try:
            return await asyncio.shield(self.answer)
        except asyncio.CancelledError:
            self.cancelled += 1
            self._news.set()
            raise

    async def until(self, *, asked: int = 0, cancelled: int = 0) -> None:
        async with asyncio.timeout(BOUND):
            while len(self.asked) < asked or self.cancelled < cancelled:
                self._news.clear()
                await self._news.wait()


class Ear:
    """An observer that one can wait for."""

    def __init__(self, client: Client, *, listen: bool = True) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()
        client.observe(self, listen=listen)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    @property
    def changes(self) -> list[tuple[str, str | None]]:
        return [(one.what, one.uri) for one in self.events if isinstance(one, Changed)]

    async def until(self, count: int, kind: Any = Changed) -> None:
        async with asyncio.timeout(BOUND):
            while sum(isinstance(event, kind) for event in self.events) < count:
                self._news.clear()
                await self._news.wait()


async def eventually(look: Callable[[], Awaitable[Any]]) -> Any:
    """What a look brings, once it brings something. For what happens at the server's side."""
    async with asyncio.timeout(BOUND):
        while not (found := await look()):
            await asyncio.sleep(0.005)
    return found


async def ended(task: "asyncio.Task[Any]") -> None:
    """A cancelled task has come to its end."""
    task.cancel()
    async with asyncio.timeout(BOUND):
        await asyncio.wait((task,))


def capabilities_in(seen: Recorded) -> Mapping[str, Any]:
    """What a client says it can do: in its handshake, or in every modern request."""
    params = seen.body["params"]
    if "capabilities" in params:
        return params["capabilities"]
    return params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
