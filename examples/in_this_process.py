"""A server in this very process: functions, or an MCPServer of the SDK."""

import asyncio

from mcp.server.mcpserver import MCPServer

from toolkeep import Client, InvalidArguments


def area(width: float, height: float = 1.0) -> float:
    """The area of a rectangle."""
    return width * height


async def greet(name: str) -> str:
    """Say hello."""
    return f"Hello, {name}!"


async def main() -> None:
    async with Client([area, greet]) as client:
        print([tool.name for tool in await client.list_tools()])
        print((await client.call_tool("area", {"width": 3, "height": 4})).text)
        try:
            await client.call_tool("area", {"width": "wide"})
        except InvalidArguments as error:
            print(error.problems[0])

    server = MCPServer("greeter")
    server.add_tool(greet)
    async with Client(server) as client:
        print(client.name, client.era, (await client.call_tool("greet", {"name": "Ada"})).text)


asyncio.run(main())
