"""Several servers: those that fail are set aside, and join as soon as they can."""

import asyncio

from toolkeep import Client, Event, HealthChanged, Joined, ServerGroup, load
from toolkeep.testing import FaultProxy, ScriptedServer


async def main() -> None:
    back = asyncio.Event()

    def tell(event: Event) -> None:
        if isinstance(event, HealthChanged):
            print(f"  {event.server}: {event.before.value} -> {event.health.value}")
        if isinstance(event, Joined) and event.server == "search":
            back.set()

    async with (
        ScriptedServer.local() as notes,
        ScriptedServer.local(api_key="secret") as vault,
        FaultProxy.to("127.0.0.1", notes.port) as road,
    ):
        road.refuse()  # the server at its end is down
        urls = {"notes": notes.url, "vault": vault.url, "search": road.url()}
        group = ServerGroup([Client(spec) for spec in load(urls).servers])
        async with group:
            print(group.summary(), [client.name for client in group.active])
            for client, error in group.errors.items():
                print(f"{client.name}: {type(error).__name__}")
            group.observe(tell)
            await road.heal()
            await back.wait()
            print(group.summary(), [client.name for client in group.active])
            print((await group.active[1].call_tool("echo", {"text": "hello"})).text)


asyncio.run(main())
