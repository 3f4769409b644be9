"""What contestants have in common, with nothing but the standard library."""

import http.client
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

ARGUMENTS = {"text": "x" * 100}
Send = Callable[[], Awaitable[Any]]

_VERSIONS = {"legacy": "2025-11-25", "modern": "2026-07-28"}
_ABOUT = {
    "io.modelcontextprotocol/protocolVersion": _VERSIONS["modern"],
    "io.modelcontextprotocol/clientInfo": {"name": "toolkeep", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def written(era: str, session: str | None = None) -> tuple[dict[str, str], bytes]:
    """Headers and body of a call, for those who have no MCP library to write them."""
    params: dict[str, Any] = {"name": "echo", "arguments": ARGUMENTS}
    headers = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": _VERSIONS[era],
    }
    if era == "modern":
        params["_meta"] = _ABOUT
        headers |= {"mcp-method": "tools/call", "mcp-name": "echo"}
    if session is not None:
        headers["mcp-session-id"] = session
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    return headers, json.dumps(message, separators=(",", ":")).encode()


def opened(url: str, era: str) -> tuple[dict[str, str], bytes]:
    """A session, if the era has sessions; and then a call in it, as `written`."""
    if era == "modern":
        return written(era)
    params = {"protocolVersion": _VERSIONS[era], "capabilities": {}, "clientInfo": {}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.netloc, timeout=10)
    try:
        connection.request("POST", where.path, json.dumps(message), written(era)[0])
        answer = connection.getresponse()
        answer.read()
        return written(era, answer.headers["mcp-session-id"])
    finally:
        connection.close()
