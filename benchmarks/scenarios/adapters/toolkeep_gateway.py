"""`toolkeep.Client`, with `toolkeep.gateway.Gateway` between it and the server.

Not the client's defaults: as in toolkeep_client.py. The gateway's runtime grants each call the time
that the user grants; its client waits one second longer, to be told. Headers of calls end at a
gateway.
"""

import asyncio
import os
import socket

import aiohttp
import uvicorn

from toolkeep import AuthNeeded, Client, Runtime, ToolkeepError
from toolkeep.config.gateway import GatewaySettings
from toolkeep.gateway import CLIENT_ANSWERS, Gateway

REDIRECT = "http://127.0.0.1:7777/callback"
BARE = GatewaySettings(profiles={"bare": {"prefix": False}})


class Failed(Exception):
    """What a gateway says of a call that its server failed, with what it says in `_meta`."""

    def __init__(self, result):
        super().__init__(result.text)
        self.delivery = result.meta["toolkeep/delivery"]


class Adapter:
    name = "toolkeep gateway"
    packages = ("toolkeep", "uvicorn")

    async def open(self, url, timeout):
        timeouts = {"call": timeout, "connect": timeout}
        server = {"url": url, "timeouts": timeouts, "listen": True}
        self.runtime = Runtime({"mcpServers": {"kit": server}}, **CLIENT_ANSWERS)
        self.gateway = Gateway(self.runtime, settings=BARE)
        await self.gateway.start()
        await self._serve()
        self.client = Client(
            {
                "name": "gateway",
                "url": f"http://127.0.0.1:{self.port}/mcp/bare",
                "timeouts": {"call": timeout + 1, "connect": timeout},
                "listen": True,
            }
        )

    async def _serve(self):
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(self.gateway, lifespan="off", log_level="critical", ws="none")
        self.server = uvicorn.Server(config)
        self.server.install_signal_handlers = lambda: None
        self.serving = asyncio.create_task(self.server.serve([listener]))
        while not self.server.started:
            await asyncio.sleep(0.01)

    async def log_in(self, url, timeout, folder):
        os.environ |= {"XDG_STATE_HOME": folder, "TOOLKEEP_KEY": "12" * 32}
        await self.open(url, timeout)
        error = self.runtime.servers[0].error
        if isinstance(error, AuthNeeded):
            login = await self.runtime.begin_login("kit", redirect_uri=REDIRECT)
            async with (
                aiohttp.ClientSession() as browser,
                browser.get(login.url, allow_redirects=False) as page,
            ):
                await self.runtime.complete_login(page.headers["location"])
        elif error is not None:
            raise error

    async def list_tools(self):
        return [tool.name for tool in await self.client.list_tools()]

    async def call(self, name, arguments, *, headers, on_progress):
        if headers:
            raise NotImplementedError("headers of a call end at the gateway")
        result = await self.client.call_tool(name, arguments, on_progress=on_progress)
        if result.is_error and "toolkeep/delivery" in (result.meta or {}):
            raise Failed(result)
        return result.text, result.is_error

    def outcome(self, error):
        words = {"not sent": "not run", "refused": "not run", "unknown": "unknown"}
        delivery = getattr(error, "delivery", None)
        if isinstance(error, Failed):
            return words.get(delivery, "ran")
        return words.get(delivery.value, "ran") if isinstance(error, ToolkeepError) else None

    async def close(self):
        await self.client.aclose()
        self.server.should_exit = self.server.force_exit = True
        await self.serving
        await self.gateway.stop()
        await self.runtime.aclose()
