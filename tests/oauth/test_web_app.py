"""The web application of examples/web_login.py: two replicas, two users."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn

from examples.web_login import make_app
from tests.oauth.test_connected import config_of, guarded

pytestmark = pytest.mark.requirement("N5", "N7")


@asynccontextmanager
async def serving(app: Any, sock: socket.socket) -> AsyncIterator[None]:
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
    task = asyncio.create_task(server.serve(sockets=[sock]))
    async with asyncio.timeout(30):
        while not server.started:
            assert not task.done()
            await asyncio.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        await task


def listening() -> tuple[socket.socket, str]:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock, f"http://127.0.0.1:{sock.getsockname()[1]}"


async def visit(url: str, user: str) -> str:
    """What the user's browser shows in the end."""
    jar = aiohttp.CookieJar(unsafe=True)
    async with (
        aiohttp.ClientSession(cookie_jar=jar, headers={"x-user": user}) as browser,
        browser.get(url) as page,
    ):
        assert page.status == 200, await page.text()
        return await page.text()


async def test_two_users_of_two_replicas_have_their_own_accounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("TOOLKEEP_KEY", "66" * 32)
    (first, one), (second, two) = listening(), listening()
    async with guarded() as (_, origin), AsyncExitStack() as stack:
        config = config_of(origin, auth="oauth")
        # Each sends its users back to the other one.
        await stack.enter_async_context(serving(make_app(config, f"{two}/callback"), first))
        await stack.enter_async_context(serving(make_app(config, f"{one}/callback"), second))
        for user, start in (("ann", one), ("ben", two)):
            assert f'"x-user": "{user}"' in await visit(start, user)
        for user in ("ann", "ben", "ann"):
            for replica in (one, two):
                assert f'"x-user": "{user}"' in await visit(replica, user)
