"""What the tests of tasks, cancellation and closing share: servers, callers, and places to wait."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Literal

import anyio
import pytest

from toolkeep import Client
from toolkeep.testing import FaultProxy, ScriptedServer

Era = Literal["legacy", "modern"]
Encoding = Literal["json", "sse"]

BOUND = 5.0
"""Seconds after which a test gives up waiting."""
PROMPT = 2.0
"""Seconds that something immediate may take on a busy machine; whatever it must not wait for takes
`LONG`."""
LONG = 20.0

every_era = pytest.mark.parametrize("era", ["legacy", "modern"])
every_encoding = pytest.mark.parametrize("encoding", ["json", "sse"])
HANDSHAKE: dict[Era, str] = {"legacy": "initialize", "modern": "server/discover"}


@contextlib.asynccontextmanager
async def serving(
    era: Era, encoding: Encoding = "json", *, spec: Mapping[str, Any] | None = None, **server: Any
) -> AsyncIterator[tuple[ScriptedServer, Client]]:
    """A server of one era and an unopened client to it, closed at the end."""
    async with (
        ScriptedServer.local(era=era, encoding=encoding, **server) as served,
        closing(client_of(served.url, era, **(spec or {}))) as client,
    ):
        yield served, client


@contextlib.asynccontextmanager
async def through_proxy(
    era: Era, encoding: Encoding = "json", **spec: Any
) -> AsyncIterator[tuple[ScriptedServer, FaultProxy, Client]]:
    """The same, with a fault proxy between the two."""
    async with (
        ScriptedServer.local(era=era, encoding=encoding) as served,
        FaultProxy.to("127.0.0.1", served.port) as proxy,
        closing(client_of(proxy.url(), era, **spec)) as client,
    ):
        yield served, proxy, client


def client_of(url: str, era: str, **spec: Any) -> Client:
    return Client({"name": "kit", "url": url, "mode": era, **spec})


@contextlib.asynccontextmanager
async def closing(client: Client) -> AsyncIterator[Client]:
    """Closes at the end without opening at the start."""
    try:
        yield client
    finally:
        async with asyncio.timeout(BOUND):
            await client.aclose()


async def until(true: Callable[[], bool], what: str = "") -> None:
    """Wait for something that tells nobody when it happens."""
    try:
        async with asyncio.timeout(BOUND):
            while not true():
                await asyncio.sleep(0.002)
    except TimeoutError:
        pytest.fail(f"waited in vain: {what or true}")


async def outcome(work: Awaitable[Any]) -> Any:
    """What came of it: a result, or the exception as a value. Never waits for ever."""
    async with asyncio.timeout(BOUND):
        try:
            return await work
        except Exception as error:
            return error


class Took:
    """The seconds that a block took."""

    def __enter__(self) -> "Took":
        self._started = time.monotonic()
        return self

    def __exit__(self, *raised: object) -> None:
        self.seconds = time.monotonic() - self._started


WAYS_TO_CANCEL = ("task", "asyncio.timeout", "cancel scope")


class Cancellable:
    """A call in a task of its own, that can be cancelled in one of several ways."""

    def __init__(self, how: str, call: Callable[[], Awaitable[Any]]) -> None:
        self._how, self._call = how, call
        self.cancel: Callable[[], object] = lambda: self.task.cancel()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> str:
        match self._how:
            case "task":
                await self._call()
            case "asyncio.timeout":
                return await self._within_timeout()
            case "cancel scope":
                return await self._within_scope()
        return "answered"

    async def _within_timeout(self) -> str:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as timeout:
                self.cancel = lambda: timeout.reschedule(loop.time())
                await self._call()
        except TimeoutError as error:
            return "cancelled" if type(error) is TimeoutError else repr(error)
        return "answered"

    async def _within_scope(self) -> str:
        with anyio.CancelScope() as scope:
            self.cancel = scope.cancel
            await self._call()
        return "cancelled" if scope.cancelled_caught else "answered"

    async def surfaced(self) -> str:
        """`"cancelled"`, `"answered"`, or what was raised instead."""
        done, _ = await asyncio.wait((self.task,), timeout=PROMPT)
        if not done:
            self.task.cancel()
            return "still running"
        if self.task.cancelled():
            return "cancelled"
        error = self.task.exception()
        return self.task.result() if error is None else repr(error)


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """The URL of a port at which connecting neither succeeds nor fails: its backlog is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"


async def assert_stays_closed(server: ScriptedServer, client: Client) -> None:
    """Nothing is open, nothing was opened again, and the client says so."""
    assert (client.is_initialized, client.session_id, client.era) == (False, None, None)
    requests = len(await server.requests())
    async with asyncio.timeout(BOUND):
        while await server.open_connections():
            await asyncio.sleep(0.005)
    await anyio.wait_all_tasks_blocked()
    assert len(await server.requests()) == requests
    assert await server.open_connections() == 0
