"""Sends a gateway what no client would send, led by the branches of its code (atheris).

`make fuzz-gateway` runs it for five minutes, from seeds that are valid requests of both eras. It
fails on an exception, on a 500, on an error of the gateway's own (-32603), on a request that takes
longer than a few seconds, and on memory beyond a bound.

    python -m chaos.gateway_fuzz [-max_total_time=300] [options of libFuzzer]
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from toolkeep import Runtime
from toolkeep.testing import ScriptedServer

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
WITHIN = 10.0
"""Seconds for one request. `Limits` of the gateway end others before."""
RSS_MB = 700
FOUND = Path("build") / "fuzz"
"""Where an input that breaks the gateway is written to."""
MAX_INPUT = 8192
VERBS = ("POST", "POST", "POST", "POST", "POST", "GET", "DELETE", "OPTIONS")
CONTENT_TYPES = (b"application/json", b"application/json; charset=utf-8", b"text/plain", b"")
LEGACY, MODERN_ERA, NO_ERA, RAW = range(4)


def request(method: str, params: Mapping[str, Any] | None, request_id: Any = 1) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "id": request_id}
    if params is not None:
        message["params"] = params
    return json.dumps(message).encode()


def seeds() -> Iterator[bytes]:
    """A valid request for each method of each era, behind the byte that says how it is sent."""
    info = {"name": "fuzz", "version": "1"}
    about = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {"elicitation": {}}}
    initialize = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
    ref = {"type": "ref/prompt", "name": "kit__greet"}
    both: dict[str, Any] = {
        "tools/list": {"cursor": "WzEsICJ4Il0="},
        "tools/call": {"name": "kit__echo", "arguments": {"text": "x"}},
        "prompts/list": {},
        "prompts/get": {"name": "kit__greet", "arguments": {"name": "x"}},
        "resources/list": {},
        "resources/templates/list": {},
        "resources/read": {"uri": "kit://notes"},
        "completion/complete": {"ref": ref, "argument": {"name": "name", "value": "x"}},
    }
    legacy: dict[str, Any] = {
        **both,
        "initialize": initialize,
        "ping": None,
        "logging/setLevel": {"level": "debug"},
        "resources/subscribe": {"uri": "kit://notes"},
        "resources/unsubscribe": {"uri": "kit://notes"},
        "notifications/cancelled": {"requestId": 1},
    }
    for method, params in legacy.items():
        yield bytes([LEGACY, 0, 0]) + request(method, params)
    for method, params in {**both, "server/discover": {}}.items():
        yield bytes([MODERN_ERA, 0, 0]) + request(method, {**params, "_meta": about})
    asked = {"name": "kit__ask", "arguments": {}, "inputResponses": {}, "requestState": "e30"}
    yield bytes([MODERN_ERA, 0, 0]) + request("tools/call", {**asked, "_meta": about})
    yield bytes([NO_ERA, 0, 0]) + request("initialize", initialize)
    yield bytes([LEGACY, 0, 0]) + b'{"jsonrpc":"2.0","id":"ask.x.y","result":{}}'
    yield bytes([LEGACY, 5, 0]) + b"last-event-id: a.1\naccept: text/event-stream\n"
    listen = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["kit://notes"]}}
    yield bytes([MODERN_ERA, 0, 0]) + request("subscriptions/listen", {**listen, "_meta": about})
    yield bytes([RAW, 7, 0]) + b"origin: http://[::1]:80\naccess-control-request-method: POST\n\n"
    yield bytes([LEGACY, 5, 0]) + b"last-event-id: listen.1\naccept: text/event-stream\n\n"
    yield bytes([RAW, 0, 0]) + b"mcp-session-id: x\nmcp-protocol-version: 2025-11-25\n\n{}"


class Fuzz:
    """A gateway in this process, and one request at a time to it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.app: Any = None
        self._session = b""
        self._closing: Any = None

    async def open(self) -> None:
        from toolkeep.config.gateway import GatewaySettings
        from toolkeep.gateway import CLIENT_ANSWERS, Gateway

        kit = ScriptedServer.local(record=False)
        await kit.__aenter__()
        self._closing = kit
        settings = GatewaySettings(profiles={"bare": {"prefix": False}})  # pyright: ignore[reportArgumentType]
        self.app = Gateway(Runtime({"kit": kit.url}, **CLIENT_ANSWERS), settings=settings)
        await self.app.start()
        body = next(one for one in seeds() if b'"initialize"' in one)[3:]
        _, headers, _ = await self._send("POST", [*self._base(0)], [body])
        self._session = headers[b"mcp-session-id"]

    def _base(self, kind: int) -> Iterator[tuple[bytes, bytes]]:
        yield b"host", b"localhost"
        yield b"accept", b"application/json, text/event-stream"
        if content_type := CONTENT_TYPES[kind % len(CONTENT_TYPES)]:
            yield b"content-type", content_type

    def one(self, data: bytes) -> None:
        """Called by the fuzzer with one input."""
        if len(data) >= 4:
            self.loop.run_until_complete(asyncio.wait_for(self.send_input(data), WITHIN))

    async def send_input(self, data: bytes) -> int:
        """The status of the answer. Raises `RuntimeError` for a fault of the gateway."""
        how, verb, kind, rest = data[0] % 4, VERBS[data[1] % len(VERBS)], data[2], data[3:]
        headers = list(self._base(kind if how == RAW else 0))
        if verb == "GET" or how == RAW:
            lines, _, rest = rest.partition(b"\n\n")
            headers += [pair for line in lines.split(b"\n") if (pair := as_header(line))]
        if how == LEGACY:
            headers.append((b"mcp-session-id", self._session))
        elif how == MODERN_ERA:
            headers += mirrored(rest)
        pieces = [rest[: len(rest) // 2], rest[len(rest) // 2 :]] if kind % 2 else [rest]
        status, _, body = await self._send(verb, headers, pieces)
        if status >= 500 and status != 503:
            raise RuntimeError(f"it was answered with {status}: {body[:500]!r}")
        if b"the gateway failed" in body:
            raise RuntimeError(f"the gateway failed: {body[:500]!r}")
        return status

    async def _send(
        self, verb: str, headers: list[tuple[bytes, bytes]], pieces: list[bytes]
    ) -> tuple[int, dict[bytes, bytes], bytes]:
        """What is answered. A client that gets a stream leaves at its first event."""
        scope = {
            "type": "http",
            "method": verb,
            "path": "/mcp",
            "headers": headers,
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
        }
        waiting = list(pieces)
        left = asyncio.Event()
        answer: dict[str, Any] = {}
        body: list[bytes] = []

        async def receive() -> dict[str, Any]:
            if waiting:
                part = waiting.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(waiting)}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer.update(message)
                if verb == "GET":
                    left.set()
            else:
                body.append(message.get("body", b""))
                if b"listen" in b"".join(pieces) and message.get("more_body"):
                    left.set()

        await self.app(scope, receive, send)
        return answer["status"], dict(answer["headers"]), b"".join(body)

    async def close(self) -> None:
        await self.app.stop()
        await self._closing.__aexit__(None, None, None)


def as_header(line: bytes) -> tuple[bytes, bytes] | None:
    name, colon, value = line.partition(b":")
    is_one = colon and name.replace(b"-", b"").isalnum() and name.isascii()
    return (name.lower(), value.strip(b" \t\r\0")) if is_one else None


def mirrored(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The headers of a modern request, as its body says."""
    yield b"mcp-protocol-version", MODERN.encode()
    try:
        message = json.loads(body)
        method, params = message["method"], message.get("params") or {}
        yield b"mcp-method", str(method).encode("latin-1")
        named = params.get("uri" if method == "resources/read" else "name")
        if isinstance(named, str):
            yield b"mcp-name", named.encode("latin-1")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return


def main() -> None:
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["toolkeep.gateway"]):
        importlib.import_module("toolkeep.gateway")
    fuzz = Fuzz()
    fuzz.loop.run_until_complete(fuzz.open())
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds()):
            (Path(corpus) / str(number)).write_bytes(seed)
        options = [f"-rss_limit_mb={RSS_MB}", f"-max_len={MAX_INPUT}", "-timeout=20"]
        FOUND.mkdir(parents=True, exist_ok=True)
        options.append(f"-artifact_prefix={FOUND}/")
        atheris.Setup([sys.argv[0], corpus, *options, *sys.argv[1:]], fuzz.one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
