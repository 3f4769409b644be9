"""`toolkeep.Client` with a login whose token is valid."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.contestants import client_key
from benchmarks.contestants.common import Send
from toolkeep.auth.configured import ServerAuth
from toolkeep.auth.grants import Grant
from toolkeep.auth.registration import OAuthClient
from toolkeep.auth.storage import LoginStorage
from toolkeep.config import ServerSpec
from toolkeep.state import MemoryStore


@asynccontextmanager
async def calls(url: str, era: Any) -> AsyncIterator[Send]:
    auth = ServerAuth(ServerSpec.parse({"url": url}), LoginStorage(MemoryStore())).login
    assert auth is not None
    now = time.time()
    grant = Grant(
        key=auth.settings.key(None),
        client=OAuthClient("https://login.example", "client", "dynamic"),
        token_endpoint="https://login.example/token",
        access_token="x" * 40,
        refresh_token="y" * 40,
        expires_at=now + 86_400,
        obtained_at=now,
    )
    await auth.grants.save(grant)
    async with client_key.calls(url, era, auth) as send:
        yield send
