"""What a gateway knows about the client of a request: `Peer`, and `Exchange`, the way back to it.

Pure: negotiation, the `_meta` of a modern request, the headers that mirror it, and what a client
can be asked. Everything that a client says is data: it is bounded here, and decides nothing about
rights.
"""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
)
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)

from toolkeep._client.server_requests import ELICITATION, ROOTS, SAMPLING
from toolkeep._rules.protocol_headers import METHOD_HEADER, NAME_HEADER, NAME_PARAMS
from toolkeep.context import CallContext
from toolkeep.gateway.access import Caller
from toolkeep.gateway.errors import HEADER_MISMATCH, UNSUPPORTED_VERSION, RpcError, invalid_params

if TYPE_CHECKING:
    from toolkeep._catalogue.tool import Tool
    from toolkeep.gateway.sessions import Session

__all__ = ["Exchange", "Peer", "initialize_peer", "modern_peer"]

Json = dict[str, Any]

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Log levels, the least first."""
RESERVED_META = "io.modelcontextprotocol/"
MAX_TEXT = 200
"""Bytes of a name that a client gives itself. Three of them are in each session id."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who a request is from, and what its client can do."""

    caller: Caller
    profile: str = ""
    """The name of the profile; empty: everything."""
    version: str = LATEST_HANDSHAKE_VERSION
    capabilities: Mapping[str, Any] = field(default_factory=dict[str, Any])
    client_info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    session: Session | None = None
    """The legacy session, where the transport has sessions."""

    @property
    def modern(self) -> bool:
        return self.version in MODERN_PROTOCOL_VERSIONS

    @property
    def context(self) -> CallContext | None:
        """For whom upstream calls are made. None: an open gateway makes them as itself."""
        caller = self.caller
        if caller.principal is None:
            return None
        return CallContext(principal=caller.principal, metadata=caller.claims)

    def can_answer(self, method: str, params: Mapping[str, Any]) -> bool:
        """Whether the client declared that it answers this request of a server."""
        return required_capability(method, params, self.capabilities) is None


class Exchange(ABC):
    """One request: who sent it, and the way back while it runs. Made by a transport; lives as long
    as the request."""

    peer: Peer
    request_id: str | int
    can_stream: bool = True
    """Whether notifications and questions can reach the client during this request."""

    @abstractmethod
    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification that belongs to this request. Never waits."""

    def check_call(self, tool: Tool, arguments: Mapping[str, Any]) -> None:  # noqa: B027
        """Check what the transport repeats of a call, before it runs. Raises `RpcError`."""

    async def ask(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request to a legacy client, and return its result. Raises `RpcError` with the
        client's error."""
        raise RpcError(-32601, f"{method} cannot reach the client on this transport")


# -- negotiation --------------------------------------------------------------------------------


def initialize_peer(params: Mapping[str, Any], caller: Caller, profile: str) -> Peer:
    """The client of `initialize`, with the version that both will use."""
    wanted = params.get("protocolVersion")
    if not isinstance(wanted, str):
        raise invalid_params("initialize needs a protocolVersion")
    version = wanted if wanted in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
    capabilities, info = params.get("capabilities"), params.get("clientInfo")
    return Peer(caller, profile, version, _bounded_capabilities(capabilities), _bounded_info(info))


def modern_peer(params: Mapping[str, Any] | None, caller: Caller, profile: str) -> Peer:
    """The client of a modern request, by its `_meta`. Raises `RpcError`."""
    meta = meta_of(params)
    version, capabilities = (
        meta.get(PROTOCOL_VERSION_META_KEY),
        meta.get(CLIENT_CAPABILITIES_META_KEY),
    )
    if not isinstance(version, str) or not isinstance(capabilities, dict):
        lacking = f"{PROTOCOL_VERSION_META_KEY} and {CLIENT_CAPABILITIES_META_KEY}"
        raise invalid_params(f"params._meta must have {lacking}")
    if version not in MODERN_PROTOCOL_VERSIONS:
        raise unsupported_version(version)
    info = meta.get(CLIENT_INFO_META_KEY)
    return Peer(caller, profile, version, cast("Json", capabilities), _bounded_info(info))


def unsupported_version(requested: str) -> RpcError:
    data = {"supported": list(MODERN_PROTOCOL_VERSIONS), "requested": requested[:MAX_TEXT]}
    return RpcError(UNSUPPORTED_VERSION, "the protocol version is not supported", data)


def is_modern_version(header: str | None) -> bool:
    """Whether a request with this version header is of the modern era. A request without one, or
    with a version of the handshake, is of the legacy era."""
    return header is not None and header not in HANDSHAKE_PROTOCOL_VERSIONS


def check_mirrored(headers: Mapping[str, str], method: str, params: Mapping[str, Any]) -> None:
    """Check that the headers of a modern request say what its body says. Raises `RpcError`."""
    version = headers.get("mcp-protocol-version", "")
    claimed = meta_of(params).get(PROTOCOL_VERSION_META_KEY)
    if claimed is not None and claimed != version:
        raise _mismatch("mcp-protocol-version")
    if headers.get(METHOD_HEADER) != method:
        raise _mismatch(METHOD_HEADER)
    wanted = params.get(NAME_PARAMS.get(method, ""))
    if wanted is not None and decoded_header(headers.get(NAME_HEADER)) != wanted:
        raise _mismatch(NAME_HEADER)


def check_param_headers(
    headers: Mapping[str, str], declared: Mapping[str, Any], arguments: Mapping[str, Any]
) -> None:
    """Check the `Mcp-Param-*` headers of a call. `declared`: each header with the text that the
    arguments give it, or None."""
    for header, expected in declared.items():
        found = headers.get(header)
        if found is None and expected is None:
            continue
        if found is None or expected is None or decoded_header(found) != decoded_header(expected):
            raise _mismatch(header)


def _mismatch(header: str) -> RpcError:
    return RpcError(HEADER_MISMATCH, f"the header {header} does not match the body")


def decoded_header(value: str | None) -> str | None:
    """The text that a mirrored header carries, plain or in base64; None: it carries none."""
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except (binascii.Error, ValueError):
        return None


# -- what clients say about themselves ----------------------------------------------------------


def meta_of(params: Mapping[str, Any] | None) -> Json:
    found = (params or {}).get("_meta")
    return cast("Json", found) if isinstance(found, dict) else {}


def forwarded_meta(meta: Mapping[str, Any]) -> Json:
    """The part of a request's `_meta` that servers are given: trace context and what the caller
    added, but nothing that is about this connection."""
    return {
        key: value
        for key, value in meta.items()
        if key != "progressToken" and not key.startswith(RESERVED_META)
    }


def progress_token(meta: Mapping[str, Any]) -> str | int | None:
    token = meta.get("progressToken")
    is_token = isinstance(token, str | int) and not isinstance(token, bool)
    return token if is_token else None


def log_level(meta: Mapping[str, Any]) -> str | None:
    """The log level that a modern request asks for. Without one, it gets no log lines."""
    level = meta.get(LOG_LEVEL_META_KEY)
    return level if level in LEVELS else None


def is_at_least(level: str, least: str) -> bool:
    """Whether a log line of this level is to be sent. An unknown level counts as `info`."""
    rank = LEVELS.index(level) if level in LEVELS else 1
    return rank >= LEVELS.index(least)


def required_capability(
    method: str, params: Mapping[str, Any], given: Mapping[str, Any]
) -> Json | None:
    """What the client would have to declare to be asked this; None: it has declared it."""
    name = {ELICITATION: "elicitation", SAMPLING: "sampling", ROOTS: "roots"}.get(method)
    if name is None:
        return {method: {}}
    declared = given.get(name)
    if not isinstance(declared, Mapping):
        return {name: {}}
    found = cast("Mapping[str, Any]", declared)
    if method == ELICITATION and params.get("mode") == "url" and "url" not in found:
        return {name: {"url": {}}}
    is_url_only = "url" in found and "form" not in found
    if method == ELICITATION and params.get("mode", "form") == "form" and is_url_only:
        return {name: {"form": {}}}
    return None


def _bounded_info(given: object) -> Json:
    if not isinstance(given, dict):
        return {}
    info = cast("Json", given)
    kept = {key: info.get(key) for key in ("name", "title", "version")}
    return {key: _shortened(text) for key, text in kept.items() if isinstance(text, str)}


def _shortened(text: str) -> str:
    return text[:MAX_TEXT].encode(errors="ignore")[:MAX_TEXT].decode(errors="ignore")


def _bounded_capabilities(given: object) -> Json:
    """Those that decide what a client is asked. Others would only make session ids longer."""
    if not isinstance(given, dict):
        return {}
    kept: Json = {}
    for name, parts in (
        ("sampling", ("tools", "context")),
        ("elicitation", ("form", "url")),
        ("roots", ()),
    ):
        found = cast("Json", given).get(name)
        if isinstance(found, dict):
            kept[name] = {part: {} for part in parts if part in found}
    return kept
