"""Scenarios: servers that want a login, and what becomes of it.

The authorization server and the guard of the MCP server are on two ports, so that what is asked of
the wrong one is seen. `browsers` counts how often a person would have to log in.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import aiohttp
from aiohttp import web

from benchmarks.scenarios.scenario import scenario
from benchmarks.scenarios.stage import PROMPT, Stage

_BEHIND = 6
_FORBIDDEN = "169.254.169.254"
_AGAIN = 8.0
"""Seconds for a client to try again after an outage."""
_HOP_HEADERS = ("host", "content-length", "transfer-encoding", "connection", "authorization")


Handler = Callable[[Any], Awaitable[web.StreamResponse]]


@dataclass
class Logins:
    """An authorization server that approves at once, and a guard before an MCP server."""

    upstream: str
    folder: str
    life: float = 3600.0
    """Seconds that an access token is said to live."""
    pkce: bool = True
    registers: bool = True
    named_metadata: str = ""
    """The resource metadata that the challenge names; empty: the right one."""
    outage: bool = False
    """Whether the token endpoint answers 503."""
    pause: float = 0.0
    """Seconds before the token endpoint answers."""
    browsers: int = 0
    asked: list[str] = field(default_factory=list[str])
    """Host and path of each request, `login /token` or `mcp /token`."""
    grants: list[str] = field(default_factory=list[str])
    proxied: list[str] = field(default_factory=list[str])
    login: str = ""
    mcp: str = ""
    proxy: str = ""
    _valid: set[str] = field(default_factory=set[str])
    _refresh: set[str] = field(default_factory=set[str])

    def expire(self) -> None:
        """No access token is valid any more; refresh tokens are."""
        self._valid.clear()

    @property
    def url(self) -> str:
        return f"{self.mcp}/mcp"

    def metadata(self) -> dict[str, object]:
        found: dict[str, object] = {
            "issuer": self.login,
            "authorization_endpoint": f"{self.login}/authorize",
            "token_endpoint": f"{self.login}/token",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "token_endpoint_auth_methods_supported": ["none"],
        }
        if self.pkce:
            found["code_challenge_methods_supported"] = ["S256"]
        if self.registers:
            found["registration_endpoint"] = f"{self.login}/register"
        return found

    async def at_login(self, request: web.Request) -> web.Response:
        self.asked.append(f"login {request.path}")
        match request.path:
            case "/.well-known/oauth-authorization-server":
                return web.json_response(self.metadata())
            case "/register" if self.registers:
                given = await request.json()
                known = {"redirect_uris": given["redirect_uris"], "client_id": "client"}
                registered = {**known, "token_endpoint_auth_method": "none"}
                return web.json_response(registered, status=201)
            case "/authorize":
                self.browsers += 1
                query = {"code": "the-code", "state": request.query["state"]}
                where = f"{request.query['redirect_uri']}?{urlencode(query)}"
                raise web.HTTPFound(where)
            case "/token":
                return await self._token(request)
            case _:
                return web.json_response({}, status=404)

    async def _token(self, request: web.Request) -> web.Response:
        form = await request.post()
        await asyncio.sleep(self.pause)
        self.grants.append(kind := str(form["grant_type"]))
        if self.outage:
            return web.json_response({"error": "temporarily_unavailable"}, status=503)
        if kind == "refresh_token":
            given = str(form["refresh_token"])
            if given not in self._refresh:
                return web.json_response({"error": "invalid_grant"}, status=400)
            self._refresh.remove(given)
        access, refresh = secrets.token_hex(8), secrets.token_hex(8)
        self._valid.add(access)
        self._refresh.add(refresh)
        tokens = {"access_token": access, "refresh_token": refresh, "token_type": "Bearer"}
        return web.json_response({**tokens, "expires_in": int(self.life)})

    async def at_mcp(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"mcp {request.path}")
        well_known = "/.well-known/oauth-protected-resource"
        if request.path in (well_known, f"{well_known}/mcp"):
            found = {"resource": self.url, "authorization_servers": [self.login]}
            return web.json_response(found)
        if request.path != "/mcp":
            return web.json_response({}, status=404)
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self._valid:
            named = self.named_metadata or f"{self.mcp}{well_known}/mcp"
            challenge = f'Bearer resource_metadata="{named}"'
            return web.json_response({}, status=401, headers={"www-authenticate": challenge})
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_HEADERS}
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method, self.upstream, headers=headers, data=await request.read()
            ) as answer,
        ):
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP_HEADERS}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):  # one of both has left
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
            return response

    async def at_proxy(self, request: web.BaseRequest) -> web.Response:
        self.proxied.append(request.raw_path)
        return web.json_response({}, status=404)


@asynccontextmanager
async def guarded(stage: Stage) -> AsyncIterator[Logins]:
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        made = Logins(stage.server.url, folder)
        made.login, made.mcp, made.proxy = [
            await stack.enter_async_context(_serving(handler))
            for handler in (made.at_login, made.at_mcp, made.at_proxy)
        ]
        yield made


@asynccontextmanager
async def _serving(handler: Handler) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.2)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _logged_in(stage: Stage, server: Logins) -> None:
    """Log in, and make a first call."""
    opened = await stage.log_in(server.url, server.folder)
    stage.require(opened.what == "answer", f"logging in: {opened}")
    await stage.answered("echo", text="first")
    stage.require(server.browsers == 1, f"{server.browsers} logins in a browser, not one")


def _no_browser_again(stage: Stage, server: Logins) -> None:
    wrong = sorted({one for one in server.asked if one in ("mcp /token", "mcp /register")})
    stage.require(not wrong, f"asked of the MCP server: {wrong}; browsers: {server.browsers}")
    stage.require(server.browsers == 1, f"a browser was opened again; grants: {server.grants}")


@scenario(
    "after a restart, the stored access token is refused; the refresh token is good",
    "the token is refreshed at the authorization server, and no browser is opened",
)
async def refresh_before_browser(stage: Stage) -> None:
    async with guarded(stage) as server:
        await _logged_in(stage, server)
        await stage.close()
        server.expire()
        again = await stage.log_in(server.url, server.folder)
        stage.require(again.what == "answer", f"after the restart: {again}")
        await stage.answered("record", key="key")
        _no_browser_again(stage, server)


@scenario(
    "after a restart, the stored access token has expired by the clock",
    "the token is refreshed at the authorization server and not at the MCP server, and no browser"
    " is opened",
)
async def refresh_at_its_server(stage: Stage) -> None:
    async with guarded(stage) as server:
        server.life = 1
        await _logged_in(stage, server)
        await stage.close()
        await asyncio.sleep(server.life + 0.2)
        server.expire()
        server.life = 3600
        again = await stage.log_in(server.url, server.folder)
        _no_browser_again(stage, server)
        stage.require(again.what == "answer", f"after the restart: {again}")
        await stage.answered("record", key="key")
        _no_browser_again(stage, server)


@scenario(
    "the token endpoint answers 503 to a refresh, and is back soon",
    f"the call fails, the login is kept, a call within {_AGAIN:.0f} s has its answer, and no"
    " browser is opened",
)
async def refresh_answered_by_503(stage: Stage) -> None:
    async with guarded(stage) as server:
        await _logged_in(stage, server)
        server.outage = True
        server.expire()
        told = await stage.call("record", key="key")
        stage.note(f"told: {told}")
        server.outage = False
        began = time.monotonic()
        while not told.good and time.monotonic() - began < _AGAIN:
            await asyncio.sleep(0.5)
            told = await stage.call("record", key="key")
        _no_browser_again(stage, server)
        stage.require(told.good, f"a call after the outage: {told}")


@scenario(
    "the authorization server does not say that it supports PKCE",
    "the login is refused, as the specification asks, before a browser is opened",
)
async def login_without_pkce(stage: Stage) -> None:
    async with guarded(stage) as server:
        server.pkce = False
        told = await stage.log_in(server.url, server.folder)
        stage.require(told.what == "error", f"logging in: {told}")
        stage.require(server.browsers == 0, "a browser was opened")
        stage.note(f"told: {told}")


@scenario(
    f"a 401 names resource metadata at http://{_FORBIDDEN}/",
    "nothing is asked of that address",
)
async def metadata_at_a_cloud_address(stage: Stage) -> None:
    async with guarded(stage) as server:
        server.named_metadata = f"http://{_FORBIDDEN}/latest/meta-data/"
        told = await stage.log_in(server.url, server.folder, proxy=server.proxy)
        asked = [one for one in server.proxied if _FORBIDDEN in one]
        stage.require(not asked, f"asked for {asked}")
        stage.note(f"told: {told}")


@scenario(
    "the authorization server offers no registration, and no client is configured",
    "the login fails, and nothing is registered anywhere",
)
async def registration_not_offered(stage: Stage) -> None:
    async with guarded(stage) as server:
        server.registers = False
        told = await stage.log_in(server.url, server.folder)
        asked = [one for one in server.asked if one.endswith("/register")]
        stage.require(not asked, f"asked: {asked}")
        stage.require(told.what == "error", f"logging in: {told}")
        stage.note(f"told: {told}")


@scenario(
    f"with a login, {_BEHIND} calls of 0.5 s at once",
    "none waits for another: all have their answers within 2 s",
)
async def calls_with_a_login_at_once(stage: Stage) -> None:
    async with guarded(stage) as server:
        await _logged_in(stage, server)
        began = time.monotonic()
        slow = [stage.start("slow", seconds=0.5, key=f"slow-{n}") for n in range(_BEHIND)]
        for told in await stage.outcomes(slow):
            stage.require(told.good, f"a call: {told}")
        took = time.monotonic() - began
        stage.require(took < 2.0, f"they took {took:.1f} s")


@scenario(
    "a call is cancelled while the token is refreshed for it",
    f"the next call has its answer within {PROMPT:.0f} s, and no browser is opened",
)
async def cancelled_in_a_refresh(stage: Stage) -> None:
    async with guarded(stage) as server:
        await _logged_in(stage, server)
        server.expire()
        server.pause = 1.0
        going = stage.start("record", key="gone")
        async with asyncio.timeout(PROMPT):
            while server.asked.count("login /token") < 2 and server.browsers == 1:
                await asyncio.sleep(0.01)
        await stage.cancel(going)
        server.pause = 0.0
        told = await stage.answered("record", what="the next call", key="key")
        stage.require(told.seconds < PROMPT, f"the next call took {told.seconds:.1f} s")
        _no_browser_again(stage, server)


ALL = (
    *(refresh_before_browser, refresh_at_its_server, refresh_answered_by_503),
    *(login_without_pkce, metadata_at_a_cloud_address, registration_not_offered),
    *(calls_with_a_login_at_once, cancelled_in_a_refresh),
)
