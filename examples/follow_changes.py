"""What changes at a server is told, also if it changed while nobody could listen."""

import asyncio

from toolkeep import Changed, Client, Event
from toolkeep.testing import ScriptedServer


class Ear:
    """An observer that can be waited for."""

    def __init__(self) -> None:
        self._changes: asyncio.Queue[Changed] = asyncio.Queue()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Changed):
            self._changes.put_nowait(event)

    async def hears(self, what: str) -> Changed:
        while (change := await self._changes.get()).what != what:
            pass
        return change


async def main() -> None:
    ear = Ear()
    async with ScriptedServer.spawn() as server, Client(server.url) as client:
        client.observe(ear)
        print(len(await client.list_tools()), "tools")
        await client.subscribe("kit://notes")
        await server.resource_updated("kit://notes")
        print("changed:", (await ear.hears("resource")).uri)
        await server.set_tools([{"name": "more", "inputSchema": {"type": "object"}}])
        await server.break_streams()  # and nobody was told of the new tool
        await ear.hears("tools")
        print(len(await client.list_tools()), "tools")


asyncio.run(main())
