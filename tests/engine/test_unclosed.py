"""A client or a runtime that is dropped without being closed is closed all the same, with a
`ResourceWarning`."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.wire.helpers_stdio import STUCK, TOOLS, Undertaker, spec_of
from toolkeep import Client, Runtime
from toolkeep.testing import ScriptedServer

pytestmark = pytest.mark.requirement("S9", "S16")

BOUND = 10.0

homes = pytest.mark.parametrize("transport", ["http", "sse", "stdio"])
owners = pytest.mark.parametrize("owner", [Client, Runtime])


def scripted(transport: str) -> ScriptedServer:
    match transport:
        case "stdio":
            return ScriptedServer.stdio(era="legacy")
        case "sse":
            return ScriptedServer.local(era="legacy", transport="sse")
        case _:
            return ScriptedServer.local(era="legacy")


def made(owner: Any, spec: Any) -> Any:
    return Client(spec) if owner is Client else Runtime([spec])


def drop(held: list[Any]) -> None:
    held.clear()
    gc.collect()


@asynccontextmanager
async def tasks_ended() -> AsyncIterator[None]:
    """No task is left of those that were begun meanwhile."""
    before = asyncio.all_tasks()
    yield
    async with asyncio.timeout(BOUND):
        while asyncio.all_tasks() - before:
            await asyncio.sleep(0.01)


@homes
@owners
async def test_what_is_dropped_open_is_closed_with_a_warning(owner: Any, transport: str) -> None:
    async with scripted(transport) as server, tasks_ended():
        dropped = made(owner, {"name": "kit", **server.spec})
        await dropped.connect()
        with pytest.warns(ResourceWarning, match="unclosed <"):
            del dropped
        if transport != "stdio":
            async with asyncio.timeout(BOUND):
                while await server.open_connections():
                    await asyncio.sleep(0.01)


@owners
async def test_the_program_of_what_is_dropped_ends(owner: Any) -> None:
    undertaker = Undertaker()
    try:
        async with tasks_ended():
            dropped = made(owner, spec_of(TOOLS, timeouts={"close": 1.0}))
            await dropped.connect()
            if owner is Client:
                pid = (await dropped.call_tool("pid")).text
            else:
                pid = (await dropped.call("small.pid")).text
            undertaker.know([int(pid)])
            with pytest.warns(ResourceWarning, match="unclosed <"):
                del dropped
            await undertaker.all_gone()
    finally:
        undertaker.bury()


async def test_an_opening_under_way_is_ended_too() -> None:
    async with tasks_ended():
        dropped = Client(spec_of(STUCK, timeouts={"close": 1.0}))
        opening = asyncio.ensure_future(dropped.connect())
        await asyncio.sleep(0.1)
        opening.cancel()
        await asyncio.wait((opening,))
        del opening
        with pytest.warns(ResourceWarning, match="unclosed <"):
            del dropped


@pytest.mark.parametrize("closed", ["never opened", "closed", "failed"])
@owners
async def test_what_holds_nothing_is_dropped_without_a_warning(owner: Any, closed: str) -> None:
    async with ScriptedServer.local(era="legacy") as server, tasks_ended():
        dropped = made(owner, {"name": "kit", **server.spec})
        if closed == "closed":
            await dropped.connect()
            await dropped.aclose()
        elif closed == "failed" and owner is Client:
            dropped = Client({"name": "kit", "command": sys.executable, "args": ["-c", "0"]})
            with pytest.raises(Exception, match="kit"):
                await dropped.connect()
        del dropped


@owners
async def test_a_call_that_is_watched_keeps_its_owner(owner: Any) -> None:
    async with ScriptedServer.local(era="legacy") as server:
        spec = {"name": "kit", **server.spec}
        used = made(owner, spec)
        await used.connect()
        name = "echo" if owner is Client else "kit.echo"
        calls = [used.stream(name, {"text": "hi"})]
        del used
        async with calls[0]:
            assert (await calls[0].result()).text == "hi"
        with pytest.warns(ResourceWarning, match="unclosed <"):
            drop(calls)


@owners
def test_what_outlives_its_loop_is_let_go_with_a_warning(owner: Any) -> None:
    undertaker = Undertaker()
    dropped = made(owner, spec_of(TOOLS))

    async def use(used: Any) -> None:
        await used.connect()
        called = used.call_tool("pid") if owner is Client else used.call("small.pid")
        undertaker.know([int((await called).text)])

    try:
        asyncio.run(use(dropped))
        with pytest.warns(ResourceWarning, match="unclosed <"):
            del dropped
        asyncio.run(undertaker.all_gone())
    finally:
        undertaker.bury()
