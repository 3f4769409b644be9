"""Which headers a request carries, and whose they are.

Names are case-insensitive and come out in lower case; no input is ever changed. Headers that belong
to the protocol or to the connection are refused, not overwritten in silence. Values can be secrets:
no message, digest or attribute made here contains one.

A header is *identity* unless it is *neutral*: trace headers, and what a server's configuration
lists. Identity decides which legacy session a call may use, so an unknown header is identity.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

__all__ = [
    "IGNORED",
    "NEUTRAL",
    "REFUSED",
    "HeaderRefused",
    "check",
    "conflict",
    "identity",
    "merge",
    "split_ignored",
]

TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""RFC 9110, section 5.6.2: what a field name is made of."""

CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
"""RFC 9110, section 5.5 forbids C0 and DEL but the tab. It lets C1 pass as opaque bytes; we do not,
because U+0085 is a line break to many parsers."""

PROTOCOL = "mcp-"
"""Mcp-Session-Id, MCP-Protocol-Version, Mcp-Method, Mcp-Name, Mcp-Param-*: ours to fill in."""

REFUSED = frozenset(
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
old Keep-Alive and Proxy-Connection: the HTTP library's alone."""

IGNORED = ("accept", "content-type")
"""The protocol fixes both; many configurations carry them all the same."""

NEUTRAL = frozenset(
    {
        # W3C Trace Context, W3C Baggage
        "traceparent",
        "tracestate",
        "baggage",
        # B3 (openzipkin/b3-propagation), single and multiple
        "b3",
        "x-b3-traceid",
        "x-b3-spanid",
        "x-b3-parentspanid",
        "x-b3-sampled",
        "x-b3-flags",
        # Envoy, and by convention nearly everyone
        "x-request-id",
        "x-client-trace-id",
        "x-correlation-id",
        # Google Cloud Trace; AWS X-Ray; Azure Application Insights
        "x-cloud-trace-context",
        "x-amzn-trace-id",
        "request-id",
        "request-context",
        # Jaeger; OpenTracing; Datadog; Sentry; Elastic; New Relic
        "uber-trace-id",
        "ot-tracer-traceid",
        "ot-tracer-spanid",
        "ot-tracer-sampled",
        "x-datadog-trace-id",
        "x-datadog-parent-id",
        "x-datadog-sampling-priority",
        "x-datadog-origin",
        "x-datadog-tags",
        "sentry-trace",
        "elastic-apm-traceparent",
        "newrelic",
    }
)
"""Headers that say which request this is, never on whose behalf: the fields of the propagators that
OpenTelemetry specifies, and of the vendors' own, each under its source."""

SHOWN = 40
"""Characters of a malformed name that a message may show: the name may be a whole header line."""


class HeaderRefused(ValueError):
    """A header that may not be sent. Never tells its value."""

    def __init__(self, name: str, reason: str, origin: str) -> None:
        self.name, self.reason, self.origin = name, reason, origin
        super().__init__(f"header {name!r} ({origin}) {reason}")


def merge(*levels: Mapping[str, str] | None) -> dict[str, str]:
    """One set of headers from several, the highest precedence first."""
    merged: dict[str, str] = {}
    for level in reversed(levels):
        merged.update(_lowered(level or {}))
    return merged


def check(headers: Mapping[str, str], *, origin: str) -> dict[str, str]:
    """The same headers with lower-case names, or `HeaderRefused`. `origin` says who gave them.

    Blanks around a value go: by RFC 9110, section 5.5 they are no part of it.
    """
    checked: dict[str, str] = {}
    for given, raw in headers.items():
        name, value = _checked_name(given, origin), _checked_value(given, raw, origin)
        if checked.setdefault(name, value) != value:
            raise HeaderRefused(name, "is given twice, with different values", origin)
    return checked


def split_ignored(headers: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """What a configuration's headers leave to send, and the names that were taken out."""
    lowered = _lowered(headers)
    kept = {name: value for name, value in lowered.items() if name not in IGNORED}
    return kept, tuple(name for name in IGNORED if name in lowered)


def identity(headers: Mapping[str, str], neutral: Collection[str] = ()) -> dict[str, str]:
    """Those headers that say on whose behalf: all but the neutral ones."""
    passing = {name.lower() for name in neutral}
    return {
        name: value
        for name, value in _lowered(headers).items()
        if name not in NEUTRAL and name not in passing
    }


def conflict(bound: Mapping[str, str], wanted: Mapping[str, str]) -> str | None:
    """The first header whose value is not the one that the session is bound to.

    A header that only one side carries is no conflict.
    """
    known = _lowered(bound)
    for name, value in _lowered(wanted).items():
        if known.get(name, value) != value:
            return name
    return None


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _checked_name(given: object, origin: str) -> str:
    if not isinstance(given, str):
        raise HeaderRefused(type(given).__name__, "is not a string", origin)
    if not TOKEN.fullmatch(given):
        raise HeaderRefused(_shown(given), "is not a valid name", origin)
    name = given.lower()
    if name.startswith(PROTOCOL):
        raise HeaderRefused(name, "belongs to the protocol", origin)
    if name in REFUSED:
        raise HeaderRefused(name, "belongs to the HTTP connection", origin)
    return name


def _checked_value(name: str, value: object, origin: str) -> str:
    if not isinstance(value, str):
        raise HeaderRefused(name, f"has a value of type {type(value).__name__}, not str", origin)
    if CONTROL.search(value):
        raise HeaderRefused(name, "has a line break or control character in its value", origin)
    if max(value, default="") > "\xff":
        raise HeaderRefused(name, "has characters outside Latin-1 in its value", origin)
    return value.strip(" \t")


def _shown(name: str) -> str:
    start = TOKEN.match(name)
    return (start[0][:SHOWN] if start else "") + "…"
