"""`OpenTelemetry`: an observer that makes spans and metrics, and propagates trace context.

It follows the semantic conventions for MCP of `open-telemetry/semantic-conventions-genai`
(docs/gen-ai/mcp.md and model/mcp, registry `gen-ai-dev/1.42.0-dev` on top of the semantic
conventions 1.44.0; autumn 2026, status Development), and SEP-414 for `_meta`.

A call is a CLIENT span `tools/call {tool}` and a measurement of `mcp.client.operation.duration`.
Retries and requests for input are events of the span. A connection is a measurement of
`mcp.client.session.duration`. Deliberate differences:

- `mcp.session.id` is left out: it is a secret, because its holder can use the session.
- `jsonrpc.request.id` is left out: a span covers a call, which may be sent under several ids.
  `toolkeep.call.id` is the id in our events and log lines.
- The status description is our summary of the error. The server's message may repeat arguments.
- `network.protocol.version` is left out: events do not carry it.

`error.type` is the JSON-RPC code that answered the call, `tool_error` for a result that says
`isError`, `cancelled` when the caller gave up, the name of one of toolkeep's error types, or
`_OTHER`; for a connection, the kind of failure that ended it.

Names that the conventions lack begin with `toolkeep.`. Arguments and results are never recorded.

opentelemetry is imported when an `OpenTelemetry` is made: it is an extra.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toolkeep._version import __version__
from toolkeep.config import ServerSpec
from toolkeep.errors import CallError, CallOutcomeUnknown, ConfigError, ToolkeepError
from toolkeep.events import (
    CallEvent,
    Completed,
    Connected,
    Disconnected,
    Event,
    Failed,
    HealthChanged,
    InputNeeded,
    Retrying,
    ServerAdded,
    ServerLost,
    ServerRemoved,
    Started,
)
from toolkeep.telemetry.logs import end_reason, error_summary, failure_facts, shown

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

Attributes = dict[str, str | int | float | bool]

_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Seconds. The conventions recommend them for both durations."""
_METHOD = "tools/call"
_SERVER_NAME = "toolkeep.server.name"
_PROTOCOL_VERSION = "mcp.protocol.version"
_OTHER = "_OTHER"
_TOOL_ERROR = "tool_error"
_CANCELLED = "cancelled"
_PORTS = {"http": 80, "https": 443}
_MAX_OPEN = 10_000
"""Open calls, and open connections, that are followed. Beyond that the oldest is dropped."""
_MAX_TOOLS = 1_000
"""Tool names that metrics tell apart. Models invent names, and SDKs accept 2,000 combinations of
attributes by default."""


class OpenTelemetry:
    """Observes any number of clients and groups of one event loop.

    The default providers are the global ones. Events do not carry the addresses of servers: give
    them with `servers` or `know`. `propagate=False` sends no trace context and no baggage to
    servers.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        servers: Iterable[ServerSpec] = (),
        propagate: bool = True,
    ) -> None:
        try:
            self._spans, self._metrics = _Spans(tracer_provider), _Metrics(meter_provider)
        except ImportError as error:
            if not (error.name or "").startswith("opentelemetry"):
                raise
            remedy = "Install toolkeep with its extra `otel`"
            raise ConfigError("OpenTelemetry's API is not installed", remedy=remedy) from None
        self._propagate = propagate
        self._addresses: dict[str, Attributes] = {}
        self._versions: dict[str, Attributes] = {}
        self._calls: dict[str, _Call] = {}
        # A runtime has a client for each principal, and their events carry the same server name.
        # Which of several connections ended is a guess; the sum of their durations is right.
        self._connections: dict[tuple[str, str, int], list[_Connection]] = {}
        self._tools: set[str] = set()
        for spec in servers:
            self.add_server(spec)

    def __repr__(self) -> str:
        return f"<OpenTelemetry, {len(self._calls)} calls running>"

    def add_server(self, spec: ServerSpec) -> None:
        """Take the address of a server, for `network.transport`, `server.address` and
        `server.port`."""
        self._addresses[spec.name] = _server_attributes(spec)

    def meta(self, call_id: str) -> dict[str, str]:
        """Entries for the `_meta` of this call's requests. OpenTelemetry's default propagators make
        `traceparent`, `tracestate` and `baggage`."""
        call = self._calls.get(call_id) if self._propagate else None
        return self._spans.headers(call.span, call.context) if call else {}

    def __call__(self, event: Event) -> None:
        match event:
            case CallEvent():
                self._on_call(event)
            case Connected():
                self._on_connected(event)
            case Disconnected():
                self._on_disconnected(event)
            case ServerAdded() | ServerLost() | ServerRemoved() | HealthChanged():
                self._on_member(event)
            case _:
                pass

    # -- calls ----------------------------------------------------------------------------------

    def _on_call(self, event: CallEvent) -> None:
        match event:
            case Started():
                self._start(event)
            case Completed() | Failed():
                self._end(event)
            case Retrying():
                self._retry(event)
            case InputNeeded() if event.call_id in self._calls:
                method: Attributes = {"mcp.method.name": shown(event.method)}
                self._calls[event.call_id].span.add_event("toolkeep.input_needed", method)
            case _:
                pass

    def _start(self, event: Started) -> None:
        tool = shown(event.tool)
        attributes = _call_attributes(event.server, tool) | self._address(event.server)
        attributes["toolkeep.call.id"] = event.call_id
        span, context = self._spans.start(f"{_METHOD} {tool}", attributes)
        if len(self._calls) >= _MAX_OPEN:
            oldest = self._calls.pop(next(iter(self._calls)))
            oldest.span.end()  # its client was closed before the call ended
        self._calls[event.call_id] = _Call(time.perf_counter(), span, context)

    def _end(self, event: Completed | Failed) -> None:
        call = self._calls.pop(event.call_id, None)
        if call is None:
            return
        seconds = time.perf_counter() - call.started
        outcome = _outcome_attributes(event) | self._versions.get(event.server, {})
        problem = None
        if "error.type" in outcome:
            problem = error_summary(event.error) if isinstance(event, Failed) else _TOOL_ERROR
        about = _call_attributes(event.server, self._tool_attribute(event.tool))
        attributes = about | self._address(event.server) | outcome
        if not (isinstance(event, Completed) and event.result.cached):  # nothing was sent
            self._metrics.calls.record(seconds, attributes, call.context)
        self._spans.end(call.span, outcome | _cost_attributes(event), problem)

    def _retry(self, event: Retrying) -> None:
        call = self._calls.get(event.call_id)
        if call is not None:
            call.span.add_event("toolkeep.retry", _retry_attributes(event))
        about = _call_attributes(event.server, self._tool_attribute(event.tool))
        self._metrics.retries.add(1, {**about, "error.type": event.failure.kind.value})

    def _tool_attribute(self, tool: str) -> str:
        """The tool's name as an attribute of metrics, within `_MAX_TOOLS` names."""
        if tool not in self._tools:
            if len(self._tools) >= _MAX_TOOLS:
                return _OTHER
            self._tools.add(tool)
        return shown(tool)

    # -- servers --------------------------------------------------------------------------------

    def _address(self, server: str) -> Attributes:
        return self._addresses.get(server, {})

    def _on_connected(self, event: Connected) -> None:
        version: Attributes = {_PROTOCOL_VERSION: shown(event.protocol_version)}
        self._versions[event.server] = version
        attributes = {_SERVER_NAME: event.server, **version, **self._address(event.server)}
        if len(self._connections) >= _MAX_OPEN:
            del self._connections[next(iter(self._connections))]
        key = (event.server, event.endpoint, event.generation)
        same = self._connections.setdefault(key, [])
        same.append(_Connection(time.perf_counter(), attributes))
        self._metrics.open_connections.add(1, attributes)

    def _on_disconnected(self, event: Disconnected) -> None:
        key = (event.server, event.endpoint, event.generation)
        same = self._connections.get(key)
        if not same:
            return  # it was opened before it was observed
        ended = same.pop(0)
        if not same:
            del self._connections[key]
        seconds = time.perf_counter() - ended.started
        self._metrics.open_connections.add(-1, ended.attributes)
        self._metrics.connections.record(seconds, {**ended.attributes, **_end_attributes(event)})

    def _on_member(self, event: ServerAdded | ServerLost | ServerRemoved | HealthChanged) -> None:
        attributes: Attributes = {_SERVER_NAME: event.server, "toolkeep.event": event.kind}
        if isinstance(event, HealthChanged):
            attributes["toolkeep.health"] = event.health.value
        self._metrics.server_events.add(1, attributes)


# -- instruments --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Call:
    started: float
    span: Span
    context: Context
    """The caller's context, baggage included, with the span in it."""


@dataclass(frozen=True, slots=True)
class _Connection:
    started: float
    attributes: Attributes


class _Spans:
    """Makes a span for each call, retries and waits included.

    A span is a child of the span that is current where the call starts. It is not made the current
    one itself: an observer that is closed during a call could not undo that, and the next call
    would become a child of this one.
    """

    def __init__(self, provider: TracerProvider | None) -> None:
        from opentelemetry import context, propagate, trace

        self._context, self._propagate, self._trace = context, propagate, trace
        self._tracer = trace.get_tracer("toolkeep", __version__, provider)

    def start(self, name: str, attributes: Attributes) -> tuple[Span, Context]:
        current, kind = self._context.get_current(), self._trace.SpanKind.CLIENT
        span = self._tracer.start_span(name, current, kind, attributes)
        return span, self._trace.set_span_in_context(span, current)

    def headers(self, span: Span, context: Context) -> dict[str, str]:
        """The context as the configured propagators write it; empty if nothing is recorded."""
        carrier: dict[str, str] = {}
        if span.is_recording():
            self._propagate.inject(carrier, context=context)
        return carrier

    def end(self, span: Span, attributes: Attributes, problem: str | None) -> None:
        span.set_attributes(attributes)
        if problem is not None:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, problem))
        span.end()


class _Metrics:
    """The instruments. Every attribute that they are given has few values."""

    def __init__(self, provider: MeterProvider | None) -> None:
        from opentelemetry.metrics import get_meter

        meter = get_meter("toolkeep", __version__, provider)
        self.calls = meter.create_histogram(
            "mcp.client.operation.duration",
            "s",
            "Duration of calls, retries and waits included.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self.connections = meter.create_histogram(
            "mcp.client.session.duration",
            "s",
            "Duration of connections.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self.open_connections = meter.create_up_down_counter(
            "toolkeep.client.connections", "{connection}", "Open connections."
        )
        self.retries = meter.create_counter(
            "toolkeep.client.retries", "{retry}", "Failed attempts that were followed by another."
        )
        self.server_events = meter.create_counter(
            "toolkeep.server.events",
            "{event}",
            "Servers added, lost, removed, or changed in health.",
        )


# -- attributes ---------------------------------------------------------------------------------


def _server_attributes(spec: ServerSpec) -> Attributes:
    """The address of a server. Only host and port of its URL: the rest may be secret."""
    if spec.command:
        return {"network.transport": "pipe"}
    if not spec.url:
        return {}
    if spec.urls:  # a call does not say which of them it uses
        return {"network.transport": "tcp", "network.protocol.name": "http"}
    parts = urlsplit(spec.url)
    return {
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "server.address": parts.hostname or "",
        "server.port": parts.port or _PORTS[parts.scheme],
    }


def _call_attributes(server: str, tool: str) -> Attributes:
    """What is known of a call when it starts."""
    return {
        "mcp.method.name": _METHOD,
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        _SERVER_NAME: server,
    }


def _outcome_attributes(event: Completed | Failed) -> Attributes:
    """What is known of a call when it has ended. Failed calls, and no others, have `error.type`."""
    if isinstance(event, Completed):
        return {"error.type": _TOOL_ERROR} if event.result.is_error else {}
    attributes: Attributes = {"error.type": _error_type(event.error)}
    failure = event.error.failure if isinstance(event.error, ToolkeepError) else None
    if failure is not None and failure.code is not None:
        attributes["rpc.response.status_code"] = str(failure.code)
    return attributes


def _error_type(error: BaseException) -> str:
    """The JSON-RPC code that answered the call, or the name of the error's type."""
    if not isinstance(error, Exception):
        return _CANCELLED
    if not isinstance(error, ToolkeepError):
        return _OTHER
    failure = error.failure if isinstance(error, CallError) else None
    # An unknown outcome may stem from an earlier attempt than the one that was answered.
    unknown = isinstance(error, CallOutcomeUnknown)
    if failure is None or failure.code is None or unknown:
        return type(error).__name__
    return str(failure.code)


def _cost_attributes(event: Completed | Failed) -> Attributes:
    """For spans only: the number of attempts, and the delivery of a failed call."""
    if isinstance(event, Completed):
        cached: Attributes = {"toolkeep.cached": True} if event.result.cached else {}
        return {"toolkeep.attempts": event.result.attempts, **cached}
    attributes: Attributes = {}
    if isinstance(event.error, ToolkeepError):
        attributes["toolkeep.delivery"] = event.error.delivery.value
    if isinstance(event.error, CallError):
        attributes["toolkeep.attempts"] = event.error.attempts
    return attributes


def _retry_attributes(event: Retrying) -> Attributes:
    """One failed attempt, as an event of the span."""
    facts = failure_facts(event.failure)
    failure: Attributes = {f"toolkeep.{name}": value for name, value in facts.items()}
    return {"toolkeep.attempt": event.attempt, "toolkeep.after": event.delay, **failure}


def _end_attributes(event: Disconnected) -> Attributes:
    """Why a connection ended, unless it was closed."""
    reason = end_reason(event)
    return {} if reason == "closed" else {"error.type": reason}
