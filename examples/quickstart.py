import asyncio

from mainstay import Client
from mainstay.testing import ScriptedServer  # stands in for your server


async def main() -> None:
    async with ScriptedServer.spawn(era="legacy") as server, Client(server.url) as client:
        print(len(await client.list_tools()), "tools")
        await server.restart()  # it has forgotten our session
        result = await client.call_tool("add", {"a": 2, "b": 3})
        print(result.text, result.data["sum"])


asyncio.run(main())
