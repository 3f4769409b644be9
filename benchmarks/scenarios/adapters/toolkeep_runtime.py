"""`toolkeep.Runtime`, with one server.

Not its defaults: `timeouts.call` and `timeouts.connect` are the time granted.
"""

import os

import aiohttp

from toolkeep import AuthNeeded, Runtime, ToolkeepError

REDIRECT = "http://127.0.0.1:7777/callback"


class Adapter:
    name = "toolkeep.Runtime"
    packages = ("toolkeep",)

    async def open(self, url, timeout):
        server = {"url": url, "timeouts": {"call": timeout, "connect": timeout}}
        self.runtime = Runtime({"mcpServers": {"kit": server}})
        await self.runtime.connect()

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
        return [tool.tool for tool in self.runtime.catalogue.tools]

    async def call(self, name, arguments, *, headers, on_progress):
        result = await self.runtime.call(
            f"kit.{name}", arguments, headers=headers, on_progress=on_progress
        )
        return result.text, result.is_error

    def outcome(self, error):
        words = {"not sent": "not run", "refused": "not run", "unknown": "unknown"}
        delivery = getattr(error, "delivery", None)
        return words.get(delivery.value, "ran") if isinstance(error, ToolkeepError) else None

    async def close(self):
        await self.runtime.aclose()
