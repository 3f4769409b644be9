"""What servers answer to an unknown session: recorded answers, each with its source.

The specification says 404; implementations differ in status, code and body, and a client must
handle all of them. Add a preset only with the place where it was read or measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLoss:
    """The answer to an unknown session id.

    In the body, `{session}` becomes that id and `{id}` the JSON-RPC id of the request.
    """

    status: int = 404
    body: str = ""
    content_type: str | None = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    source: str = ""

    def text(self, session_id: str, request_id: object = None) -> str:
        shown = self.body.replace("{session}", session_id)
        return shown.replace("{id}", json.dumps(request_id))


def _rpc(code: int, message: str, shown_id: str = "null") -> str:
    error = json.dumps({"code": code, "message": message})
    return f'{{"jsonrpc":"2.0","error":{error},"id":{shown_id}}}'


PYTHON_SDK = SessionLoss(
    body=_rpc(-32600, "Session not found"),
    source="measured: mcp 2.3.0, server/streamable_http_manager.py, _handle_stateful_request",
)
OLD_PYTHON = SessionLoss(
    body=_rpc(32600, "Session terminated", "{id}"),
    source="mcp 1.x, client/streamable_http.py: what it makes of a 404, with a positive code",
)
TYPESCRIPT_404 = SessionLoss(
    body=_rpc(-32001, "Session not found"),
    source="read: typescript-sdk@3924de9 server/streamableHttp.ts, createJsonErrorResponse",
)
TYPESCRIPT_400 = SessionLoss(
    status=400,
    body=_rpc(-32000, "Bad Request: No valid session ID provided"),
    source="typescript-sdk 1.x, examples/server/simpleStreamableHttp.ts, which many servers copied",
)
GO_SDK = SessionLoss(
    body="session not found\n",
    content_type="text/plain; charset=utf-8",
    headers={"x-content-type-options": "nosniff"},
    source="read: go-sdk@003f0c7 mcp/streamable.go, ServeHTTP: http.Error",
)
RUST_RMCP = SessionLoss(
    body="Not Found: Session not found",
    content_type=None,
    source="read: rust-sdk@4a738b9 transport/streamable_http_server/tower.rs",
)
RUST_RMCP_401 = SessionLoss(
    status=401,
    body="Unauthorized: Session not found",
    content_type=None,
    source="read: earlier rmcp, streamable_http_server/tower.rs: a 401 without a challenge",
)
CSHARP_SDK = SessionLoss(
    body=_rpc(-32001, "Session not found", "{id}"),
    source="read: csharp-sdk@609499b AspNetCore/StreamableHttpHandler.cs: answers the request's id",
)
OLD_CSHARP = SessionLoss(
    body=_rpc(32001, "Session not found", '""'),
    source="read: csharp-sdk@009f37a AspNetCore/StreamableHttpHandler.cs: positive code (the empty"
    " id is inferred from a later comment in RequestId.cs)",
)
JAVA_SDK = SessionLoss(
    body='{"cause":null,"stackTrace":[],'
    '"jsonRpcError":{"code":-32603,"message":"Session not found: {session}","data":null},'
    '"message":"Session not found: {session}","suppressed":[],'
    '"localizedMessage":"Session not found: {session}"}',
    source="read: java-sdk@305e4cb HttpServletStreamableServerTransportProvider.java: an exception"
    " as Jackson writes it (its order of keys is a guess), not JSON-RPC",
)
BARE_404 = SessionLoss(
    body="", content_type=None, source="gateways and load balancers: 404 and nothing else"
)

ALL_LOSSES: Mapping[str, SessionLoss] = {
    "PYTHON_SDK": PYTHON_SDK,
    "OLD_PYTHON": OLD_PYTHON,
    "TYPESCRIPT_404": TYPESCRIPT_404,
    "TYPESCRIPT_400": TYPESCRIPT_400,
    "GO_SDK": GO_SDK,
    "RUST_RMCP": RUST_RMCP,
    "RUST_RMCP_401": RUST_RMCP_401,
    "CSHARP_SDK": CSHARP_SDK,
    "OLD_CSHARP": OLD_CSHARP,
    "JAVA_SDK": JAVA_SDK,
    "BARE_404": BARE_404,
}
