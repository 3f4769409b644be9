"""Whether a request may come in at all: credentials, era, session, envelope. Pure: facts in, a
refusal or None out.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Container
from dataclasses import dataclass, field

from toolkeep.testing._events import encode
from toolkeep.testing._options import LEGACY, MODERN, Settings
from toolkeep.testing.script import JsonObject, params_of

_META = "io.modelcontextprotocol/"
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    body: bytes
    content_type: str | None = "application/json"
    headers: dict[str, str] = field(default_factory=dict[str, str])


def refusal(
    status: int, code: int, message: str, *, about: object = None, data: object = None
) -> Refusal:
    error: JsonObject = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return Refusal(status, encode({"jsonrpc": "2.0", "id": about, "error": error}))


def is_modern(settings: Settings, headers: dict[str, str]) -> bool:
    """As mcp 2.3.0's server: any version header that is not a handshake version is modern."""
    if settings.era != "both":
        return settings.era == "modern"
    version = headers.get("mcp-protocol-version")
    return version is not None and version not in LEGACY


def unauthorized(settings: Settings, headers: dict[str, str]) -> Refusal | None:
    if settings.api_key is None or headers.get("authorization") == f"Bearer {settings.api_key}":
        return None
    challenge = 'Bearer error="invalid_token", error_description="Authentication required"'
    body = encode({"error": "invalid_token", "error_description": "Authentication required"})
    return Refusal(401, body, headers={"www-authenticate": challenge})


def without_session(
    settings: Settings, headers: dict[str, str], message: JsonObject, known: Container[str]
) -> Refusal | None:
    """The legacy gate."""
    if not settings.sessions or message.get("method") == "initialize":
        return None
    session = headers.get("mcp-session-id")
    if session is None:
        return refusal(400, -32600, "Bad Request: Missing session ID")
    if session in known:
        return None
    loss = settings.session_loss
    body = loss.text(session, message.get("id")).encode()
    return Refusal(loss.status, body, loss.content_type, dict(loss.headers))


def outside_envelope(
    settings: Settings, headers: dict[str, str], message: JsonObject
) -> Refusal | None:
    """The modern gate: version, `_meta`, and headers that agree with the body."""
    about, params = message.get("id"), params_of(message)
    version = headers.get("mcp-protocol-version")
    if version != MODERN:
        asked = version or params.get("protocolVersion") or ""
        data = {"supported": [MODERN], "requested": asked}
        return refusal(400, -32022, "Unsupported protocol version", about=about, data=data)
    if not settings.strict or "id" not in message or "method" not in message:
        return None
    meta: JsonObject = params.get("_meta") or {}
    if f"{_META}protocolVersion" not in meta or f"{_META}clientCapabilities" not in meta:
        return refusal(400, -32602, "params._meta lacks its envelope keys", about=about)
    if meta[f"{_META}protocolVersion"] != version:
        return refusal(400, -32020, "mcp-protocol-version does not match _meta", about=about)
    return _mismatch(headers, message, params)


def _mismatch(headers: dict[str, str], message: JsonObject, params: JsonObject) -> Refusal | None:
    about, method = message["id"], message["method"]
    if headers.get("mcp-method") != method:
        return refusal(400, -32020, "mcp-method header does not match the body", about=about)
    named = _NAMED.get(method)
    if named is not None and _plain(headers.get("mcp-name")) != params.get(named):
        return refusal(400, -32020, "mcp-name header does not match the body", about=about)
    return None


def _plain(value: str | None) -> str | None:
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
