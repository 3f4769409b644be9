"""`Identity`: on whose behalf a call is made.

The identity decides which legacy session a call may use. With a principal, it is the principal's
name, whatever headers its calls carry. Without one, it is the headers of the call, except the
neutral ones: trace headers, and what the configuration lists. No digest or message made here
contains a header's value.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from toolkeep._rules.headers import lowered, merge_headers

NEUTRAL_HEADERS = frozenset(
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
        # Envoy, and most other products by convention
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
"""Headers that identify a request, not a caller: the fields of the propagators that OpenTelemetry
specifies, and of vendors, each under its source."""

CREDENTIAL_HEADERS = ("authorization", "proxy-authorization", "cookie")
"""Headers that may change while the principal stays the same."""


def identity_headers(headers: Mapping[str, str], neutral: Collection[str] = ()) -> dict[str, str]:
    """The headers that identify the caller: all but the neutral ones."""
    also_neutral = {name.lower() for name in neutral}
    return {
        name: value
        for name, value in lowered(headers).items()
        if name not in NEUTRAL_HEADERS and name not in also_neutral
    }


def conflicting_header(bound: Mapping[str, str], wanted: Mapping[str, str]) -> str | None:
    """The first header whose value differs from the one that the session is bound to.

    A header that only one side has does not conflict.
    """
    bound = lowered(bound)
    for name, value in lowered(wanted).items():
        if bound.get(name, value) != value:
            return name
    return None


@dataclass(frozen=True, slots=True)
class Identity:
    """On whose behalf a call is made. Calls with equal identities may share a session."""

    key: str = field(repr=False)
    principal: str | None = field(default=None, compare=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False, compare=False)
    """Sent with every request for this identity."""

    def __str__(self) -> str:
        return self.principal or f"anonymous-{self.key[-8:]}"


def identify(
    principal: str | None,
    *,
    call: Mapping[str, str],
    task: Mapping[str, str],
    neutral: Collection[str] = (),
) -> Identity | None:
    """The identity of a call; None for a call without principal and identity headers.

    `call` and `task` are checked headers: those of the call, and those of its context.
    """
    if principal is not None:
        own = identity_headers(task, neutral)
        own.update((name, call[name]) for name in CREDENTIAL_HEADERS if name in call)
        return Identity(f"principal:{principal}", principal, own)
    if not call and not task:
        return None
    own = identity_headers(merge_headers(call, task), neutral)
    if not own:
        return None
    digest = hashlib.sha256(json.dumps(sorted(own.items())).encode()).hexdigest()
    return Identity(f"headers:{digest}", None, own)
