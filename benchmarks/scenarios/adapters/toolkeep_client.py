"""`toolkeep.Client`.

Not its defaults: `timeouts.call` is the time granted; `listen` is on, so that it hears of a list
that has changed; `non_identity_headers` names the header of headers-of-each-call, without which a
legacy session refuses a call that brings headers of its own. A login is made with
`Runtime.begin_login`: a client uses logins, and makes none.
"""

import os

import aiohttp

from toolkeep import AuthNeeded, Client, Runtime, ToolkeepError

REDIRECT = "http://127.0.0.1:7777/callback"


class Adapter:
    name = "toolkeep.Client"
    packages = ("toolkeep",)

    async def open(self, url, timeout):
        self.client = Client(
            {
                "name": "kit",
                "url": url,
                "timeouts": {"call": timeout},
                "listen": True,
                "non_identity_headers": ["x-user"],  # says nothing about whose session it is
            }
        )

    async def log_in(self, url, timeout, folder):
        os.environ |= {"XDG_STATE_HOME": folder, "TOOLKEEP_KEY": "12" * 32}
        await self.open(url, timeout)
        try:
            await self.client.connect()
        except AuthNeeded:
            async with (
                Runtime({"mcpServers": {"kit": {"url": url}}}) as runtime,
                aiohttp.ClientSession() as browser,
            ):
                login = await runtime.begin_login("kit", redirect_uri=REDIRECT)
                async with browser.get(login.url, allow_redirects=False) as page:
                    await runtime.complete_login(page.headers["location"])
            await self.client.connect()

    async def list_tools(self):
        return [tool.name for tool in await self.client.list_tools()]

    async def call(self, name, arguments, *, headers, on_progress):
        result = await self.client.call_tool(
            name, arguments, headers=headers, on_progress=on_progress
        )
        return result.text, result.is_error

    def outcome(self, error):
        words = {"not sent": "not run", "refused": "not run", "unknown": "unknown"}
        delivery = getattr(error, "delivery", None)
        return words.get(delivery.value, "ran") if isinstance(error, ToolkeepError) else None

    async def close(self):
        await self.client.aclose()
