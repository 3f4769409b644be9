"""`mcp.Client` of the official SDK.

Not its default: `read_timeout_seconds` is the time granted. For logins: its `OAuthClientProvider`,
with tokens in files.
"""

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)


class Storage:
    """Tokens in files, as its documentation asks a user to write it."""

    def __init__(self, folder):
        self.tokens, self.client = Path(folder) / "tokens.json", Path(folder) / "client.json"

    async def get_tokens(self):
        if self.tokens.exists():
            return OAuthToken(**json.loads(self.tokens.read_text()))
        return None

    async def set_tokens(self, tokens):
        self.tokens.write_text(tokens.model_dump_json())

    async def get_client_info(self):
        if self.client.exists():
            return OAuthClientInformationFull(**json.loads(self.client.read_text()))
        return None

    async def set_client_info(self, client_info):
        self.client.write_text(client_info.model_dump_json())


class Adapter:
    name = "mcp.Client"
    packages = ("mcp",)

    async def open(self, url, timeout):
        self.client = Client(url, read_timeout_seconds=timeout)
        await self.client.__aenter__()

    async def log_in(self, url, timeout, folder):
        async def browse(login_url):
            async with httpx2.AsyncClient() as browser:
                self.callback = (await browser.get(login_url)).headers["location"]

        async def callback():
            found = {name: one[0] for name, one in parse_qs(urlsplit(self.callback).query).items()}
            return AuthorizationCodeResult(**found)

        wanted = OAuthClientMetadata(
            redirect_uris=["http://127.0.0.1:7777/callback"],
            grant_types=["authorization_code", "refresh_token"],
            token_endpoint_auth_method="none",
        )
        auth = OAuthClientProvider(url, wanted, Storage(folder), browse, callback)
        http = httpx2.AsyncClient(auth=auth, timeout=timeout)
        transport = streamable_http_client(url, http_client=http)
        self.client = Client(transport, read_timeout_seconds=timeout)
        await self.client.__aenter__()

    async def list_tools(self):
        names, seen = [], [None]
        while True:
            page = await self.client.list_tools(cursor=seen[-1])
            names += [tool.name for tool in page.tools]
            if page.next_cursor is None:
                return names
            if page.next_cursor in seen:
                raise NotImplementedError("following pages is its caller's business")
            seen.append(page.next_cursor)

    async def call(self, name, arguments, *, headers, on_progress):
        if headers:
            raise NotImplementedError("a call has no headers of its own")
        result = await self.client.call_tool(name, arguments, progress_callback=on_progress)
        return "".join(part.text for part in result.content), result.is_error

    async def close(self):
        await self.client.__aexit__(None, None, None)
