"""What the tests of identity share: a runtime over one server, and what that server's record says.

Nothing here asserts anything, and nothing here knows the runtime from within.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from toolkeep import CallContext, Runtime, ToolkeepError
from toolkeep.testing import Recorded, ScriptedServer

Era = Literal["legacy", "modern"]
every_era = pytest.mark.parametrize("era", ["legacy", "modern"])

BOUND = 10.0
"""Seconds after which a test gives up waiting."""
LONG = 20.0
"""Seconds that a tool takes which nobody waits for."""


def runtime_for(server: ScriptedServer, spec: Mapping[str, Any] | None = None, **options: Any):
    return Runtime({"mcpServers": {"kit": {**server.spec, **(spec or {})}}}, **options)


@asynccontextmanager
async def house(
    era: Era,
    spec: Mapping[str, Any] | None = None,
    *,
    server: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[ScriptedServer, Runtime]]:
    """A server named `kit` in this event loop, and an open runtime."""
    settings: dict[str, Any] = {"era": era, **(server or {})}
    async with (
        ScriptedServer.local(**settings) as kit,
        runtime_for(kit, spec, **options) as runtime,
    ):
        yield kit, runtime


def named(principal: str | None, token: str | None = None, **headers: str) -> CallContext:
    """A context with a name and, if given, a token and headers (`x_user` is `x-user`)."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        given["authorization"] = token
    return CallContext(principal=principal, headers=given)


def nameless(token: str | None = None, **headers: str) -> CallContext:
    return named(None, token, **headers)


async def seen(runtime: Runtime, context: CallContext | None, **call: Any) -> dict[str, str]:
    """The headers of one call, as the server saw them."""
    async with asyncio.timeout(BOUND):
        return (await runtime.call("kit.headers", context=context, **call)).data


async def failure_of(work: Awaitable[Any]) -> ToolkeepError:
    """The error that the work must end with."""
    async with asyncio.timeout(BOUND):
        with pytest.raises(ToolkeepError) as caught:
            await work
    return caught.value


async def together(*work: Awaitable[Any], within: float = 50.0) -> list[Any]:
    """All at once, within bounds; the first error ends it."""
    async with asyncio.timeout(within):
        return await asyncio.gather(*work)


async def until(true: Callable[[], Any], what: str = "") -> None:
    """Wait for something that tells nobody when it happens."""
    try:
        async with asyncio.timeout(BOUND):
            while not true():
                await asyncio.sleep(0.002)
    except TimeoutError:
        pytest.fail(f"waited in vain: {what or true}")


# -- what a server's record says ----------------------------------------------------------------


def kinds(records: Iterable[Recorded]) -> list[str]:
    """What was asked, in order: the JSON-RPC method, or the HTTP method where there is none."""
    return [record.rpc_method or record.http_method for record in records]


def users(records: Iterable[Recorded], header: str = "authorization") -> dict[str, set[str | None]]:
    """From each session to the values of a header that were sent in it."""
    found: dict[str, set[str | None]] = defaultdict(set)
    for record in records:
        if record.session_id is not None:
            found[record.session_id].add(record.headers.get(header))
    return dict(found)


def sessions_of(records: Iterable[Recorded], header: str, value: str | None) -> list[str]:
    """The sessions in which this header had this value, in the order of their first use."""
    sessions = (r.session_id for r in records if r.headers.get(header) == value and r.session_id)
    return list(dict.fromkeys(sessions))


def most_alive(records: Iterable[Recorded]) -> int:
    """The most legacy sessions that there were at the same time."""
    alive = most = 0
    for kind in kinds(records):
        alive += (kind == "initialize") - (kind == "DELETE")
        most = max(most, alive)
    return most


def ended(records: Iterable[Recorded]) -> set[str]:
    """The sessions that were deleted."""
    return {r.session_id for r in records if r.http_method == "DELETE" and r.session_id}


async def deleted(server: ScriptedServer, session: str) -> None:
    """Wait until a session was deleted."""
    async with asyncio.timeout(BOUND):
        while session not in ended(await server.requests()):
            await asyncio.sleep(0.005)


@asynccontextmanager
async def busy(
    server: ScriptedServer, runtime: Runtime, *contexts: CallContext | None
) -> AsyncIterator[list["asyncio.Task[Any]"]]:
    """Calls that take long, one for each context; all have arrived, and are given up at the end."""
    before = len(await server.requests(tool="slow"))
    calls = [
        asyncio.create_task(runtime.call("kit.slow", {"seconds": LONG}, context=context))
        for context in contexts
    ]
    await server.requests(tool="slow", at_least=before + len(calls))
    try:
        yield calls
    finally:
        for call in calls:
            call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(calls)
