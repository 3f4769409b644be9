"""Every MCP method but tools/call: from parameters to a result, with no state but the listing.

Legacy and modern results are the same here; what the modern era adds is added in one place,
`dress`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from toolkeep.testing._options import MODERN, Settings
from toolkeep.testing.script import JsonObject

SERVER_INFO = {"name": "toolkeep-scripted", "version": "1"}
_CACHED = {
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
}
NO_CACHE: JsonObject = {"ttlMs": 0, "cacheScope": "public"}
_NOTES = {"uri": "kit://notes", "name": "notes", "mimeType": "text/plain"}
_TEMPLATE = {"uriTemplate": "kit://notes/{day}", "name": "notes of a day"}
_PROMPT = {
    "name": "greet",
    "description": "Greet somebody.",
    "arguments": [{"name": "name", "description": "Whom to greet.", "required": True}],
}


class RpcFault(Exception):
    """A JSON-RPC error, and the HTTP status it has in the modern era."""

    def __init__(self, code: int, message: str, *, data: Any = None, status: int = 200) -> None:
        super().__init__(message)
        self.code, self.message, self.data, self.status = code, message, data, status

    def as_error(self) -> JsonObject:
        error: JsonObject = {"code": self.code, "message": self.message}
        return error if self.data is None else {**error, "data": self.data}


def dress(result: JsonObject, method: str, hints: JsonObject) -> JsonObject:
    """A modern result: complete, signed by the server, and cacheable where the specification says
    so.
    """
    dressed = {"resultType": "complete", **result}
    meta = {"io.modelcontextprotocol/serverInfo": SERVER_INFO, **result.get("_meta", {})}
    if method in _CACHED:
        dressed = {**hints, **dressed}
    return {**dressed, "_meta": meta}


def capabilities() -> JsonObject:
    return {
        "tools": {"listChanged": True},
        "prompts": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "completions": {},
        "logging": {},
    }


def initialize(settings: Settings) -> JsonObject:
    return {
        "protocolVersion": settings.protocol_version,
        "capabilities": capabilities(),
        "serverInfo": SERVER_INFO,
    }


def _discover(params: JsonObject) -> JsonObject:
    return {"supportedVersions": [MODERN], "capabilities": capabilities()}


def page(items: Sequence[JsonObject], params: JsonObject, size: int | None) -> JsonObject:
    """A page of tools; the cursor is the offset of the next one."""
    try:
        start = int(params.get("cursor") or 0)
    except ValueError:
        raise RpcFault(-32602, "Invalid cursor") from None
    if size is None:
        return {"tools": list(items)}
    listed: JsonObject = {"tools": list(items[start : start + size])}
    return listed if start + size >= len(items) else {**listed, "nextCursor": str(start + size)}


def _get_prompt(params: JsonObject) -> JsonObject:
    if params.get("name") != _PROMPT["name"]:
        raise RpcFault(-32602, f"Unknown prompt: {params.get('name')}")
    words = f"Greet {params.get('arguments', {}).get('name', 'the world')}."
    message = {"role": "user", "content": {"type": "text", "text": words}}
    return {"description": _PROMPT["description"], "messages": [message]}


def _read(params: JsonObject) -> JsonObject:
    uri = str(params.get("uri"))
    if not uri.startswith("kit://notes"):
        raise RpcFault(-32602, "Resource not found", data={"uri": uri})
    return contents(uri, "a note")


def contents(uri: str, text: str) -> JsonObject:
    return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": text}]}


def listing(more: Iterable[str]) -> JsonObject:
    own = [{"uri": uri, "name": uri, "mimeType": "text/plain"} for uri in more]
    return {"resources": [_NOTES, *(item for item in own if item["uri"] != _NOTES["uri"])]}


def _complete(params: JsonObject) -> JsonObject:
    begun = params.get("argument", {}).get("value", "")
    values = [name for name in ("Ada", "Alan", "Grace") if name.startswith(begun)]
    return {"completion": {"values": values, "total": len(values), "hasMore": False}}


def _nothing(params: JsonObject) -> JsonObject:
    return {}


Method = Callable[[JsonObject], JsonObject]
_SHARED: dict[str, Method] = {
    "prompts/list": lambda params: {"prompts": [_PROMPT]},
    "prompts/get": _get_prompt,
    "resources/templates/list": lambda params: {"resourceTemplates": [_TEMPLATE]},
    "resources/read": _read,
    "completion/complete": _complete,
}
_LEGACY_ONLY: dict[str, Method] = {
    "ping": _nothing,
    "logging/setLevel": _nothing,
}
_MODERN_ONLY: dict[str, Method] = {"server/discover": _discover}


def call(method: str, params: JsonObject, *, modern: bool) -> JsonObject:
    known = _SHARED.get(method) or (_MODERN_ONLY if modern else _LEGACY_ONLY).get(method)
    if known is None:
        raise RpcFault(-32601, "Method not found", data=method, status=404 if modern else 200)
    return known(params)
