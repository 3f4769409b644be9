"""Credentials for every request, and a fresh token after a 401."""

import asyncio
from collections.abc import Mapping

from toolkeep import AuthNeeded, Client
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.testing import ScriptedServer


class Rotating:
    """An authorizer whose token can grow stale."""

    def __init__(self) -> None:
        self.token = "stale"

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        self.token = "fresh"  # here you would ask your identity provider
        return True


async def main() -> None:
    async with ScriptedServer.spawn(api_key="fresh") as server:
        async with Client({"url": server.url, "api_key": "fresh"}) as client:
            print((await client.call_tool("echo", {"text": "with a key"})).text)
        async with Client(server.url, auth=Rotating()) as client:
            print((await client.call_tool("echo", {"text": "with a new token"})).text)
        try:
            async with Client(server.url):
                print("never printed")
        except AuthNeeded as error:
            print(f"without: HTTP {error.status}, {error.www_authenticate}")


asyncio.run(main())
