"""Gateways for tests: real ones behind uvicorn's protocol on loopback, alone or as replicas that
take turns, and clients: the SDK's, and one that sends what a test says."""

import asyncio
import contextlib
import io
import itertools
import json
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uvicorn
from mcp import Client
from uvicorn.server import ServerState

from toolkeep import Runtime
from toolkeep.config.gateway import GatewaySettings
from toolkeep.gateway import CLIENT_ANSWERS, Gateway
from toolkeep.state import MemoryStore

KEYS = ["11" * 32]
MODERN, LEGACY = "2026-07-28", "2025-11-25"
META = "io.modelcontextprotocol/"
BOTH = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@contextlib.asynccontextmanager
async def listening(
    app: Any, connections: set[Any] | None = None, **options: Any
) -> AsyncIterator[str]:
    """The URL of an ASGI app, served by uvicorn's protocol in this event loop. Not by its own loop,
    which looks only ten times a second whether it is to end. Its sockets send little at once."""
    config = uvicorn.Config(app, log_level="critical", lifespan="off", ws="none", **options)
    config.load()
    state = ServerState()
    if connections is not None:
        state.connections = connections

    def protocol() -> Any:
        kind: Any = config.http_protocol_class
        return kind(config=config, server_state=state, app_state={})

    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = await asyncio.get_running_loop().create_server(protocol, sock=listener)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for connection in list(state.connections):
            connection.shutdown()
            transport: Any = getattr(connection, "transport", None)
            transport.close()
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=2)
            assert not state.tasks, state.tasks


class Turns:
    """An ASGI app: each request goes to the next replica, as behind a plain round robin."""

    def __init__(self, apps: Sequence[Any]) -> None:
        self._apps = itertools.cycle(apps)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await next(self._apps)(scope, receive, send)


@dataclass
class Front:
    """A gateway, or several, at one URL."""

    url: str
    gateways: list[Gateway]
    hosts: list[str] = field(default_factory=list[str])
    """The URL of each replica by itself."""
    connections: set[Any] = field(default_factory=set[Any])
    """The connections to the replicas by themselves."""

    def break_connections(self) -> None:
        for one in tuple(self.connections):
            one.transport.abort()

    @property
    def gateway(self) -> Gateway:
        return self.gateways[0]

    @property
    def runtime(self) -> Runtime:
        return self.gateways[0].runtime


@contextlib.asynccontextmanager
async def front(
    config: Any,
    *,
    settings: dict[str, Any] | None = None,
    replicas: int = 1,
    store: Any = None,
    keys: Sequence[Any] = (),
    access: Any = None,
    **options: Any,
) -> AsyncIterator[Front]:
    """A gateway for these servers. `keys`: one list for each replica, or none for the same."""
    if replicas > 1 and store is None:
        store = MemoryStore()
    chosen = GatewaySettings(**(settings or {}))
    async with contextlib.AsyncExitStack() as stack:
        gateways: list[Gateway] = []
        for number in range(replicas):
            shared = {}
            if store is not None:
                shared = {"state": store, "keys": keys[number] if keys else KEYS}
            runtime = Runtime(config, **{**CLIENT_ANSWERS, **shared, **options})
            gateway = Gateway(runtime, settings=chosen, access=access)
            await stack.enter_async_context(gateway)
            gateways.append(gateway)
        open_now: set[Any] = set()
        hosts = [await stack.enter_async_context(listening(one, open_now)) for one in gateways]
        url = hosts[0]
        if replicas > 1:
            url = await stack.enter_async_context(listening(Turns(gateways)))
        yield Front(f"{url}/mcp", gateways, [f"{one}/mcp" for one in hosts], open_now)


def sdk(url: str, mode: str, **options: Any) -> Any:
    """The SDK's client. Untyped: the tests read results as they were sent."""
    return Client(url, mode=mode, **options)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The messages of an event stream."""
        lines = (line for line in self.text.splitlines() if line.startswith("data: {"))
        return [json.loads(line[6:]) for line in lines]


class Wire:
    """A client that sends what the test says, for what well-behaved clients cannot send."""

    def __init__(self, url: str, session: aiohttp.ClientSession, headers: dict[str, str]) -> None:
        self.url, self.session, self.headers = url, session, dict(headers)
        self._ids = itertools.count(1)

    async def send(
        self,
        body: Any = None,
        *,
        verb: str = "POST",
        url: str | None = None,
        drop: Sequence[str] = (),
        **headers: str,
    ) -> Answer:
        given = self._headers(headers, drop)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = None if body is None else io.BytesIO(data)
        async with self.session.request(verb, url or self.url, data=sent, headers=given) as found:
            text = await found.text()
            names = {name.lower(): value for name, value in found.headers.items()}
            return Answer(found.status, names, text)

    async def open(self, body: Any = None, *, verb: str = "POST", **headers: str) -> Any:
        """The response, with its body unread."""
        data = None if body is None else json.dumps(body)
        given = self._headers(headers, ())
        return await self.session.request(verb, self.url, data=data, headers=given)

    def _headers(self, headers: dict[str, str], drop: Sequence[str]) -> dict[str, str]:
        given = {**BOTH, **self.headers}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        return {name: value for name, value in given.items() if name not in drop}

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}

    async def call(self, method: str, **params: Any) -> Answer:
        return await self.send(self.request(method, **params))

    async def initialize(self, version: str = LEGACY, **capabilities: Any) -> Answer:
        info = {"name": "wire", "version": "1"}
        answer = await self.call(
            "initialize", protocolVersion=version, capabilities=capabilities, clientInfo=info
        )
        if answer.status == 200:
            self.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
            await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    async def modern(
        self, method: str, *, capabilities: Any = None, meta: Any = None, **params: Any
    ) -> Answer:
        body, headers = self.modern_request(method, capabilities, meta, params)
        return await self.send(body, **headers)

    def modern_request(
        self, method: str, capabilities: Any, meta: Any, params: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        about = {
            f"{META}protocolVersion": MODERN,
            f"{META}clientCapabilities": capabilities or {},
            f"{META}clientInfo": {"name": "wire", "version": "1"},
            **(meta or {}),
        }
        headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
        named = params.get("uri" if method == "resources/read" else "name")
        if isinstance(named, str):
            headers["mcp-name"] = named
        return self.request(method, _meta=about, **params), headers


@contextlib.asynccontextmanager
async def wire(url: str, **headers: str) -> AsyncIterator[Wire]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    async with aiohttp.ClientSession() as session:
        yield Wire(url, session, given)


async def next_message(response: Any) -> Any:
    """The next message of an event stream; None at its end."""
    async with asyncio.timeout(5):
        async for line in response.content:
            if line.startswith(b"data: {"):
                return json.loads(line[6:])
    return None


async def until(holds: Any, within: float = 5.0) -> None:
    """Wait until a condition holds, within a bound."""
    async with asyncio.timeout(within):
        while not holds():
            await asyncio.sleep(0.005)
