"""What a gateway answers with: results as clients of each era read them, and errors of servers as
results or JSON-RPC errors.

Pure. A result of a server is copied, never changed: others may share it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mcp_types import SERVER_INFO_META_KEY
from pydantic_core import to_json

from toolkeep._version import __version__
from toolkeep.errors import (
    AuthNeeded,
    CallRejected,
    Delivery,
    NotOffered,
    NotPermitted,
    StoreUnavailable,
    ToolkeepError,
)
from toolkeep.gateway.errors import (
    FORBIDDEN,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    UNAVAILABLE,
    URL_ELICITATION_REQUIRED,
    RpcError,
    invalid_params,
    unavailable,
)
from toolkeep.gateway.offer import Kind, ListPage
from toolkeep.gateway.protocol import Json, Peer

__all__ = ["legacy_json", "modern_json", "page_json", "result_json", "to_rpc_error", "tool_error"]

SERVER_INFO: Json = {"name": "toolkeep", "title": "toolkeep gateway", "version": __version__}

LATER_FIELDS = ("resultType", "ttlMs", "cacheScope", "inputRequests", "requestState")
"""Fields of results that 2026-07-28 added."""
PASSED_CODES = (
    INVALID_PARAMS,
    INTERNAL_ERROR,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    URL_ELICITATION_REQUIRED,
)
"""Codes of a server's errors that mean the same at the gateway. Others of the reserved range would
be taken for the gateway's own."""


def result_json(raw: Mapping[str, Any], peer: Peer) -> bytes:
    """A whole result of a server, as this client reads it."""
    return modern_json(raw) if peer.modern else legacy_json(raw)


def legacy_json(raw: Mapping[str, Any]) -> bytes:
    return to_json(_legacy_result(raw), inf_nan_mode="null")


def _legacy_result(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A result as a legacy client reads it: without what 2026-07-28 added."""
    structured = raw.get("structuredContent")
    odd = structured is not None and not isinstance(structured, dict)
    if not odd and not any(field in raw for field in LATER_FIELDS):
        return raw
    left_out = (*LATER_FIELDS, "structuredContent") if odd else LATER_FIELDS
    return {key: value for key, value in raw.items() if key not in left_out}


def modern_json(raw: Mapping[str, Any], *, cacheable: bool = False, public: bool = False) -> bytes:
    """A result as a modern client reads it. `cacheable`: it needs cache hints, of which a server's
    own are kept. `public`: others may be shown it; what one principal is shown never is."""
    result: Json = {"resultType": "complete", **raw}
    if cacheable:
        result["ttlMs"] = raw.get("ttlMs", 0)
        result["cacheScope"] = raw.get("cacheScope", "private") if public else "private"
    found = raw.get("_meta")
    meta = cast("Json", found) if isinstance(found, dict) else {}
    if meta.get(SERVER_INFO_META_KEY) is None:
        result["_meta"] = {**meta, SERVER_INFO_META_KEY: SERVER_INFO}
    return to_json(result, inf_nan_mode="null")


def page_json(kind: Kind, page: ListPage, *, modern: bool) -> bytes:
    rest: Json = {}
    if page.cursor is not None:
        rest["nextCursor"] = page.cursor
    meta: Json = {}
    if page.unavailable:
        meta["toolkeep/unavailable"] = list(page.unavailable)
    if modern:
        rest |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        meta[SERVER_INFO_META_KEY] = SERVER_INFO
    if meta:
        rest["_meta"] = meta
    tail = b"," + to_json(rest)[1:] if rest else b"}"
    return b'{"' + kind.encode() + b'":[' + page.items + b"]" + tail


def tool_error(error: ToolkeepError, peer: Peer) -> bytes:
    """A failing server, as a tool error that says whether the call ran."""
    meta: Json = {"toolkeep/delivery": error.delivery.value, "toolkeep/error": type(error).__name__}
    text = _error_text(error)
    if isinstance(error, AuthNeeded) and error.login_url:
        meta["toolkeep/login"] = error.login_url
        if error.login_url not in text:
            text = f"{text} Log in at {error.login_url}"
    result: Json = {"content": [{"type": "text", "text": text}], "isError": True, "_meta": meta}
    return modern_json(result) if peer.modern else to_json(result)


def _error_text(error: ToolkeepError) -> str:
    """The text of an error, without what a program wrote to stderr: that is for its operator."""
    text, said = str(error), error.stderr.strip()
    if said:
        text = text.partition("; last line of stderr: ")[0]
    known = Delivery.NOT_SENT, Delivery.REFUSED
    if error.delivery in known and "not run" not in text and "not sent" not in text:
        text = f"{text.rstrip('.')}. It did not run"
    elif error.delivery is Delivery.UNKNOWN and "may have run" not in text:
        text = f"{text.rstrip('.')}. It may have run"
    return text


def is_passed_on(error: ToolkeepError) -> bool:
    """Whether a server's JSON-RPC error means the same at the gateway."""
    if not isinstance(error, CallRejected) or error.code is None:
        return False
    return error.code in PASSED_CODES or not -32768 <= error.code <= -32000


def message_of(error: CallRejected) -> str:
    """What the server said, without ours."""
    return error.failure.message if error.failure else str(error)


def resource_not_found(message: str, uri: str, peer: Peer) -> RpcError:
    """2026-07-28 has no code of its own for it."""
    code = INVALID_PARAMS if peer.modern else RESOURCE_NOT_FOUND
    return RpcError(code, message, {"uri": uri})


def to_rpc_error(error: ToolkeepError) -> RpcError:
    """The JSON-RPC error for a request that is not a call, or that never became one."""
    if isinstance(error, RpcError):
        return error
    if isinstance(error, NotOffered):
        near = [one[:200] for one in error.suggestions[:10]]
        return invalid_params(str(error), {"suggestions": near} if near else None)
    if isinstance(error, NotPermitted):
        return RpcError(FORBIDDEN, str(error), status=200)
    if isinstance(error, StoreUnavailable):
        return unavailable("the store of the gateway cannot be used now")
    delivery = {"toolkeep/delivery": error.delivery.value}
    if isinstance(error, CallRejected) and is_passed_on(error):
        return RpcError(error.code or INTERNAL_ERROR, message_of(error), error.data)
    return RpcError(UNAVAILABLE, _error_text(error), delivery, status=200)
