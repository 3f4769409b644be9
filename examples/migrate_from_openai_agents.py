"""OpenAI's MCPServerManager and our ServerGroup with the same servers, of which one is down."""

import asyncio
import logging

from agents.mcp import MCPServer, MCPServerManager, MCPServerStreamableHttp

from toolkeep import Client, ServerGroup
from toolkeep.events import ServerAdded
from toolkeep.testing import FaultProxy, ScriptedServer

logging.disable(logging.CRITICAL)  # the SDK logs the server that it could not reach


async def before(urls: dict[str, str]) -> None:
    servers: list[MCPServer] = [MCPServerStreamableHttp({"url": url}) for url in urls.values()]
    async with MCPServerManager(servers) as manager:
        print("before:", len(manager.active_servers), "of", len(manager.all_servers))


async def after(urls: dict[str, str], road: FaultProxy) -> None:
    back = asyncio.Event()
    clients = [Client({"name": name, "url": url}) for name, url in urls.items()]
    async with ServerGroup(clients) as group:
        print("after:", len(group.active), "of", len(group.configured))
        group.observe(lambda event: back.set() if isinstance(event, ServerAdded) else None)
        await road.heal()  # the server is back
        await back.wait()
        print("after:", len(group.active), "of", len(group.configured))


async def main() -> None:
    async with ScriptedServer.local() as one, FaultProxy.to("127.0.0.1", one.port) as road:
        road.refuse()
        urls = {"notes": one.url, "search": road.url()}
        await before(urls)
        await after(urls, road)


asyncio.run(main())
