"""The three servers of the demo, what they offer, and what they say happened to them.

A server's word counts: requests are those that it read, runs those in its ledger.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from examples.demo.claims import Claim
from examples.demo.screen import Screen
from toolkeep import CallResult, Runtime, ToolkeepError
from toolkeep.testing import Recorded, ScriptedProgram, ScriptedServer, SessionLoss

LONGEST = 30.0
"""Seconds. It takes about three."""

LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
"""In the order in which they are read."""


def _tool(name: str, about: str, kind: str = "", **more: Any) -> dict[str, Any]:
    properties = {key: {"type": type_} for key, type_ in more.items()}
    schema = {"type": "object", "properties": properties, "required": list(more)[:1]}
    hints = {"annotations": {"readOnlyHint": True}} if kind == "read-only" else {}
    return {"name": name, "description": about, "inputSchema": schema, **hints}


SHOP = (
    _tool("pay", "Pay an order. Money moves.", order="integer"),
    _tool("stock", "How many of an item there are.", "read-only", item="string"),
)
REPORTS = (_tool("steps", "Write a report, step by step.", count="integer", gap="number"),)
NOTES = (
    _tool("write", "Write a note down.", text="string"),
    _tool("read", "Read a note.", "read-only", title="string"),
)


@dataclass
class Stage:
    """Lives as long as the acts of one run."""

    runtime: Runtime
    screen: Screen
    shop: ScriptedServer
    """HTTP, with a handshake and sessions that can be lost."""
    reports: ScriptedServer
    """HTTP, without either: each request stands alone."""
    notes: ScriptedProgram
    counted: dict[ScriptedServer, int] = field(default_factory=dict[ScriptedServer, int])
    """Requests that earlier acts have accounted for."""

    @property
    def servers(self) -> Mapping[str, ScriptedServer]:
        return {"shop": self.shop, "reports": self.reports, "notes": self.notes}

    async def new(self, server: ScriptedServer) -> list[Recorded]:
        """Every request that reached this server since the last time."""
        every = await server.requests()
        new = every[self.counted.get(server, 0) :]
        self.counted[server] = len(every)
        return new

    async def cost(
        self, server: ScriptedServer, *promised: str, listed: bool = False
    ) -> list[Claim]:
        """Every request of this act: the call's own, in their order; and if it is `listed` again,
        as whatever may have become another server is, its lists, which are read beside the call."""
        seen = [one.rpc_method for one in await self.new(server)]
        own = [method for method in seen if method not in LISTS]
        beside = sorted(method for method in seen if method in LISTS)
        number = f"{len(promised)} request{'s' if len(promised) > 1 else ''}"
        names = ", ".join(method.removeprefix("notifications/") for method in promised)
        if not listed:
            return [Claim(f"{number}: {names}", list(promised), own + beside)]
        again = f"{len(LISTS)} beside it: its lists are read again, for it may have changed"
        return [
            Claim(f"{number} for the call: {names}", list(promised), own),
            Claim(again, sorted(LISTS), beside),
        ]

    async def ran(self, server: ScriptedServer, tool: str, before: int, times: int) -> Claim:
        """How often a tool ran since it had run so often `before`."""
        how_often = {1: "once", 2: "twice"}.get(times, f"{times} times")
        return Claim(f"the tool ran {how_often}", times, await server.executions(tool) - before)

    @contextlib.asynccontextmanager
    async def listed_again(self, server: ScriptedServer) -> AsyncGenerator[None]:
        """The lists that follow a new session are read before they are counted, and before the
        next act breaks it."""
        before = len(await server.requests(LISTS[-1]))
        yield
        with contextlib.suppress(TimeoutError):  # there is no new session: a claim says so
            await server.requests(LISTS[-1], at_least=before + 1, within=2.0)

    async def call(self, tool: str, **arguments: Any) -> CallResult | ToolkeepError:
        try:
            return await self.runtime.call(tool, arguments)
        except ToolkeepError as error:
            return error


@contextlib.asynccontextmanager
async def play(screen: Screen, loss: SessionLoss) -> AsyncGenerator[Stage]:
    """All servers running, and a runtime that is not open yet."""
    async with (
        ScriptedServer.spawn(era="legacy", encoding="sse", session_loss=loss) as shop,
        ScriptedServer.spawn(era="modern", encoding="sse") as reports,
        ScriptedServer.stdio(era="modern") as notes,
    ):
        for server, tools in ((shop, SHOP), (reports, REPORTS), (notes, NOTES)):
            await server.set_tools(tools, built_in=False)
        described = {"shop": shop.spec, "reports": reports.spec, "notes": notes.spec}
        # Nobody looks after the servers but the calls: so every request has one reason.
        runtime = Runtime({"mcpServers": described}, listen=False, health_interval=None)
        try:
            yield Stage(runtime, screen, shop, reports, notes)
        finally:
            await runtime.aclose()
