"""What the engine's tests share: a server and a client that talk, and what the server saw.

Nothing here asserts anything, and nothing here knows the engine from within.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Unpack

import pytest

from toolkeep import Client, ToolkeepError
from toolkeep.auth import Authorizer
from toolkeep.client import SessionLostRule
from toolkeep.testing import Recorded, ScriptedServer
from toolkeep.testing.script import ServerOptions

PATIENCE = 10.0
"""Seconds after which a test that waits for something by itself gives up."""

eras = pytest.mark.parametrize("era", ["legacy", "modern"])
encodings = pytest.mark.parametrize("encoding", ["json", "sse"])


def client_for(
    url: str,
    settings: Mapping[str, Any] | None = None,
    *,
    auth: Authorizer | None = None,
    session_lost_rules: Sequence[SessionLostRule] = (),
    client_info: Mapping[str, str] | None = None,
) -> Client:
    spec = {"name": "kit", "url": url, **(settings or {})}
    return Client(spec, auth=auth, session_lost_rules=session_lost_rules, client_info=client_info)


@asynccontextmanager
async def talking(
    settings: Mapping[str, Any] | None = None,
    *,
    auth: Authorizer | None = None,
    session_lost_rules: Sequence[SessionLostRule] = (),
    **options: Unpack[ServerOptions],
) -> AsyncIterator[tuple[ScriptedServer, Client]]:
    """A local server, and a client of it that has not opened anything yet."""
    async with ScriptedServer.local(**options) as server:
        client = client_for(server.url, settings, auth=auth, session_lost_rules=session_lost_rules)
        async with aclosing(client):
            yield server, client


def methods(seen: Iterable[Recorded]) -> list[str]:
    """What was asked, in order: the JSON-RPC method, or the HTTP method where there is none."""
    return [record.rpc_method or record.http_method for record in seen]


async def together(*work: Awaitable[Any]) -> list[Any]:
    """All at once, within bounds; what one raises is its result."""
    async with asyncio.timeout(PATIENCE):
        return await asyncio.gather(*work, return_exceptions=True)


async def failure_of(work: Awaitable[Any]) -> ToolkeepError:
    """The error that the work must end with."""
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ToolkeepError) as caught:
            await work
    return caught.value
