"""`RpcError`: a request that a gateway refuses or cannot serve, and the table of its codes.

`ERRORS` is the one list of codes that a gateway itself answers with, which
docs/reference/gateway-errors.md prints. Errors of servers pass through with their own codes where a
client can tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic_core import to_json

from toolkeep.errors import ToolkeepError
from toolkeep.gateway.access import FORBIDDEN, UNAUTHORIZED, UNAVAILABLE

__all__ = ["ERRORS", "ErrorRow", "RpcError"]

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND = -32700, -32600, -32601
INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603
SESSION_NOT_FOUND, RATE_LIMITED, OUTCOME_UNKNOWN = -32001, -32012, -32014
HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION = -32020, -32021, -32022
RESOURCE_NOT_FOUND, URL_ELICITATION_REQUIRED = -32002, -32042
CANCELLED = -32800


class ErrorRow(NamedTuple):
    """One row of the table: the HTTP status, when it is sent, and what to do."""

    status: int
    meaning: str
    remedy: str


ERRORS: Mapping[int, ErrorRow] = {
    PARSE_ERROR: ErrorRow(400, "The body is not JSON.", "Send one JSON-RPC message."),
    INVALID_REQUEST: ErrorRow(
        400,
        "The body is not one JSON-RPC message: a batch, a wrong envelope, no session id.",
        "Send one message; after `initialize`, with `Mcp-Session-Id`.",
    ),
    METHOD_NOT_FOUND: ErrorRow(
        404,
        "The gateway does not have this method in this protocol version. HTTP 200 in a session.",
        "Look at the capabilities.",
    ),
    INVALID_PARAMS: ErrorRow(
        400,
        "Unknown tool, prompt, resource or cursor, wrong parameters, or a `requestState` that does"
        " not open. HTTP 200 in a session.",
        "List again. Nothing was run.",
    ),
    INTERNAL_ERROR: ErrorRow(
        200,
        "The gateway failed. If it was a call, it may have run.",
        "Look at the gateway's log.",
    ),
    SESSION_NOT_FOUND: ErrorRow(
        404,
        "The session id does not open here: ended, expired, another principal or profile, or the"
        " keys were changed.",
        "Send `initialize` without a session id. Nothing was run.",
    ),
    RESOURCE_NOT_FOUND: ErrorRow(
        200,
        "No server lists this resource, or has a template for it. In 2026-07-28: -32602.",
        "List again.",
    ),
    UNAUTHORIZED: ErrorRow(
        401, "No valid credential.", "Follow `WWW-Authenticate`. Nothing was run."
    ),
    FORBIDDEN: ErrorRow(
        403,
        "The credential has too few rights, or Host or Origin is not allowed. HTTP 200 for a tool"
        " that permissions withhold.",
        "Ask for the right, or allow the name. Nothing was run.",
    ),
    RATE_LIMITED: ErrorRow(
        429,
        "The principal makes more calls than its rate allows.",
        "Wait as long as `Retry-After` says. Nothing was run.",
    ),
    UNAVAILABLE: ErrorRow(
        503,
        "Not now: the gateway is full, drains, or needs the store, which is down.",
        "Try again after `Retry-After`. Nothing was run.",
    ),
    OUTCOME_UNKNOWN: ErrorRow(
        200,
        "A call that waited for answers is gone: its replica ended, or it waited too long. It may"
        " have run.",
        "Check before calling again.",
    ),
    HEADER_MISMATCH: ErrorRow(
        400, "A header does not repeat what the body says.", "List the tools, and send again."
    ),
    MISSING_CAPABILITY: ErrorRow(
        400,
        "A server asks for something that the client cannot answer. The call ran up to there.",
        "Declare the capability in `data.requiredCapabilities`.",
    ),
    UNSUPPORTED_VERSION: ErrorRow(
        400, "The protocol version is not spoken.", "Use one of `data.supported`."
    ),
    CANCELLED: ErrorRow(
        200, "The client cancelled the request. A call may have run.", "Expect no result."
    ),
}
"""What a gateway answers with, by code."""


class RpcError(ToolkeepError):
    """The JSON-RPC error that answers a request, with its HTTP status and headers."""

    def __init__(
        self,
        code: int,
        message: str,
        data: Any = None,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data
        row = ERRORS.get(code)
        self.http_status = status if status is not None else row.status if row else 200
        self.headers = dict(headers or {})

    @property
    def status(self) -> int:
        return self.http_status

    def as_error(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        return error if self.data is None else {**error, "data": self.data}

    def to_json(self, request_id: str | int | None) -> bytes:
        """The whole response."""
        message = {"jsonrpc": "2.0", "id": request_id, "error": self.as_error()}
        return to_json(message, inf_nan_mode="null")


def unavailable(why: str, *, retry_after: float = 1.0) -> RpcError:
    """The error of a gateway that cannot serve now."""
    headers = {"retry-after": f"{max(1, round(retry_after))}"}
    return RpcError(UNAVAILABLE, why, headers=headers)


def invalid_params(why: str, data: Any = None) -> RpcError:
    return RpcError(INVALID_PARAMS, why, data)
