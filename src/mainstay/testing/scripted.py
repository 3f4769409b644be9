"""`ScriptedServer`: the MCP server a test talks to, and talks about."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from mainstay.testing._homes import Home, LocalHome, SpawnedHome
from mainstay.testing._options import ServerOptions, Settings
from mainstay.testing.script import Cancelled, JsonObject, Recorded, Rule

_GLANCE = 0.005
"""Seconds between two looks at a server that has not yet seen what a test waits for."""


class ScriptedServer:
    """An MCP server over streamable HTTP that does what a test says.

    Use `spawn` (a process of its own) or `local` (this event loop) as an async context manager; it
    lives as long as the block. Every method waits for at most 15 seconds.
    """

    def __init__(self, home: Home, *, scheme: str) -> None:
        self._home, self._scheme = home, scheme

    @classmethod
    def spawn(cls, **options: Unpack[ServerOptions]) -> Self:
        """A server in a child process, which ends with the block or with this process."""
        return cls(SpawnedHome(Settings(**options)), scheme=_scheme(options))

    @classmethod
    def local(cls, **options: Unpack[ServerOptions]) -> Self:
        """A server in the current event loop."""
        return cls(LocalHome(Settings(**options)), scheme=_scheme(options))

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
        return f"{self._scheme}://127.0.0.1:{self.port}/mcp"

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

    async def forget_sessions(self) -> None:
        """From now on every session id handed out so far is unknown."""
        await self._home.ask("forget_sessions")

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


def _scheme(options: ServerOptions) -> str:
    return "https" if options.get("tls") else "http"
