"""Servers for agents to call, and the troubles that befall them. Nothing here asserts anything."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolkeep import Backoff, CallContext, Runtime
from toolkeep.testing import Behaviour, Rule, ScriptedServer

BOUND = 15.0
"""Seconds after which a test gives up waiting."""
LONG = {"seconds": 30}
QUICK = Backoff(first=0.02, cap=0.05)

Calls = Sequence[tuple[str, Any]]
Turn = str | Calls | Callable[[], Awaitable[Any]]
"""What a model says, the tools that it calls at once, or what happens before its next turn."""

eras = pytest.mark.parametrize("era", ["legacy", "modern"])
WAYS = [
    *("http legacy", "http modern", "sse legacy", "stdio legacy", "stdio modern"),
    "in this process",
]

ADA = CallContext(principal="ada", headers={"authorization": "Bearer ada"})
BOB = CallContext(principal="bob", headers={"authorization": "Bearer bob"})


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@asynccontextmanager
async def reached(way: str) -> AsyncIterator[Runtime]:
    """A runtime with one tool `add`, over each transport."""
    if way == "in this process":
        async with Runtime({}, functions=[add]) as runtime:
            yield runtime
        return
    transport, era = way.split()
    made: Any = ScriptedServer.stdio if transport == "stdio" else ScriptedServer.local
    more = {"transport": "sse"} if transport == "sse" else {}
    async with made(era=era, **more) as kit, Runtime({"mcpServers": {"kit": kit.spec}}) as runtime:
        yield runtime


@asynccontextmanager
async def house(
    era: str = "legacy", *, spec: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[ScriptedServer, Runtime]]:
    """A server named `kit` in this event loop, answering with SSE, and an open runtime."""
    settings: dict[str, Any] = {"era": era, "encoding": "sse"}
    async with (
        ScriptedServer.local(**settings) as kit,
        Runtime(
            {"mcpServers": {"kit": {**kit.spec, **(spec or {})}}}, backoff=QUICK, **options
        ) as runtime,
    ):
        yield kit, runtime


@asynccontextmanager
async def deserted() -> AsyncIterator[Runtime]:
    """A runtime whose only server has gone."""
    async with ScriptedServer.local() as kit:
        limits = {"timeouts": {"connect": 0.5, "call": 1.0}}
        runtime = Runtime({"mcpServers": {"kit": {**kit.spec, **limits}}}, backoff=QUICK)
        await runtime.connect()
    try:
        yield runtime
    finally:
        await runtime.aclose()


async def breaks_off(kit: ScriptedServer, tool: str) -> None:
    """The tool runs, and its answer never comes."""
    await kit.script(Rule(do=Behaviour(drop="after_run"), tool=tool, times=1))


async def given_up(run: "asyncio.Task[Any]") -> None:
    """Cancel it, and wait until it has ended."""
    run.cancel()
    done, _ = await asyncio.wait((run,), timeout=BOUND)
    if not done:
        pytest.fail("the run goes on")


def wait_for(work: Awaitable[Any]) -> Awaitable[Any]:
    return asyncio.wait_for(work, BOUND)
