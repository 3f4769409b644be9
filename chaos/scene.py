"""Who takes part: the servers, their tools, and the principals. Data that both processes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["http", "sse", "stdio"]
Era = Literal["legacy", "modern", "both"]


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    kind: Kind
    era: Era
    share: int
    """Of a hundred calls."""


SERVERS = (
    Server("legacy", "http", "legacy", 28),
    Server("modern", "http", "modern", 28),
    Server("old", "sse", "legacy", 12),
    Server("pipe", "stdio", "legacy", 12),
    Server("newpipe", "stdio", "modern", 10),
    Server("guest", "http", "both", 6),
    Server("visitor", "http", "both", 4),
)
GUEST, VISITOR = "guest", "visitor"
"""They come and go: the guest with edits of the configuration, the visitor by `add` and `remove`.
"""
BY_NAME = {server.name: server for server in SERVERS}

PRINCIPALS = ("ada", "ben", "cleo", "dan", "eve")
NOBODY = ""
"""Calls without identity, in the server's own session."""
EDITION = "x-edition"
"""A header of the configuration, which edits change."""

REPLAYABLE = frozenset({"look", "put"})
"""Tools whose marks allow that a call with an unknown outcome is sent again."""
MOST_RUNS = 4
"""Of a replayable call: once, and `max_replays` (3) times again."""


def _tool(name: str, about: str, **annotations: bool) -> dict[str, Any]:
    properties = {"key": {"type": "string"}, "pad": {"type": "string"}, "wish": {"type": "object"}}
    schema = {"type": "object", "properties": properties, "required": ["key"]}
    marks = {"annotations": annotations} if annotations else {}
    return {"name": name, "description": about, "inputSchema": schema, **marks}


TOOLS = (
    _tool("pay", "A side effect."),
    _tool("look", "Changes nothing.", readOnlyHint=True),
    _tool("put", "May be repeated.", readOnlyHint=False, idempotentHint=True),
)
"""Each answers with its arguments."""


def token(principal: str, rotation: int) -> str:
    return f"Bearer {principal}.{rotation}"
