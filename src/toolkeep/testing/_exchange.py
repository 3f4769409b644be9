"""One connection's conversation: read a request, record it, and let rules and protocol decide.

Runs in the connection's own task. Decides nothing that must outlive the connection: that is the
engine's.
"""

from __future__ import annotations

import json
from typing import Any, cast

from toolkeep.testing import _admission, _answer, _sse
from toolkeep.testing._engine import Engine
from toolkeep.testing._http import Connection, Head
from toolkeep.testing._replies import PLAIN, VERBS, Exchange, scripted
from toolkeep.testing.script import JsonObject, Recorded, params_of


async def converse(engine: Engine, connection: Connection) -> None:
    """Serve requests until one of them, or the client, ends the connection."""
    while True:
        head = await connection.read_head(engine.settings.keep_alive)
        if head is None or not await _one(engine, connection, head):
            return
        if head.headers.get("connection", "").lower() == "close":
            return


async def _one(engine: Engine, connection: Connection, head: Head) -> bool:
    early = engine.rules.early(head.method, _announced(head))
    if early is not None:
        _record(engine, connection, head, None, *_announced(head))
        await connection.hang_up(reset=early.reset)
        return False
    body = await connection.read_body(head.headers)
    message, broken = decoded(body)
    method, tool = named(message)
    modern = _admission.is_modern(engine.settings, head.headers)
    denied = _elsewhere(engine, head) or _admission.unauthorized(engine.settings, head.headers)
    refused = denied or broken or _refused(engine, head, message, modern)
    how = None
    if denied is None:
        passed = _announced(head)
        how = engine.pick(
            head.method, message, (method, tool), refused=refused is not None, passed=passed
        )
    dropped = how is not None and how.drop == "before_body"
    _record(engine, connection, head, None if dropped else message, method, tool)
    exchange = Exchange(engine, connection, head, message, modern, how or PLAIN)
    if how is not None and not how.runs and not (_is_sse(engine) and _sse.speaks(exchange)):
        return await scripted(exchange)
    if refused is not None:
        return await _answer.send_plain(connection, _answer.from_refusal(refused), PLAIN)
    return await (_sse.VERBS if _is_sse(engine) else VERBS)[head.method](exchange)


def _is_sse(engine: Engine) -> bool:
    return engine.settings.transport == "sse"


def _record(
    engine: Engine,
    connection: Connection,
    head: Head,
    body: JsonObject | None,
    method: str | None,
    tool: str | None,
) -> None:
    engine.record(
        lambda number, at: Recorded(
            *(number, head.method, method, tool, head.headers, body),
            *(connection.number, head.session, at),
        )
    )


def _announced(head: Head) -> tuple[str | None, str | None]:
    return head.headers.get("mcp-method"), head.headers.get("mcp-name")


def decoded(body: bytes) -> tuple[JsonObject | None, _admission.Refusal | None]:
    if not body:
        return None, None
    try:
        message: Any = json.loads(body)
    except ValueError:
        return None, _admission.refusal(400, -32700, "Parse error")
    if not isinstance(message, dict):
        return None, _admission.refusal(400, -32600, "Batches are not supported")
    return cast(JsonObject, message), None


def named(message: JsonObject | None) -> tuple[str | None, str | None]:
    if message is None:
        return None, None
    method = message.get("method")
    return method, params_of(message).get("name") if method == "tools/call" else None


def _elsewhere(engine: Engine, head: Head) -> _admission.Refusal | None:
    """Clients look around for metadata; what they find must not depend on their credentials."""
    if head.path in (_sse.PATHS if _is_sse(engine) else ("/mcp",)):
        return None
    return _admission.Refusal(404, b"Not Found", "text/plain")


def _refused(
    engine: Engine, head: Head, message: JsonObject | None, modern: bool
) -> _admission.Refusal | None:
    if _is_sse(engine):
        return _sse.refused(engine.sessions, head, message)
    if head.method not in VERBS or (modern and head.method != "POST"):
        return _admission.Refusal(405, b"", headers={"allow": "POST"})
    if head.method == "GET" and not engine.settings.get_stream:
        return _admission.Refusal(405, b"", headers={"allow": "POST, DELETE"})
    if not modern:
        settings, sessions = engine.settings, engine.sessions
        if head.headers.get("mcp-session-id") in engine.stranded:
            return _admission.Refusal(502, b"<html>", "text/html")
        return _admission.without_session(settings, head.headers, message or {}, sessions)
    return _admission.outside_envelope(engine.settings, head.headers, message or {})
