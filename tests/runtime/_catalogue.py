"""What the tests of the catalogue share: runtimes over real servers, and a diary of their changes.

Nothing here asserts anything, and nothing here knows the runtime from within.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from toolkeep import Runtime
from toolkeep.events import CatalogueChanged, Event
from toolkeep.testing import Behaviour, Recorded, Rule, ScriptedServer
from toolkeep.testing._state import ServerState
from toolkeep.testing.script import Settings
from toolkeep.testing.scripted import LocalBackend

Era = Literal["legacy", "modern"]

both_eras = pytest.mark.parametrize("era", ["legacy", "modern"])

PATIENCE = 10.0
"""Nothing here takes as long; a wait that does is a hang."""
TOOLS_CHANGED = "notifications/tools/list_changed"
PROMPTS_CHANGED = "notifications/prompts/list_changed"
RESOURCES_CHANGED = "notifications/resources/list_changed"

NO_ARGUMENTS = {"type": "object"}


def tool(name: Any, description: str = "", **more: Any) -> dict[str, Any]:
    """A tool in wire shape."""
    return {"name": name, "description": description, "inputSchema": NO_ARGUMENTS, **more}


def when(method: str, *, times: int | None = None, skip: int = 0, **do: Any) -> Rule:
    return Rule(do=Behaviour(**do), method=method, times=times, skip=skip)


def listed(*tools: Any, **more: Any) -> dict[str, Any]:
    """A whole answer to `tools/list`, right in both eras."""
    hints = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
    return {**hints, "tools": list(tools), **more}


class Diary:
    """An observer that one can wait for."""

    def __init__(self, runtime: Runtime) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()
        runtime.observe(self)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    @property
    def changes(self) -> list[CatalogueChanged]:
        return [event for event in self.events if isinstance(event, CatalogueChanged)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Looked at after each event, and once before."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def opened(*servers: Any, **options: Any) -> AsyncIterator[tuple[Runtime, Diary]]:
    """A runtime of these servers: `server(…)`, or anything else that describes one."""
    runtime = Runtime(list(servers), **options)
    diary = Diary(runtime)
    try:
        async with asyncio.timeout(PATIENCE):
            await runtime.connect()
        yield runtime, diary
    finally:
        await runtime.aclose()


def server(of: ScriptedServer, name: str = "kit", **settings: Any) -> dict[str, Any]:
    return {"name": name, **of.spec, **settings}


def names(items: Any) -> list[str]:
    return [item.name for item in items]


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """For what no event tells of."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.01)


async def listings(of: ScriptedServer, method: str = "tools/list") -> int:
    return len(await of.requests(method))


class PersonalState(ServerState):
    """Lists for whoever says who they are (`x-user`, or a bearer token) what is theirs."""

    personal: Mapping[str, Mapping[str, Any]]

    def _outcome(self, call: Any, params: dict[str, Any], headers: dict[str, str]) -> Any:
        found = self.personal.get(call.method)
        return super()._outcome(call, params, headers) if found is None else found[whose(headers)]


def whose(headers: Mapping[str, str]) -> str:
    return headers.get("x-user") or headers.get("authorization", "").removeprefix("Bearer ")


def personal_server(era: Era, personal: Mapping[str, Mapping[str, Any]]) -> ScriptedServer:
    """A server whose lists differ by identity: from methods to results by user.

    Every tool can be called, whoever was told of it.
    """
    told = personal.get("tools/list", {}).values()
    settings = Settings(era=era, tools=[one for result in told for one in result["tools"]])
    state = PersonalState(settings)
    state.personal = personal
    return ScriptedServer(LocalBackend(state), settings)


def users_of(seen: list[Recorded]) -> list[str]:
    return [whose(record.headers) for record in seen]
