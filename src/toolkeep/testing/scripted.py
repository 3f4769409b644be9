"""`ScriptedServer`: the MCP server a test talks to, and talks about."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from signal import Signals
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from toolkeep.testing._homes import Home, LocalHome, SpawnedHome
from toolkeep.testing._options import (
    ProcessOptions,
    ProcessSettings,
    ServerOptions,
    Settings,
    StdioOptions,
)
from toolkeep.testing._stdio import KILL, StdioHome
from toolkeep.testing.script import Cancelled, JsonObject, Launch, Recorded, Rule

_GLANCE = 0.005
"""Seconds between two looks at a server that has not yet seen what a test waits for."""


class ScriptedServer:
    """An MCP server that does what a test says.

    Use `spawn` (a process of its own), `local` (this event loop) or `stdio` (a program that clients
    start) as an async context manager; it lives as long as the block. Every method waits for at
    most 15 seconds.
    """

    def __init__(self, home: Home, settings: Settings) -> None:
        self._home, self._settings = home, settings

    @classmethod
    def spawn(cls, **options: Unpack[ServerOptions]) -> Self:
        """A server in a child process, which ends with the block or with this process.

        Over streamable HTTP, or with `transport="sse"` over HTTP+SSE (2024-11-05), where
        `endpoint` replaces what the stream names as the address of messages.
        """
        settings = Settings(**options)
        return cls(SpawnedHome(settings), settings)

    @classmethod
    def local(cls, **options: Unpack[ServerOptions]) -> Self:
        """A server in the current event loop, with the options of `spawn`."""
        settings = Settings(**options)
        return cls(LocalHome(settings), settings)

    @staticmethod
    def stdio(**options: Unpack[StdioOptions]) -> ScriptedProgram:
        """A server that clients start, as often as they like; see `ProcessSettings` for what its
        processes can be told.
        """
        own = {name for name in options if name in ProcessOptions.__annotations__}
        given: dict[str, Any] = {**options}
        settings = Settings(**{name: given[name] for name in given if name not in own})
        manners = ProcessSettings(**{name: given[name] for name in own})
        return ScriptedProgram(StdioHome(settings, manners), settings)

    async def __aenter__(self) -> Self:
        try:
            await self._home.open()
        except BaseException:
            await self._home.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._home.close()

    @property
    def port(self) -> int:
        return self._home.port

    @property
    def url(self) -> str:
        scheme = "https" if self._settings.tls else "http"
        path = "sse" if self._settings.transport == "sse" else "mcp"
        return f"{scheme}://127.0.0.1:{self.port}/{path}"

    @property
    def pid(self) -> int:
        """The process of its own that it lives in: a test may kill it."""
        return self._home.pid

    @property
    def spec(self) -> JsonObject:
        """The server as configuration files write it."""
        kind = {"type": "sse"} if self._settings.transport == "sse" else {}
        return {"url": self.url, **kind}

    async def script(self, *rules: Rule) -> None:
        """Add rules after those already there."""
        await self._home.ask("script", rules=[rule.to_json() for rule in rules])

    async def requests(
        self,
        method: str | None = None,
        tool: str | None = None,
        *,
        at_least: int = 0,
        within: float = 5.0,
    ) -> list[Recorded]:
        """The requests so far, all or those of one JSON-RPC method or tool.

        With `at_least` it first waits until so many have arrived, or raises TimeoutError.
        """
        await self._until(at_least, within, "arrived", method=method, tool=tool)
        seen = (await self._home.ask("snapshot"))["requests"]
        records = [Recorded(**raw) for raw in seen]
        return [r for r in records if method in (None, r.rpc_method) and tool in (None, r.tool)]

    async def ledger(self) -> dict[str, int]:
        """How often tool bodies ran, by key (a call's argument "key", else the tool's name)."""
        return await self._home.ask("ledger")

    async def executions(self, key: str) -> int:
        return (await self.ledger()).get(key, 0)

    async def cancelled(self, *, at_least: int = 0, within: float = 5.0) -> list[Cancelled]:
        """The calls that the client gave up; with `at_least`, once there are so many."""
        await self._until(at_least, within, "gave_up")
        return [Cancelled(**raw) for raw in (await self._home.ask("snapshot"))["cancelled"]]

    async def hurry(self) -> None:
        """From now on `slow` and `steps` take no time, and those that are at it end at once."""
        await self._home.ask("hurry")

    async def forget_sessions(self) -> None:
        """From now on every session id handed out so far is unknown."""
        await self._home.ask("forget_sessions")

    async def strand_sessions(self) -> None:
        """From now on requests of the sessions there are get 502, as from a balancer whose instance
        is gone (streamable HTTP); new sessions are served. `forget_sessions` ends it."""
        await self._home.ask("strand_sessions")

    async def set_tools(
        self, tools: Sequence[JsonObject], *, built_in: bool = True, **paging: int | None
    ) -> None:
        """Replace the tools that tests added; `built_in=False` hides the built-in ones;
        `page_size=` as at the start.

        An added tool answers with its arguments.
        """
        if unknown := set(paging) - {"page_size"}:
            raise TypeError(f"unknown options: {', '.join(unknown)}")
        await self._home.ask("set_tools", tools=list(tools), built_in=built_in, **paging)

    async def notify(
        self,
        method: str,
        params: JsonObject | None = None,
        *,
        listeners: int = 1,
        within: float = 5.0,
    ) -> int:
        """Send a notification on every open GET stream, and to modern listeners that asked for it.

        First waits until there are that many `listeners`. Returns how many were told.
        """
        await self._until(listeners, within, "listeners")
        return await self._home.ask("notify", method=method, params=params or {})

    async def break_streams(self, *, reset: bool = False) -> int:
        """Close every stream on which the server speaks unasked, in the middle or with RST: GET
        streams, those of HTTP+SSE, modern listeners. Returns how many.

        On a pipe a modern listener is ended by its result.
        """
        return await self._home.ask("break_streams", reset=reset)

    async def ask_client(
        self, method: str, params: JsonObject | None = None, *, within: float = 5.0
    ) -> JsonObject:
        """Send a request (legacy) on the stream or pipe that was opened last, and wait for its
        result, or for `{"error": ...}`.
        """
        await self._until(1, within, "listeners")
        about = await self._home.ask("push", method=method, params=params or {})
        await self._until(1, within, "replied", about=about)
        return await self._home.ask("pushed", about=about)

    async def subscriptions(self) -> dict[str, list[str]]:
        """The resources subscribed to, by session (on a pipe: the process id), or by the id of a
        modern listener's request.
        """
        return await self._home.ask("subscriptions")

    async def resource_updated(self, uri: str, *, listeners: int = 1, within: float = 5.0) -> int:
        """Tell those who subscribed to it that a resource has changed; returns how many.

        First waits until there are that many `listeners` to it.
        """
        await self._until(listeners, within, "concerned", uri=uri)
        return await self._home.ask("updated", uri=uri)

    async def set_resource(self, uri: str, text: str) -> None:
        """From now on the resource is listed, and has this text. Nobody is told."""
        await self._home.ask("set_resource", uri=uri, text=text)

    async def set_cache(self, ttl_ms: int, scope: Literal["public", "private"] = "public") -> None:
        """The hints of every cacheable modern result from now on; at first 0 and public."""
        await self._home.ask("set_cache", ttl_ms=ttl_ms, scope=scope)

    async def restart(self) -> None:
        """Break every connection and start again on the same port, with no sessions and no rules.

        The ledger, the recorded requests and the cancellations stay.
        """
        await self._home.restart()

    async def clear(self) -> None:
        """Drop rules and recorded requests; sessions and the ledger stay."""
        await self._home.ask("clear")

    async def connections(self) -> int:
        """TCP connections accepted so far."""
        return (await self._sizes())[0]

    async def open_connections(self) -> int:
        return (await self._sizes())[1]

    async def _until(self, least: int, within: float, question: str, **details: Any) -> None:
        if least <= 0:
            return
        async with asyncio.timeout(within):
            # Polled, because what is awaited may happen in another process.
            while await self._home.ask(question, **details) < least:  # noqa: ASYNC110
                await asyncio.sleep(_GLANCE)

    async def _sizes(self) -> Any:
        return await self._home.ask("sizes")


class ScriptedProgram(ScriptedServer):
    """A scripted server over stdio. What a test reads outlives the processes."""

    _home: StdioHome

    @property
    def url(self) -> str:
        raise TypeError("a stdio server has no URL; use its spec")

    @property
    def spec(self) -> JsonObject:
        """Command, arguments and environment. Every start of it is a process of this server."""
        return self._home.spec

    async def script(self, *rules: Rule) -> None:
        """Add rules after those already there, unless they are about HTTP."""
        for rule in rules:
            if rule.do.status or rule.do.redirect or rule.do.endless or rule.http != "POST":
                raise ValueError(f"has no meaning on a pipe: {rule}")
        await super().script(*rules)

    async def processes(self, *, at_least: int = 0, within: float = 5.0) -> list[int]:
        """The ids of the processes that run now."""
        await self._until(at_least, within, "processes")
        return self._home.living("server")

    async def children(self, *, at_least: int = 0, within: float = 5.0) -> list[int]:
        """The ids of the child processes that run now; `at_least` waits for them."""
        await self._until(at_least, within, "children")
        return self._home.living("child")

    async def starts(self, *, at_least: int = 0, within: float = 5.0) -> int:
        """How often it was started."""
        await self._until(at_least, within, "starts")
        return len(self._home.launches)

    async def launches(self) -> list[Launch]:
        """Every start, with the directory and the environment that the client gave it."""
        return self._home.launches

    def kill(self, pid: int | None = None, signal: Signals = KILL) -> None:
        """Send a signal to one process or child, or to every process (not to its children)."""
        self._home.kill(pid, signal)
