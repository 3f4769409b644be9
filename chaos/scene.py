"""Who takes part: the servers, their tools, and the principals. Data that both processes share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolkeep.testing.session_loss import (
    BARE_404,
    PYTHON_SDK,
    TYPESCRIPT_400,
    TYPESCRIPT_404,
    SessionLoss,
)

Kind = Literal["http", "sse", "stdio"]
Era = Literal["legacy", "modern", "both"]


MARKED = frozenset({"look", "put"})
"""Tools whose marks allow that a call with an unknown outcome is sent again."""


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    kind: Kind
    era: Era
    share: int
    """Of a hundred calls."""
    addresses: int = 1
    loss: SessionLoss = PYTHON_SDK
    """How it says that it does not know a session."""
    own: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings that the others do not have."""
    replayed: frozenset[str] = MARKED
    """Tools whose calls may go again after an unknown outcome, by marks and settings."""


SERVERS = (
    Server("legacy", "http", "legacy", 22, loss=TYPESCRIPT_404),
    Server("modern", "http", "modern", 22),
    Server("twin", "http", "legacy", 8, addresses=2),
    Server("pair", "http", "both", 6, addresses=2, own={"balance": "call"}),
    Server("old", "sse", "legacy", 10),
    Server("pipe", "stdio", "legacy", 10),
    Server("newpipe", "stdio", "modern", 8, own={"serialize": True}),
    Server(
        *("guest", "http", "both", 8),
        loss=TYPESCRIPT_400,
        own={"mode": "legacy", "max_sessions": 3, "max_in_flight": 8, "retry": "never"},
        replayed=frozenset(),
    ),
    Server(
        *("visitor", "http", "legacy", 6),
        loss=BARE_404,
        own={"session": "call", "retry_tools": {"pay": "always"}},
        replayed=MARKED | {"pay"},
    ),
)
GUEST, VISITOR = "guest", "visitor"
"""They come and go: the guest with edits of the configuration, the visitor by `add` and `remove`.
The guest has less room than there are principals, the visitor a session for each call.
"""
BY_NAME = {server.name: server for server in SERVERS}
PLACES = {
    f"{server.name} {number}" if server.addresses > 1 else server.name: server
    for server in SERVERS
    for number in range(1, server.addresses + 1)
}
"""What trouble befalls: each address of a server by itself."""

PRINCIPALS = ("ada", "ben", "cleo", "dan", "eve")
NOBODY = ""
"""Calls without identity, in the server's own session."""
EDITION = "x-edition"
"""A header of the configuration, which edits change."""

MOST_RUNS = 4
"""Of a call that may be replayed: once, and `max_retries` (3) times again."""
SECRET = "hush"
"""Part of every token, so that one is found wherever it is shown."""


def _tool(name: str, about: str, **annotations: bool) -> dict[str, Any]:
    text = {"type": "string"}
    properties = {"key": text, "pad": text, "behaviour": {"type": "object"}}
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
    return f"Bearer {principal}.{rotation}.{SECRET}"
