"""FastMCP's client and ours: a tool fails, and the server forgets its sessions all the time."""

import asyncio
import logging

import fastmcp

from toolkeep import Client
from toolkeep.testing import ScriptedServer

CALLS = [("fail", {"message": "no such invoice"}), ("record", {})]
logging.disable(logging.WARNING)  # the SDK below FastMCP logs that a session could not be ended


async def before(server: ScriptedServer) -> None:
    async with fastmcp.Client(server.url, mode="legacy") as client:
        for tool, arguments in CALLS:
            try:
                print("before:", (await client.call_tool(tool, arguments)).data)
            except Exception as error:
                print("before:", type(error).__name__, error)
            await server.forget_sessions()


async def after(server: ScriptedServer) -> None:
    async with Client(server.url, mode="legacy") as client:
        for tool, arguments in CALLS:
            result = await client.call_tool(tool, arguments)
            print("after:", result.is_error, result.text)
            await server.forget_sessions()


async def main() -> None:
    async with ScriptedServer.local() as server:  # stands in for yours
        await before(server)
        await after(server)


asyncio.run(main())
