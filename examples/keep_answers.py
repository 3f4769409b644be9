"""Lists and resources that a modern server lets its clients keep are asked for once."""

import asyncio

from mcp.client.caching import InMemoryResponseCacheStore

from toolkeep import Client
from toolkeep.testing import ScriptedServer


async def main() -> None:
    shared = InMemoryResponseCacheStore()
    async with ScriptedServer.spawn(era="modern") as server:
        await server.set_cache(60_000)
        for name in ("ada", "ada", "grace"):
            async with Client(server.url, cache=shared, principal=name) as client:
                await client.read_resource("kit://notes")
                await client.read_resource("kit://notes")
            print(f"{name}: {len(await server.requests('resources/read'))} asked so far")

        async with Client(server.url, cache=shared, principal="ada") as client:
            await client.read_resource("kit://notes", refresh=True)
        print(f"refreshed: {len(await server.requests('resources/read'))} asked so far")


asyncio.run(main())
