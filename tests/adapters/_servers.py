"""Servers for agents to call, and the troubles that befall them. Nothing here asserts anything."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from toolkeep import CallContext, Runtime
from toolkeep.group import Backoff
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


NOTES = "Call `add` before you call `echo`."
QUESTION = {
    "method": "sampling/createMessage",
    "params": {
        "systemPrompt": "Be brief.",
        "messages": [
            {"role": "user", "content": {"type": "text", "text": "Ready?"}},
            {"role": "assistant", "content": {"type": "text", "text": "Ask."}},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is it?"},
                    {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"},
                ],
            },
        ],
        "maxTokens": 17,
        "temperature": 0.5,
        "stopSequences": ["END"],
    },
}
ASKING = {"requests": {"who": QUESTION}, "rounds": 1, "key": "k"}


def says_notes(era: str) -> Rule:
    """A rule by which a server gives instructions (`NOTES`) in its handshake."""
    about: dict[str, Any] = {"capabilities": {"tools": {}}, "instructions": NOTES}
    if era == "legacy":
        info = {"name": "kit", "version": "1"}
        said = {**about, "protocolVersion": "2025-11-25", "serverInfo": info}
        return Rule(method="initialize", do=Behaviour(result=said))
    hints = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    said = {**about, **hints, "supportedVersions": ["2026-07-28"]}
    return Rule(method="server/discover", do=Behaviour(result=said))


@asynccontextmanager
async def instructed(era: str, **options: Any) -> AsyncIterator[Runtime]:
    """A runtime whose server `kit` gives instructions (`NOTES`); its server `plain` gives none."""
    made = ScriptedServer.local(era=cast("Any", era))
    async with made as kit, ScriptedServer.local() as plain:
        await kit.script(says_notes(era))
        servers = {"kit": kit.spec, "plain": plain.spec}
        async with Runtime({"mcpServers": servers}, **options) as runtime:
            yield runtime


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
