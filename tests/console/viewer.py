"""A viewer without a browser: it logs in, asks the API and follows the event stream, over HTTP."""

import asyncio
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp

from toolkeep import Runtime
from toolkeep.console import ConsoleServer

BOUND = 10.0
"""Seconds after which a test gives up waiting."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Any
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Told:
    """One event of the stream."""

    kind: str
    data: Any
    id: str


@dataclass
class Viewer:
    """One browser at one console."""

    session: aiohttp.ClientSession
    url: str
    token: str = ""
    everything: list[str] = field(default_factory=list[str])
    """All bodies that it got."""

    @classmethod
    def of(cls, session: aiohttp.ClientSession, server: ConsoleServer) -> Self:
        url, _, token = server.url.partition("/#token=")
        return cls(session, url, token)

    async def log_in(self) -> Answer:
        return await self.post("login", {"token": self.token})

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.request("GET", f"/api/{path}", headers=headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        given = {"content-type": "application/json", **headers}
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        return await self.request("POST", f"/api/{path}", data=io.BytesIO(data), headers=given)

    async def request(self, method: str, path: str, **options: Any) -> Answer:
        async with asyncio.timeout(BOUND):
            async with self.session.request(method, f"{self.url}{path}", **options) as response:
                text = await response.text()
        self.everything.append(text)
        return Answer(response.status, response.headers, text)

    async def stream(self, last_id: str = "") -> AsyncGenerator[Told]:
        headers = {"last-event-id": last_id} if last_id else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_read=BOUND)
        url = f"{self.url}/api/events"
        async with self.session.get(url, headers=headers, timeout=timeout) as response:
            assert response.status == 200, await response.text()
            lines: dict[str, str] = {}
            while line := (await response.content.readline()).decode():
                self.everything.append(line)
                name, _, value = line.rstrip("\n").partition(": ")
                if line == "\n" and "data" in lines:
                    kind, number = lines.pop("event"), lines.pop("id", "")
                    yield Told(kind, json.loads(lines.pop("data")), number)
                elif name:
                    lines[name] = value


class Follower:
    """Follows the stream of a viewer, and keeps the latest states, as the page does."""

    def __init__(self, viewer: Viewer, last_id: str = "") -> None:
        self._stream = viewer.stream(last_id)
        self.told: list[Told] = []
        self.calls: dict[str, dict[str, Any]] = {}
        self.last_id = last_id
        self.state: dict[str, Any] = {}

    async def next(self) -> Told:
        async with asyncio.timeout(BOUND):
            told = await anext(self._stream)
        self.told.append(told)
        self.last_id = told.id or self.last_id
        if told.kind == "batch":
            self.calls |= {call["id"]: call for call in told.data.get("calls", [])}
            self.state |= told.data
        return told

    async def until(self, seen: Callable[[], Any]) -> Any:
        async with asyncio.timeout(BOUND):
            while not (found := seen()):
                await self.next()
        return found

    async def ended(self, tool: str) -> dict[str, Any]:
        """The latest call of this tool, once it has ended."""

        def found() -> Any:
            of = [call for call in self.calls.values() if call["tool"] == tool]
            return next((call for call in reversed(of) if call["state"] == "ended"), None)

        return await self.until(found)

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def following(viewer: Viewer, last_id: str = "") -> AsyncIterator[Follower]:
    """A follower that has got its first batch, so calls are recorded from here on."""
    follower = Follower(viewer, last_id)
    try:
        await follower.until(lambda: follower.told)
        yield follower
    finally:
        await follower.aclose()


@asynccontextmanager
async def viewing(runtime: Runtime, **options: Any) -> AsyncIterator[Viewer]:
    """The console of a runtime on a free port, and a viewer that is logged in."""
    server = await runtime.serve_console(0, **options)
    async with browser() as session:
        viewer = Viewer.of(session, server)
        assert (await viewer.log_in()).status == 204
        yield viewer
    await server.aclose()


@asynccontextmanager
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    jar = aiohttp.CookieJar(unsafe=True)  # cookies of IP addresses
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        yield session


def port_of(viewer: Viewer) -> int:
    port = urlsplit(viewer.url).port
    assert port is not None
    return port
