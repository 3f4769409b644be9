"""A server with sessions on the Python SDK: `python sessions_server.py`, the port in PORT.

GET /seen tells, outside of the protocol, what has arrived.
"""

import json
import os
import socket
import sys
from typing import Any

import anyio
import uvicorn
from mcp.server.mcpserver import MCPServer
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

server = MCPServer("sessions")
seen: dict[str, Any] = {
    "initialize": 0,
    "delete": 0,
    "requests": [],
    "versions": [],
    "cancelled": 0,
}


@server.tool()
async def slow(tag: str, seconds: float) -> str:
    try:
        await anyio.sleep(seconds)
    except BaseException:
        seen["cancelled"] += 1
        raise
    return tag


@server.custom_route("/seen", methods=["GET"])
async def tell(request: Request) -> Response:
    return JSONResponse(seen)


class Noting:
    """Writes down what arrives before the SDK's application takes it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("POST", "DELETE"):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        body = await request.body()
        note(request, json.loads(body) if body else {})
        told = False

        async def again() -> Any:
            nonlocal told
            if told:
                return await receive()
            told = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, again, send)


def note(request: Request, message: dict[str, Any]) -> None:
    if request.method == "DELETE":
        seen["delete"] += 1
    elif message["method"] == "initialize":
        seen["initialize"] += 1
    elif "id" in message:
        seen["requests"].append([request.headers.get("mcp-session-id"), message["id"]])
        seen["versions"].append(request.headers.get("mcp-protocol-version"))


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", int(os.environ["PORT"]))) as listening:
        print(f"listening on port={listening.getsockname()[1]}", file=sys.stderr, flush=True)
        app = Noting(server.streamable_http_app())
        config = uvicorn.Config(app, log_level="warning")
        uvicorn.Server(config).run([listening])
