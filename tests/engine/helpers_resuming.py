"""What the tests of stored sessions share: a store that can be looked into, and clients of it."""

import asyncio
import json
from typing import Any

from tests.engine.support import PATIENCE
from toolkeep import Client
from toolkeep.state import Entry, Lease, MemoryStore
from toolkeep.testing import ScriptedServer


class Store(MemoryStore):
    """Tells what it was asked of sessions, and can be told to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.trouble: BaseException | None = None
        self.hangs_on = ""

    async def get(self, key: str) -> Entry | None:
        await self._meet("get")
        return await super().get(key)

    async def put(
        self, key: str, value: bytes, *, ttl: float | None = None, if_version: int | None = None
    ) -> int | None:
        await self._meet("put")
        return await super().put(key, value, ttl=ttl, if_version=if_version)

    async def delete(self, key: str, *, if_version: int | None = None) -> bool:
        await self._meet("delete")
        return await super().delete(key, if_version=if_version)

    async def lease(self, key: str, ttl: float) -> Lease | None:
        await self._meet("lease")
        return await super().lease(key, ttl)

    async def _meet(self, what: str) -> None:
        self.asked.append(what)
        if what == self.hangs_on:
            await asyncio.Event().wait()
        if self.trouble is not None:
            raise self.trouble

    async def records(self) -> dict[str, dict[str, Any]]:
        """The sessions, by key."""
        kept: dict[str, dict[str, Any]] = {}
        async for key in self.scan("toolkeep:session:"):
            entry = await MemoryStore.get(self, key)
            if entry is not None and entry.value:
                kept[key] = json.loads(entry.value)
        return kept

    async def replace(self, key: str, record: Any) -> None:
        value = record if isinstance(record, bytes) else json.dumps(record).encode()
        await MemoryStore.put(self, key, value)

    async def sessions(self) -> list[str]:
        return [record["session_id"] for record in (await self.records()).values()]


def client_at(server: ScriptedServer, store: Any, **options: Any) -> Client:
    spec = {"name": "kit", "url": server.url, **options.pop("settings", {})}
    return Client(spec, state=store, **options)


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
