"""Clients that share a legacy session all hear what its server says outside of calls."""

import asyncio
from typing import Any

import pytest

from tests.engine.helpers_resuming import Store, client_at, echo, legacy
from tests.engine.support import PATIENCE
from toolkeep import Client
from toolkeep.events import Changed, ServerNotification
from toolkeep.testing import ScriptedServer

pytestmark = pytest.mark.requirement("S11")


class Ear:
    """Hears one client."""

    def __init__(self, client: Client) -> None:
        self.heard: list[Any] = []
        self._news = asyncio.Event()
        self.observation = client.observe(self)

    def __call__(self, event: Any) -> None:
        if isinstance(event, Changed | ServerNotification):
            self.heard.append(event.what if isinstance(event, Changed) else event.method)
            self._news.set()

    async def until(self, what: str, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.heard.count(what) < times:
                self._news.clear()
                await self._news.wait()


async def streams(server: ScriptedServer) -> int:
    return sum(one.http_method == "GET" for one in await server.requests())


async def told(server: ScriptedServer, method: str, *ears: Ear, what: str = "") -> None:
    """Tell the server's one stream, once it is open, until all have heard it."""
    async with asyncio.timeout(PATIENCE):
        while not all((what or method) in ear.heard for ear in ears):
            await server.notify(method)
            await asyncio.sleep(0.05)


async def test_all_hear_what_the_server_tells_the_one_that_holds_the_stream():
    store = Store()
    async with (
        legacy() as server,
        client_at(server, store) as one,
        client_at(server, store) as other,
    ):
        ears = [Ear(one), Ear(other)]
        await echo(one)
        await echo(other)
        assert one.session_id == other.session_id
        await told(server, "notifications/tools/list_changed", *ears, what="tools")
        await told(server, "notifications/acme/news", *ears)
        assert await streams(server) == 1


async def test_when_the_one_that_holds_the_stream_leaves_the_next_takes_over():
    store = Store()
    async with legacy() as server, client_at(server, store) as other:
        async with client_at(server, store) as one:
            ear = Ear(one)
            await echo(one)
            await told(server, "notifications/acme/first", ear)
            later = Ear(other)
            await echo(other)
            await told(server, "notifications/acme/second", ear, later)
        await told(server, "notifications/acme/third", later)
        assert await streams(server) == 2


async def test_without_its_store_each_listens_for_itself():
    store = Store()
    async with legacy() as server, client_at(server, store) as client:
        await echo(client)
        store.trouble = OSError("gone")
        ear = Ear(client)
        await told(server, "notifications/acme/news", ear)
