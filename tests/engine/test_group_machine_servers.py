"""The same in short with real clients and servers: whatever happens in which order, all is true."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.helpers_group import QUICK
from toolkeep import Client, ServerGroup
from toolkeep.testing import FaultProxy, ScriptedServer

MOVES = ("open", "close", "again", "rebuild", "down", "up", "cut", "add", "remove", "cancel")
BOUND = 30.0


class Town:
    """A server behind one proxy for each member, and the group that is put to use."""

    def __init__(self, server: ScriptedServer, stack: AsyncExitStack) -> None:
        self._server, self._stack = server, stack
        self.proxies: dict[str, FaultProxy] = {}
        self.group: ServerGroup[Client] = ServerGroup(
            connect_timeout=2.0, cleanup_timeout=2.0, backoff=QUICK, health_interval=None
        )

    async def client(self) -> Client:
        proxy = await self._stack.enter_async_context(FaultProxy.to("127.0.0.1", self._server.port))
        name = f"s{len(self.proxies)}"
        self.proxies[name] = proxy
        return Client({"name": name, "url": proxy.url(), "mode": "legacy", "max_retries": 0})

    async def move(self, move: str, which: int) -> None:
        names = [client.name for client in self.group.configured]
        name = names[which % len(names)] if names else None
        match move:
            case "open":
                await self.group.connect_all()
            case "close":
                await self.group.cleanup_all()
            case "again" | "rebuild":
                await self.group.reconnect(failed_only=move == "again")
            case "add" if len(names) < 4:
                await self.group.add(await self.client())
            case "remove" if name is not None:
                await self.group.remove(name)
            case "down" if name is not None:
                self.proxies[name].refuse()
                self.proxies[name].kill_connections()
            case "up" if name is not None:
                await self.proxies[name].heal()
            case "cut" if name is not None:
                self.proxies[name].kill_connections()
            case "cancel":
                opening = asyncio.ensure_future(self.group.connect_all())
                await asyncio.sleep(0.002 * which)
                opening.cancel()
                await asyncio.wait((opening,))
            case _:
                pass

    def check(self) -> None:
        group = self.group
        members = group.members
        assert group.configured == [member.server for member in members]
        assert group.connected == [m.server for m in members if m.server in group.connected]
        assert not set(group.connected) & set(group.failed)
        assert list(group.errors) == group.failed
        assert group.active == group.connected


async def use(moves: list[tuple[str, int]]) -> None:
    before = asyncio.all_tasks()
    async with asyncio.timeout(BOUND), AsyncExitStack() as stack:
        server = await stack.enter_async_context(ScriptedServer.local(era="legacy"))
        town = Town(server, stack)
        for _ in range(2):
            await town.group.add(await town.client())
        for move, which in moves:
            try:
                await town.move(move, which)
            except Exception as error:
                raise AssertionError(f"{move} raised {error!r}") from error
            town.check()
        everybody: list[Any] = list(town.group.configured)
        for proxy in town.proxies.values():
            await proxy.heal()
        await town.group.connect_all()
        await town.group.reconnect()
        assert town.group.connected == everybody
        for client in everybody:
            assert (await client.call_tool("echo", {"text": client.name})).text == client.name
        await town.group.cleanup_all()
        assert town.group.connected == []
        assert not any(client.is_initialized for client in everybody)
    assert asyncio.all_tasks() == before


@pytest.mark.requirement("G1", "G2", "G3", "G5", "G6")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(moves=st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 5)), max_size=10))
def test_whatever_happens_in_whatever_order_all_can_be_used_in_the_end(
    moves: list[tuple[str, int]],
) -> None:
    asyncio.run(use(moves))
