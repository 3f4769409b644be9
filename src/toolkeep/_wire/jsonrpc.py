"""JSON-RPC messages: written once, read warily. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from mcp.shared.dispatcher import as_request_id, coerce_request_id
from mcp_types import RequestId
from pydantic_core import from_json, to_json, to_jsonable_python

from toolkeep._rules.classify import RpcError

_HALF = re.compile(
    r"(?P<whole>\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|\\u[dD][89abcdefABCDEF][0-9a-fA-F]{2}"
)
_strictly = json.JSONEncoder(allow_nan=False).encode


def request(request_id: RequestId, method: str, params: Mapping[str, Any] | None) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return _bytes(message, params)


def notification(method: str, params: Mapping[str, Any] | None) -> bytes:
    return _bytes({"jsonrpc": "2.0", "method": method}, params)


def response(request_id: RequestId, result: Mapping[str, Any]) -> bytes:
    return _encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def error_response(request_id: RequestId, code: int, message: str, data: Any = None) -> bytes:
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return _encode({"jsonrpc": "2.0", "id": request_id, "error": error})


def _bytes(message: dict[str, Any], params: Mapping[str, Any] | None) -> bytes:
    if params is not None:
        message["params"] = params
    return _encode(message)


def _encode(message: dict[str, Any]) -> bytes:
    """Writes what pydantic has a JSON form for: dates and sets, too. Raises ValueError for all
    else, and for numbers that JSON does not have."""
    # In two steps: the second alone would wrap what an iterator of the caller's raises.
    plain = to_jsonable_python(message, inf_nan_mode="constants")
    encoded = to_json(plain, inf_nan_mode="constants")
    if b"NaN" in encoded or b"Infinity" in encoded:  # a number, or only a word in a text
        _strictly(plain)
    return encoded


def _decoded(body: bytes | str) -> Any:
    try:
        return from_json(body)
    except ValueError:
        text = body if isinstance(body, str) else body.decode("utf-8")
        text = text.removeprefix("\ufeff")  # .NET programs begin with one
        # Half of a character beyond the BMP, as JavaScript leaves it when it cuts a text.
        mended = _HALF.sub(lambda found: found[0] if found["whole"] else r"\ufffd", text)
        return from_json(mended)


def messages(body: bytes | str) -> list[dict[str, Any]]:
    """The JSON objects in a body: one, or several where a 2025-03-26 server sends a batch.

    Raises ValueError when it is not JSON, or holds something else.
    """
    decoded = _decoded(body)
    batch = cast("list[Any]", decoded) if isinstance(decoded, list) else [decoded]
    if not batch or not all(isinstance(message, dict) for message in batch):
        raise ValueError("not a JSON object")
    return cast("list[dict[str, Any]]", batch)


def is_message(found: Mapping[str, Any]) -> bool:
    """Whether an object is a message, and not a line of a log that is written as JSON."""
    answer = "id" in found and ("result" in found or "error" in found)
    return found.get("jsonrpc") == "2.0" or answer


def answers(message: Mapping[str, Any], request_id: RequestId) -> bool:
    """Whether this message is the answer to that request: it has its id, and is no request."""
    return "method" not in message and same_id(message.get("id"), request_id)


def is_unaddressed_error(message: Mapping[str, Any]) -> bool:
    """Whether this message is an error without an id that could name a request.

    Servers send one for a message whose id they could not read, and many for a notification they
    do not know. It answers a request only where nothing else can follow.
    """
    if "method" in message or not isinstance(message.get("error"), dict):
        return False
    return as_request_id(message.get("id")) is None


def same_id(found: object, request_id: RequestId) -> bool:
    """Whether a peer's echo names this id: "7" and 7 are one."""
    if isinstance(found, bool) or not isinstance(found, str | int):
        return False
    return coerce_request_id(found) == coerce_request_id(request_id)


def error_in(message: Mapping[str, Any], request_id: RequestId) -> RpcError | None:
    """The error of a message, however carelessly it was written."""
    error = message.get("error")
    if not isinstance(error, dict):
        return None
    fields = cast("dict[str, Any]", error)
    code, text = fields.get("code"), fields.get("message")
    return RpcError(
        code=code if isinstance(code, int) and not isinstance(code, bool) else 0,
        message=text if isinstance(text, str) else "an error without a message",
        data=fields.get("data"),
        answers_request=same_id(message.get("id"), request_id),
    )
