"""What the tests of composition share: servers, a runtime over them, and their ledgers as judges.

Every step of a plan here that is counted has an argument `key`: its own path in the account.
Nothing here knows the package from within.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import mcp_types

from tests.runtime._life import eventually
from toolkeep import Runtime, Tool, UnknownTool
from toolkeep.compose import Account, Plan, PlanRefused, State, Step, check
from toolkeep.testing import ScriptedServer

PATIENCE = 20.0
"""Nothing here takes as long; a wait that does is a hang."""

RUNS = {
    State.COMPLETED: {1},
    State.TOOL_ERROR: {1},
    State.FAILED: {0, 1},
    State.NOT_DELIVERED: {0},
    State.UNKNOWN: {0, 1},
    State.CANCELLED: {0, 1},
    State.SKIPPED: {0},
    State.NOT_REACHED: {0},
}
"""How often a tool can have run, by what the account says of its step."""


@asynccontextmanager
async def opened(
    *options: dict[str, Any], permissions: Any = None, functions: Iterable[Any] = (), **spec: Any
) -> AsyncGenerator[tuple[Runtime, list[ScriptedServer]]]:
    """A runtime over local servers `one`, `two`, …, each with its options."""
    names = ("one", "two", "three")
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(ScriptedServer.local(**given))
            for given in options or ({},)
        ]
        specs = {
            name: {**server.spec, **spec} for name, server in zip(names, servers, strict=False)
        }
        more = {} if permissions is None else {"permissions": permissions}
        runtime = await stack.enter_async_context(
            Runtime.open({"mcpServers": specs}, functions=functions, **more)
        )
        yield runtime, servers


def record(name: str, server: str = "one", **more: Any) -> Step:
    """A plain side effect, counted under the step's name."""
    return Step(name, f"{server}.record", {"key": name}, **more)


def fail(name: str, server: str = "one", **more: Any) -> Step:
    return Step(name, f"{server}.fail", {"message": f"{name} says no", "key": name}, **more)


def slow(name: str, seconds: float = 30, server: str = "one", **more: Any) -> Step:
    return Step(name, f"{server}.slow", {"seconds": seconds, "key": name}, **more)


def echo(name: str, text: Any, server: str = "one", **more: Any) -> Step:
    return Step(name, f"{server}.echo", {"text": text, "key": name}, **more)


def states(account: Account) -> dict[str, State]:
    """Of every call, and of whatever stands for calls, by path."""
    return {call.path: call.state for call in account.calls}


async def ledger_of(servers: Iterable[ScriptedServer]) -> Counter[str]:
    total = Counter[str]()
    for server in servers:
        total.update(await server.ledger())
    return total


async def given_up(server: ScriptedServer, count: int) -> set[str | None]:
    """The tools of so many calls, once the server knows that they were given up."""

    async def look() -> set[str | None]:
        seen = await server.cancelled()
        calls = {one.request_id for one in seen}
        return {one.tool for one in seen} if len(calls) >= count else set()

    return await eventually(look)


def disagreements(account: Account, ran: Counter[str]) -> list[str]:
    """Where the account and the ledgers contradict each other."""
    found = [
        f"{call.path} is {call.state.value}, and ran {ran[call.path]} times"
        for call in account.calls
        if ran[call.path] not in RUNS[call.state]
    ]
    told = {call.path for call in account.calls}
    return found + [f"{key} ran, and is not in the account" for key in ran if key not in told]


def problems(plan: Plan, catalogue: Any, **more: Any) -> dict[str, str]:
    """What is wrong with the plan, by place."""
    try:
        check(plan, catalogue, **more)
    except PlanRefused as refused:
        return {one.place: one.problem for one in refused.problems}
    return {}


class Shelf:
    """A catalogue of tools that no server has, by full name: their input and output schemas."""

    def __init__(self, **tools: tuple[Any, Any]) -> None:
        self._tools = {f"kit.{name}": _tool(name, *schemas) for name, schemas in tools.items()}

    def tool(self, name: str) -> Tool:
        if name not in self._tools:
            raise UnknownTool(f"there is no {name}", suggestions=tuple(self._tools)[:3])
        return self._tools[name]


def _tool(name: str, input_schema: Any, output_schema: Any) -> Tool:
    said = {"name": name, "inputSchema": input_schema, "outputSchema": output_schema}
    return Tool("kit", mcp_types.Tool.model_validate(said, by_name=False))
