"""A server of 2024-11-05, which knows HTTP+SSE and nothing newer: found out, or said."""

import asyncio
from typing import Any

from toolkeep import Client
from toolkeep.testing import ScriptedServer


async def greet(where: Any, server: ScriptedServer) -> None:
    async with Client(where) as client:
        print(client.protocol_version, (await client.call_tool("echo", {"text": "hello"})).text)
    print("  " + ", ".join(r.rpc_method or r.http_method for r in await server.requests()))
    await server.clear()


async def main() -> None:
    async with ScriptedServer.spawn(transport="sse", protocol_version="2024-11-05") as server:
        await greet(server.url, server)
        await greet({"url": server.url, "transport": "sse"}, server)


asyncio.run(main())
