"""The words of OpenTelemetry's semantic conventions for MCP, and how ours become theirs.

Which version, and where we knowingly differ, is said in `otel`. Names that the conventions lack
begin with `toolkeep.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from toolkeep.config import ServerSpec
from toolkeep.errors import CallError, CallOutcomeUnknown, ToolkeepError
from toolkeep.events import Completed, Disconnected, Failed, Replaying
from toolkeep.telemetry.facts import end_of, facts_of_failure

Attributes = dict[str, str | int | float | bool]

BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Seconds; as the conventions recommend for both durations."""
METHOD = "tools/call"
SERVER = "toolkeep.server.name"
VERSION = "mcp.protocol.version"
OTHER = "_OTHER"
TOOL_ERROR = "tool_error"
CANCELLED = "cancelled"
_PORTS = {"http": 80, "https": 443}


def of_server(spec: ServerSpec) -> Attributes:
    """Where a server is. Of a URL only host and port: all else of it may be secret."""
    if spec.command:
        return {"network.transport": "pipe"}
    if not spec.url:
        return {}
    if spec.urls:  # which of them it is, a call does not say
        return {"network.transport": "tcp", "network.protocol.name": "http"}
    parts = urlsplit(spec.url)
    return {
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "server.address": parts.hostname or "",
        "server.port": parts.port or _PORTS[parts.scheme],
    }


def of_call(server: str, tool: str) -> Attributes:
    """What is known when it begins."""
    return {
        "mcp.method.name": METHOD,
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        SERVER: server,
    }


def of_outcome(event: Completed | Failed) -> Attributes:
    """What is known when it has ended; `error.type` is there if, and only if, it failed."""
    if isinstance(event, Completed):
        return {"error.type": TOOL_ERROR} if event.result.is_error else {}
    attributes: Attributes = {"error.type": _error_type(event.error)}
    failure = event.error.failure if isinstance(event.error, ToolkeepError) else None
    if failure is not None and failure.code is not None:
        attributes["rpc.response.status_code"] = str(failure.code)
    return attributes


def _error_type(error: BaseException) -> str:
    """The JSON-RPC code that answered the call, or the name of the error's type."""
    if not isinstance(error, Exception):
        return CANCELLED
    if not isinstance(error, ToolkeepError):
        return OTHER
    failure = error.failure if isinstance(error, CallError) else None
    doubtful = isinstance(error, CallOutcomeUnknown)  # an earlier attempt is the headline
    if failure is None or failure.code is None or doubtful:
        return type(error).__name__
    return str(failure.code)


def of_effort(event: Completed | Failed) -> Attributes:
    """For spans only: numbers, and how far a failed call got."""
    if isinstance(event, Completed):
        cached: Attributes = {"toolkeep.cached": True} if event.result.cached else {}
        return {"toolkeep.attempts": event.result.attempts, **cached}
    attributes: Attributes = {}
    if isinstance(event.error, ToolkeepError):
        attributes["toolkeep.delivery"] = event.error.delivery.value
    if isinstance(event.error, CallError):
        attributes["toolkeep.attempts"] = event.error.attempts
    return attributes


def of_replay(event: Replaying) -> Attributes:
    """One failed attempt, as the event of a span."""
    facts: Mapping[str, str | int] = facts_of_failure(event.failure)
    told: Attributes = {f"toolkeep.{name}": value for name, value in facts.items()}
    return {"toolkeep.attempt": event.attempt, "toolkeep.after": event.after, **told}


def of_end(event: Disconnected) -> Attributes:
    """Why a connection ended, if not because it was closed."""
    reason = end_of(event)
    return {} if reason == "closed" else {"error.type": reason}
