"""The same program with the SDK's client and with ours; then its server forgets the session."""

import asyncio
import logging

import mcp

from toolkeep import Client
from toolkeep.testing import ScriptedServer

logging.disable(logging.WARNING)  # the SDK logs that the session could not be ended


async def before(server: ScriptedServer) -> None:
    async with mcp.Client(server.url, mode="legacy") as client:
        result = await client.call_tool("add", {"a": 2, "b": 3})
        print("before:", result.structured_content)
        await server.forget_sessions()
        try:
            await client.call_tool("echo", {"text": "still here"})
        except mcp.MCPError as error:
            print("before:", error)


async def after(server: ScriptedServer) -> None:
    async with Client(server.url, mode="legacy") as client:
        result = await client.call_tool("add", {"a": 2, "b": 3})
        print("after:", result.data)
        await server.forget_sessions()
        print("after:", (await client.call_tool("echo", {"text": "still here"})).text)


async def main() -> None:
    async with ScriptedServer.local() as server:  # stands in for yours
        await before(server)
        await after(server)


asyncio.run(main())
