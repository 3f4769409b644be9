"""The protocol of the scripted server, for both eras and every transport. Pure: no state, no I/O.

Holds the checks that a request must pass (credentials, era, session, envelope), the result of each
method, the built-in tools, and the payloads that a `Behaviour` puts in place of an answer. Legacy
and modern results differ in one place, `modern_result`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from toolkeep.testing.script import LEGACY, MODERN, Behaviour, JsonObject, Settings, params_of

META = "io.modelcontextprotocol/"
SERVER_INFO = {"name": "toolkeep-scripted", "version": "1"}
NO_CACHE: JsonObject = {"ttlMs": 0, "cacheScope": "public"}
REQUEST_CANCELLED = -32800
"""What mcp 2.3.0's server answers to a request that was cancelled (server/streamable_http.py)."""

_NAME_PARAMETER = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The parameter that the header `Mcp-Name` repeats."""
_CACHEABLE = {
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
}
_NOTES = {"uri": "kit://notes", "name": "notes", "mimeType": "text/plain"}
_TEMPLATE = {"uriTemplate": "kit://notes/{day}", "name": "notes of a day"}
_PROMPT = {
    "name": "greet",
    "description": "Greet somebody.",
    "arguments": [{"name": "name", "description": "Whom to greet.", "required": True}],
}
_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
_SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAESsAABErAAABAAgAZGF0YQAAAAA="
_LARGE_PIECE = b"x" * 65536


def encode(message: Any) -> bytes:
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()


class ErrorResponse(Exception):
    """A JSON-RPC error, and the HTTP status it has in the modern era."""

    def __init__(self, code: int, message: str, *, data: Any = None, status: int = 200) -> None:
        super().__init__(message)
        self.code, self.message, self.data, self.status = code, message, data, status

    def as_error(self) -> JsonObject:
        error: JsonObject = {"code": self.code, "message": self.message}
        return error if self.data is None else {**error, "data": self.data}


@dataclass(frozen=True, slots=True)
class Refusal:
    """The HTTP response to a request that the protocol does not allow."""

    status: int
    body: bytes
    content_type: str | None = "application/json"
    headers: dict[str, str] = field(default_factory=dict[str, str])


def refusal(
    status: int, code: int, message: str, *, request_id: object = None, data: object = None
) -> Refusal:
    error: JsonObject = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return Refusal(status, encode({"jsonrpc": "2.0", "id": request_id, "error": error}))


def decode(body: bytes) -> tuple[JsonObject | None, Refusal | None]:
    """The JSON-RPC message in a body, or why there is none."""
    if not body:
        return None, None
    try:
        message: Any = json.loads(body)
    except ValueError:
        return None, refusal(400, -32700, "Parse error")
    if not isinstance(message, dict):
        return None, refusal(400, -32600, "Batches are not supported")
    return cast(JsonObject, message), None


def request_name(message: JsonObject | None) -> tuple[str | None, str | None]:
    """The method and the called tool of a message."""
    if message is None:
        return None, None
    method = message.get("method")
    return method, params_of(message).get("name") if method == "tools/call" else None


def is_request(message: JsonObject) -> bool:
    return "id" in message and "method" in message


# -- checks -------------------------------------------------------------------------------------


def is_modern(settings: Settings, headers: dict[str, str]) -> bool:
    """As mcp 2.3.0's server: any version header that is not a handshake version is modern."""
    if settings.era != "both":
        return settings.era == "modern"
    version = headers.get("mcp-protocol-version")
    return version is not None and version not in LEGACY


def check_credentials(settings: Settings, headers: dict[str, str]) -> Refusal | None:
    if settings.api_key is None or headers.get("authorization") == f"Bearer {settings.api_key}":
        return None
    challenge = 'Bearer error="invalid_token", error_description="Authentication required"'
    body = encode({"error": "invalid_token", "error_description": "Authentication required"})
    return Refusal(401, body, headers={"www-authenticate": challenge})


def check_session(
    settings: Settings, headers: dict[str, str], message: JsonObject, known: Container[str]
) -> Refusal | None:
    """Legacy era: a request needs a session that the server knows."""
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


def check_envelope(
    settings: Settings, headers: dict[str, str], message: JsonObject
) -> Refusal | None:
    """Modern era: version, `_meta`, and headers that agree with the body."""
    request_id, params = message.get("id"), params_of(message)
    version = headers.get("mcp-protocol-version")
    if version != MODERN:
        asked = version or params.get("protocolVersion") or ""
        data = {"supported": [MODERN], "requested": asked}
        return refusal(
            400, -32022, "Unsupported protocol version", request_id=request_id, data=data
        )
    if not settings.strict or not is_request(message):
        return None
    meta: JsonObject = params.get("_meta") or {}
    if f"{META}protocolVersion" not in meta or f"{META}clientCapabilities" not in meta:
        return refusal(400, -32602, "params._meta lacks its envelope keys", request_id=request_id)
    if meta[f"{META}protocolVersion"] != version:
        return refusal(
            400, -32020, "mcp-protocol-version does not match _meta", request_id=request_id
        )
    return _check_headers(headers, message, params)


def _check_headers(
    headers: dict[str, str], message: JsonObject, params: JsonObject
) -> Refusal | None:
    request_id, method = message["id"], message["method"]
    if headers.get("mcp-method") != method:
        return refusal(
            400, -32020, "mcp-method header does not match the body", request_id=request_id
        )
    parameter = _NAME_PARAMETER.get(method)
    if parameter is not None and _decoded_header(headers.get("mcp-name")) != params.get(parameter):
        return refusal(
            400, -32020, "mcp-name header does not match the body", request_id=request_id
        )
    return None


def _decoded_header(value: str | None) -> str | None:
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def unsupported_version(requested: Any) -> ErrorResponse:
    data = {"supported": [MODERN], "requested": requested or ""}
    return ErrorResponse(-32022, "Unsupported protocol version", data=data)


# -- methods ------------------------------------------------------------------------------------


def modern_result(result: JsonObject, method: str, hints: JsonObject) -> JsonObject:
    """The result with what the modern era adds: its type, the server's name, and cache hints for
    the methods that the specification names.
    """
    completed = {"resultType": "complete", **result}
    meta = {f"{META}serverInfo": SERVER_INFO, **result.get("_meta", {})}
    if method in _CACHEABLE:
        completed = {**hints, **completed}
    return {**completed, "_meta": meta}


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


def list_tools(tools: Sequence[JsonObject], params: JsonObject, size: int | None) -> JsonObject:
    """A page of tools; the cursor is the offset of the next one."""
    try:
        start = int(params.get("cursor") or 0)
    except ValueError:
        raise ErrorResponse(-32602, "Invalid cursor") from None
    if size is None:
        return {"tools": list(tools)}
    listed: JsonObject = {"tools": list(tools[start : start + size])}
    return listed if start + size >= len(tools) else {**listed, "nextCursor": str(start + size)}


def _get_prompt(params: JsonObject) -> JsonObject:
    if params.get("name") != _PROMPT["name"]:
        raise ErrorResponse(-32602, f"Unknown prompt: {params.get('name')}")
    words = f"Greet {params.get('arguments', {}).get('name', 'the world')}."
    message = {"role": "user", "content": {"type": "text", "text": words}}
    return {"description": _PROMPT["description"], "messages": [message]}


def _read(params: JsonObject) -> JsonObject:
    uri = str(params.get("uri"))
    if not uri.startswith("kit://notes"):
        raise ErrorResponse(-32602, "Resource not found", data={"uri": uri})
    return resource_contents(uri, "a note")


def resource_contents(uri: str, text: str) -> JsonObject:
    return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": text}]}


def list_resources(uris: Iterable[str]) -> JsonObject:
    added = [{"uri": uri, "name": uri, "mimeType": "text/plain"} for uri in uris]
    return {"resources": [_NOTES, *(item for item in added if item["uri"] != _NOTES["uri"])]}


def _complete(params: JsonObject) -> JsonObject:
    prefix = params.get("argument", {}).get("value", "")
    values = [name for name in ("Ada", "Alan", "Grace") if name.startswith(prefix)]
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


def call_method(method: str, params: JsonObject, *, modern: bool) -> JsonObject:
    known = _SHARED.get(method) or (_MODERN_ONLY if modern else _LEGACY_ONLY).get(method)
    if known is None:
        raise ErrorResponse(-32601, "Method not found", data=method, status=404 if modern else 200)
    return known(params)


# -- built-in tools -----------------------------------------------------------------------------

Emit = Callable[[str, JsonObject], None]


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One execution of a tool: its arguments, the request's headers and `_meta`, and a way to
    send notifications.
    """

    arguments: JsonObject
    meta: JsonObject
    headers: dict[str, str]
    modern: bool
    emit: Emit
    pause: Callable[[float], Awaitable[None]]
    """Waits this many seconds, or not at all once the test skips delays."""


Body = Callable[[ToolRun], JsonObject | Awaitable[JsonObject]]


def text_result(value: str, **more: Any) -> JsonObject:
    return {"content": [{"type": "text", "text": value}], "isError": False, **more}


def _echo(run: ToolRun) -> JsonObject:
    return text_result(str(run.arguments.get("text", "")))


def _add(run: ToolRun) -> JsonObject:
    total = run.arguments["a"] + run.arguments["b"]
    return text_result(json.dumps({"sum": total}), structuredContent={"sum": total})


def _record(run: ToolRun) -> JsonObject:
    return text_result("recorded")


async def _slow(run: ToolRun) -> JsonObject:
    await run.pause(float(run.arguments.get("seconds", 1.0)))
    return text_result("done")


async def _steps(run: ToolRun) -> JsonObject:
    count, gap = int(run.arguments.get("count", 3)), float(run.arguments.get("gap", 0.0))
    token = run.meta.get("progressToken")
    for step in range(1, count + 1):
        if token is not None:
            params = {"progressToken": token, "progress": step, "total": count}
            run.emit("notifications/progress", {**params, "message": f"step {step} of {count}"})
        await run.pause(gap)
    return text_result(f"{count} steps")


def _logs(run: ToolRun) -> JsonObject:
    count = int(run.arguments.get("count", 3))
    wanted = not run.modern or f"{META}logLevel" in run.meta
    for line in range(1, count + 1) if wanted else ():
        run.emit(
            "notifications/message", {"level": "info", "logger": "kit", "data": f"line {line}"}
        )
    return text_result(f"{count} lines")


def _fail(run: ToolRun) -> JsonObject:
    return {**text_result(str(run.arguments.get("message", "failed"))), "isError": True}


def _big(run: ToolRun) -> JsonObject:
    return text_result("x" * int(run.arguments.get("bytes", 1024)))


def _headers(run: ToolRun) -> JsonObject:
    return text_result(json.dumps(run.headers), structuredContent=dict(run.headers))


def _bad_output(run: ToolRun) -> JsonObject:
    return text_result("not what the schema says", structuredContent={"count": "three"})


def _content(run: ToolRun) -> JsonObject:
    embedded = {"uri": "kit://notes", "mimeType": "text/plain", "text": "a note"}
    return {
        "content": [
            {"type": "text", "text": "some text", "_meta": {"kit/part": 1}},
            {"type": "image", "data": _PIXEL, "mimeType": "image/png"},
            {"type": "audio", "data": _SILENCE, "mimeType": "audio/wav"},
            {"type": "resource_link", "uri": "kit://notes", "name": "notes"},
            {"type": "resource", "resource": embedded},
        ],
        "isError": False,
        "_meta": {"kit/whole": True},
    }


def _arguments(run: ToolRun) -> JsonObject:
    return text_result(json.dumps(run.arguments))


_NUMBER, _STRING, _INTEGER = {"type": "number"}, {"type": "string"}, {"type": "integer"}


def _definition(
    name: str, description: str, required: str = "", **properties: JsonObject
) -> JsonObject:
    schema: JsonObject = {"type": "object", "properties": {**properties, "key": _STRING}}
    if required:
        schema["required"] = required.split()
    return {"name": name, "description": description, "inputSchema": schema}


def _object(name: str, kind: JsonObject) -> JsonObject:
    return {"type": "object", "properties": {name: kind}, "required": [name]}


_BUILT_IN: tuple[tuple[JsonObject, Body], ...] = (
    (_definition("echo", "Say it again.", "text", text=_STRING), _echo),
    (
        _definition("add", "Add two numbers.", "a b", a=_NUMBER, b=_NUMBER)
        | {"outputSchema": _object("sum", _NUMBER)},
        _add,
    ),
    (_definition("record", "A plain side effect."), _record),
    (
        _definition("record_read_only", "Changes nothing.")
        | {"annotations": {"readOnlyHint": True}},
        _record,
    ),
    (
        _definition("record_idempotent", "May be repeated.")
        | {"annotations": {"readOnlyHint": False, "idempotentHint": True}},
        _record,
    ),
    (_definition("slow", "Takes its time.", "seconds", seconds=_NUMBER), _slow),
    (_definition("steps", "Reports progress.", "count", count=_INTEGER, gap=_NUMBER), _steps),
    (_definition("logs", "Writes log lines.", "count", count=_INTEGER), _logs),
    (_definition("fail", "Fails as a tool fails.", "message", message=_STRING), _fail),
    (_definition("big", "A long answer.", "bytes", bytes=_INTEGER), _big),
    (_definition("headers", "The HTTP headers of this very request."), _headers),
    (
        _definition("bad_output", "Breaks its own output schema.")
        | {"outputSchema": _object("count", _INTEGER)},
        _bad_output,
    ),
    (_definition("content", "One of every kind of content."), _content),
    (
        _definition(
            *("ask", "Asks the client before it answers.", "requests"),
            requests={"type": "object"},
            rounds=_INTEGER,
            state_only={"type": "boolean"},
        ),
        _arguments,
    ),
)
TOOL_DEFINITIONS: tuple[JsonObject, ...] = tuple(definition for definition, _ in _BUILT_IN)
_BODIES: dict[str, Body] = {definition["name"]: body for definition, body in _BUILT_IN}


def tool_body(name: str) -> Body:
    """The body of a tool. A tool that a test added answers with its arguments."""
    return _BODIES.get(name, _arguments)


# -- payloads of a behaviour --------------------------------------------------------------------


def override(how: Behaviour, message: JsonObject | None) -> bytes | None:
    """The answer that a behaviour puts in place of the true one."""
    request_id = (message or {}).get("id")
    if how.error is not None:
        shown = {"request": request_id, "null": None, "other": "some-other-id"}[how.error_id]
        return encode({"jsonrpc": "2.0", "id": shown, "error": dict(how.error)})
    if how.result is not None:
        return encode({"jsonrpc": "2.0", "id": request_id, "result": dict(how.result)})
    return None


def cut_position(how: Behaviour, length: int) -> int | None:
    """After how many bytes of an answer of this length to break off."""
    return length // 2 if how.drop == "mid_answer" else how.cut_after


def large_answer(request_id: object, size: int) -> list[bytes]:
    """A text result of about this size, in pieces that share their memory."""
    start = b'{"jsonrpc":"2.0","id":%b,"result":{"resultType":"complete",' % encode(request_id)
    start += b'"content":[{"type":"text","text":"'
    end = b'"}],"isError":false}}'
    whole, rest = divmod(max(0, size - len(start) - len(end)), len(_LARGE_PIECE))
    return [start, *[_LARGE_PIECE] * whole, _LARGE_PIECE[:rest], end]
