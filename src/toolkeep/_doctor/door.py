"""Single HTTP requests beside the client's, to find out what is behind an address.

They go through the same link as the client's (sockets, trust, proxy, headers, credentials), to the
same origin, and change nothing there: a GET, or a POST of `ping`. A session that a server opens for
such a request, as the Python SDK's do, is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from urllib.parse import urlsplit

from toolkeep._doctor.case import Case
from toolkeep._doctor.record import STREAM
from toolkeep._engine.credentials import basic_auth, credentials, server_headers, static_key
from toolkeep._engine.setup import Setup
from toolkeep._wire import jsonrpc
from toolkeep._wire.attempt import Attempt
from toolkeep._wire.fault import WireFault
from toolkeep._wire.heading import Heading
from toolkeep._wire.reply import Reply
from toolkeep._wire.tap import Tap, TappedLink

_WAIT = 3.0
"""Seconds for one of these requests, at most: there may be several."""
_READ = 4096
USUAL = ("/mcp", "/sse", "/", "/mcp/", "/api/mcp", "/v1/mcp")
"""Where servers have their endpoint: the SDKs' own paths first."""


@dataclass(frozen=True, slots=True)
class Behind:
    """What answered."""

    status: int
    content_type: str
    beginning: str
    """Of its body."""

    @property
    def streamable(self) -> bool:
        """Whether it answers a POST in the protocol."""
        spoken = '"jsonrpc"' in self.beginning
        return spoken and self.content_type in ("application/json", STREAM)

    @property
    def older(self) -> bool:
        """Whether it begins a stream of HTTP+SSE."""
        return self.content_type == STREAM and "event: endpoint" in self.beginning


class Door:
    def __init__(self, case: Case, link: TappedLink) -> None:
        self._case, self._link = case, link
        auth = static_key(case.spec)
        headers = {**basic_auth(case.spec.url), **server_headers(case.spec)}
        self._heading = Heading(headers, credentials(case.spec, Setup(), auth), self._link.secrets)

    async def get(self, path: str | None = None) -> Behind | None:
        """None: nothing came."""
        headers = await self._heading.write("GET", {"accept": STREAM})
        del headers["content-type"]
        return await self._ask("GET", headers, None, path)

    async def post(self, path: str | None = None) -> Behind | None:
        headers = await self._heading.write("POST", {})
        return await self._ask("POST", headers, jsonrpc.request("check", "ping", None), path)

    async def _ask(
        self, method: str, headers: dict[str, str], body: bytes | None, path: str | None
    ) -> Behind | None:
        to = None if path is None else self._link.resolve(path)
        with contextlib.suppress(WireFault, TimeoutError):
            async with asyncio.timeout(min(_WAIT, self._case.wait)):
                reply = await self._link.send(method, headers, body, Attempt(), to=to)
            try:
                found = Behind(reply.status, reply.content_type, await _beginning(reply))
            finally:
                reply.discard()
            await self._give_back(reply.headers.get("mcp-session-id"), to)
            return found
        return None

    async def _give_back(self, session: str | None, to: str | None) -> None:
        if session is None:
            return
        headers = await self._heading.write("DELETE", {"mcp-session-id": session})
        del headers["content-type"]
        with contextlib.suppress(WireFault, TimeoutError):
            async with asyncio.timeout(min(_WAIT, self._case.wait)):
                (await self._link.send("DELETE", headers, None, Attempt(), to=to)).discard()

    async def elsewhere(self) -> tuple[str, str]:
        """The usual path that answers, and how it is to be spoken to; empty: none does."""
        own = urlsplit(self._case.spec.url).path or "/"
        below = own.rstrip("/") + "/mcp"
        for path in dict.fromkeys((*USUAL, below)):
            if path == own:
                continue
            behind = await self.get(path) if path.endswith("sse") else await self.post(path)
            if behind is not None and (behind.streamable or behind.older):
                return path, "sse" if behind.older else "http"
        return "", ""


async def _beginning(reply: Reply) -> str:
    """As much as comes within a moment: a stream need not end."""
    kept = b""
    with contextlib.suppress(WireFault, TimeoutError):
        async with asyncio.timeout(0.5):
            while len(kept) < _READ and (chunk := await reply.chunk()):
                kept += chunk
                if b"event: endpoint" in kept:
                    break
    return kept[:_READ].decode("utf-8", "replace")


@contextlib.asynccontextmanager
async def door_of(case: Case, tap: Tap) -> AsyncGenerator[Door]:
    link = TappedLink(case.spec, tap)
    try:
        yield Door(case, link)
    finally:
        await link.aclose()
