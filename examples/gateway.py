"""A gateway in a program of your own: two servers at one URL, and a part of them at another."""

import asyncio
import socket

import uvicorn

from toolkeep import Client, Runtime
from toolkeep.config.gateway import GatewaySettings, ProfileSettings
from toolkeep.gateway import CLIENT_ANSWERS, Gateway
from toolkeep.testing import ScriptedServer

MATHS = ProfileSettings(name="maths", servers=("math",), include=("add",), prefix=False)


async def look(url: str) -> None:
    async with Client(url) as client:
        names = [tool.name for tool in await client.list_tools()]
        print(len(names), "tools, such as", next(name for name in names if "add" in name))


async def main() -> None:
    async with ScriptedServer.spawn() as math, ScriptedServer.spawn() as notes:
        runtime = Runtime({"math": math.url, "notes": notes.url}, **CLIENT_ANSWERS)
        app = Gateway(runtime, settings=GatewaySettings(profiles={"maths": MATHS}))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        listener = socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve([listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        await look(url)
        await look(f"{url}/maths")
        server.should_exit = True
        await serving


asyncio.run(main())
