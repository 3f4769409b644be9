"""FastMCP's client.

Not its defaults: `init_timeout` and `timeout` are the time granted; `raise_on_error` is off, so
that what a tool says of its failure is told from what the client raises. For logins: its `OAuth`,
with tokens in files.
"""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
from fastmcp import Client
from fastmcp.client.auth import OAuth
from key_value.aio.stores.filetree import (
    FileTreeStore,
    FileTreeV1CollectionSanitizationStrategy,
    FileTreeV1KeySanitizationStrategy,
)
from mcp.shared.auth import AuthorizationCodeResult


def stored_in(folder):
    """Its storage in files, with the strategies that make URLs fit as their names."""
    where = Path(folder)
    return FileTreeStore(
        data_directory=where,
        key_sanitization_strategy=FileTreeV1KeySanitizationStrategy(where),
        collection_sanitization_strategy=FileTreeV1CollectionSanitizationStrategy(where),
    )


class Headless(OAuth):
    """Its OAuth, with a request in place of the browser."""

    async def redirect_handler(self, authorization_url):
        async with httpx2.AsyncClient() as browser:
            self.callback = (await browser.get(authorization_url)).headers["location"]

    async def callback_handler(self):
        found = {name: one[0] for name, one in parse_qs(urlsplit(self.callback).query).items()}
        return AuthorizationCodeResult(**found)


class Adapter:
    name = "FastMCP"
    packages = ("fastmcp", "mcp")

    async def open(self, url, timeout):
        self.client, self.timeout = Client(url, init_timeout=timeout), timeout
        await self.client.__aenter__()

    async def log_in(self, url, timeout, folder):
        auth = Headless(url, token_storage=stored_in(folder))
        self.client, self.timeout = Client(url, init_timeout=timeout, auth=auth), timeout
        await self.client.__aenter__()

    async def list_tools(self):
        return [tool.name for tool in await self.client.list_tools()]

    async def call(self, name, arguments, *, headers, on_progress):
        if headers:
            raise NotImplementedError("a call has no headers of its own")
        result = await self.client.call_tool(
            name,
            arguments,
            timeout=self.timeout,
            progress_handler=on_progress,
            raise_on_error=False,
        )
        return "".join(part.text for part in result.content), result.is_error

    async def close(self):
        await self.client.__aexit__(None, None, None)
