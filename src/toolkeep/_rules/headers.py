"""Which headers a call may carry, and which of several values wins.

Header names are case-insensitive and are returned in lower case; inputs are never changed.
Headers of the protocol or of the connection are refused. No message contains a header's value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A field name, RFC 9110, section 5.6.2."""

CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
"""RFC 9110, section 5.5 forbids C0 and DEL, except the tab. It allows C1 as opaque bytes; we refuse
it, because many parsers read U+0085 as a line break."""

PROTOCOL_PREFIX = "mcp-"
"""Mcp-Session-Id, MCP-Protocol-Version, Mcp-Method, Mcp-Name, Mcp-Param-*: toolkeep sets these."""

FORBIDDEN_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Framing and hop-by-hop headers (RFC 9110, sections 6 to 8 and 10.1; RFC 9112, section 6), and the
old Keep-Alive and Proxy-Connection. Only the HTTP library sets them."""

IGNORED_HEADERS = ("accept", "content-type")
"""The protocol fixes both, but many configurations list them."""

MAX_SHOWN_NAME = 40
"""Characters of a malformed name that a message shows: it may be a whole header line, with a
secret."""


class HeaderRefused(ValueError):
    """A header that may not be sent. The message never contains its value."""

    def __init__(self, name: str, reason: str, origin: str) -> None:
        self.name, self.reason, self.origin = name, reason, origin
        super().__init__(f"header {name!r} ({origin}) {reason}")


def merge_headers(*levels: Mapping[str, str] | None) -> dict[str, str]:
    """Merge several sets of headers; the first has the highest precedence."""
    merged: dict[str, str] = {}
    for level in reversed(levels):
        merged.update(lowered(level or {}))
    return merged


def by_precedence(
    *,
    call: Mapping[str, str],
    tool: Mapping[str, str],
    context: Mapping[str, str],
    derived: Mapping[str, str],
) -> dict[str, str]:
    """The headers of one call, from checked ones: those of the call itself win over those of the
    tool, of the context, and those derived from the context. The headers of the server, which go
    with every request, give way to all of them."""
    return {**derived, **context, **tool, **call}


def check_headers(headers: Mapping[str, str], *, origin: str) -> dict[str, str]:
    """Return the headers with lower-case names, or raise `HeaderRefused`.

    `origin` names their source in the error. White space around a value is removed: by RFC 9110,
    section 5.5 it is not part of the value.
    """
    checked: dict[str, str] = {}
    for given, raw in headers.items():
        name, value = _checked_name(given, origin), _checked_value(given, raw, origin)
        if checked.setdefault(name, value) != value:
            raise HeaderRefused(name, "is given twice, with different values", origin)
    return checked


def split_ignored_headers(headers: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Configured headers without the ignored ones, and the names of those."""
    given = lowered(headers)
    kept = {name: value for name, value in given.items() if name not in IGNORED_HEADERS}
    return kept, tuple(name for name in IGNORED_HEADERS if name in given)


def lowered(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _checked_name(given: object, origin: str) -> str:
    if not isinstance(given, str):
        raise HeaderRefused(type(given).__name__, "is not a string", origin)
    if not HEADER_NAME.fullmatch(given):
        raise HeaderRefused(_shorten_name(given), "is not a valid name", origin)
    name = given.lower()
    if name.startswith(PROTOCOL_PREFIX):
        raise HeaderRefused(name, "belongs to the protocol", origin)
    if name in FORBIDDEN_HEADERS:
        raise HeaderRefused(name, "belongs to the HTTP connection", origin)
    return name


def _checked_value(name: str, value: object, origin: str) -> str:
    if not isinstance(value, str):
        raise HeaderRefused(name, f"has a value of type {type(value).__name__}, not str", origin)
    if CONTROL_CHARACTER.search(value):
        raise HeaderRefused(name, "has a line break or control character in its value", origin)
    if max(value, default="") > "\xff":
        raise HeaderRefused(name, "has characters outside Latin-1 in its value", origin)
    return value.strip(" \t")


def _shorten_name(name: str) -> str:
    start = HEADER_NAME.match(name)
    return (start[0][:MAX_SHOWN_NAME] if start else "") + "…"
