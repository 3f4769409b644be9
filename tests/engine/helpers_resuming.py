"""What the tests of stored sessions share: a store that can be looked into, and clients of it."""

import asyncio
from typing import Any

from tests.engine.support import PATIENCE
from toolkeep import Client, SessionStore, StoredSession
from toolkeep.testing import ScriptedServer

Keys = tuple[str, str | None]


class Store:
    """Keeps what it is given, tells what it was asked, and can be told to fail."""

    def __init__(self) -> None:
        self.kept: dict[Keys, StoredSession] = {}
        self.asked: list[str] = []
        self.trouble: BaseException | None = None
        self.hangs_on = ""

    async def load(self, server: str, principal: str | None) -> StoredSession | None:
        await self._meet("load")
        return self.kept.get((server, principal))

    async def save(
        self, server: str, principal: str | None, session: StoredSession, *, replacing: str | None
    ) -> bool:
        await self._meet("save")
        kept = self.kept.get((server, principal))
        if (kept and kept.session_id) != replacing:
            return False
        self.kept[server, principal] = session
        return True

    async def drop(self, server: str, principal: str | None, session_id: str) -> bool:
        await self._meet("drop")
        return self.kept.pop((server, principal), None) is not None

    async def _meet(self, what: str) -> None:
        self.asked.append(what)
        if what == self.hangs_on:
            await asyncio.Event().wait()
        if self.trouble is not None:
            raise self.trouble

    @property
    def sessions(self) -> list[str]:
        return [kept.session_id for kept in self.kept.values()]


def client_at(server: ScriptedServer, store: SessionStore, **options: Any) -> Client:
    spec = {"name": "kit", "url": server.url, **options.pop("settings", {})}
    return Client(spec, store=store, **options)


async def echo(client: Client, text: str = "it", **options: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        assert (await client.call_tool("echo", {"text": text}, **options)).text == text


async def used(client: Client) -> str | None:
    """The session of a client that made one call, and was closed."""
    async with client:
        await echo(client)
        return client.session_id


def legacy(**options: Any) -> Any:
    return ScriptedServer.local(era="legacy", **options)
