"""`OpenTelemetry`: an observer that makes spans and metrics, and has trace context sent along.

It follows the semantic conventions for MCP of `open-telemetry/semantic-conventions-genai`
(docs/gen-ai/mcp.md and model/mcp, registry `gen-ai-dev/1.42.0-dev` on top of the semantic
conventions 1.44.0; autumn 2026, status Development), and SEP-414 for `_meta`.

A call is a CLIENT span `tools/call {tool}` and a measurement of `mcp.client.operation.duration`.
Replays and questions are events of the span. A connection is a measurement of
`mcp.client.session.duration`. Where we knowingly differ:

- `mcp.session.id` is left out: whoever holds it can speak for the session, so it is a secret.
- `jsonrpc.request.id` is left out: a span covers a call, which may be sent under several ids.
  `toolkeep.call.id` is the id in our events and log lines.
- The status description is not the server's message, which may repeat arguments, but our outline.
- `network.protocol.version` is left out: events do not tell it.

`error.type` is the JSON-RPC code that answered the call, `tool_error` for a result that says
`isError`, `cancelled` when the caller gave up, the name of one of toolkeep's error types, or
`_OTHER`; for a connection, the kind of failure that ended it.

Arguments and results are never recorded.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkeep._engine.group_terms import Dropped, HealthChanged, Joined, Left
from toolkeep.config import ServerSpec
from toolkeep.errors import ConfigError
from toolkeep.events import (
    CallEvent,
    Completed,
    Connected,
    Disconnected,
    Event,
    Failed,
    InputNeeded,
    Replaying,
    Started,
)
from toolkeep.telemetry import conventions
from toolkeep.telemetry.conventions import OTHER, SERVER, VERSION, Attributes
from toolkeep.telemetry.facts import outline, shown

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from toolkeep.telemetry.metering import Metering
    from toolkeep.telemetry.tracing import Traced, Tracing

_MOST_OPEN = 10_000
"""Calls, and connections, that may be under way; beyond that the oldest is given up."""
_MOST_TOOLS = 1_000
"""Names of tools that metrics tell apart: models invent names, and SDKs take 2,000 combinations of
attributes by default."""


@dataclass(frozen=True, slots=True)
class _Call:
    began: float
    traced: Traced


@dataclass(frozen=True, slots=True)
class _Connection:
    began: float
    attributes: Attributes


class OpenTelemetry:
    """May observe any number of clients and groups of one event loop.

    Without providers it uses the global ones. `servers`, or `know`, say where servers are, which
    events do not. `propagate=False` sends no trace context and no baggage to servers.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        servers: Iterable[ServerSpec] = (),
        propagate: bool = True,
    ) -> None:
        self._tracing, self._metering = _instruments(tracer_provider, meter_provider)
        self._propagate = propagate
        self._places: dict[str, Attributes] = {}
        self._versions: dict[str, Attributes] = {}
        self._calls: dict[str, _Call] = {}
        # A runtime has a client for each principal, and their events bear the same name: which of
        # them ended is then a guess, but the sum of what they lasted is right.
        self._connections: dict[tuple[str, str, int], list[_Connection]] = {}
        self._tools: set[str] = set()
        for spec in servers:
            self.know(spec)

    def know(self, spec: ServerSpec) -> None:
        """Where the server of this name is: for `network.transport`, `server.address` and
        `server.port`."""
        self._places[spec.name] = conventions.of_server(spec)

    def meta(self, call_id: str) -> dict[str, str]:
        """What goes into the `_meta` of this call's requests: `traceparent`, `tracestate` and
        `baggage`, with the propagators that OpenTelemetry has by default."""
        call = self._calls.get(call_id) if self._propagate else None
        return call.traced.meta() if call else {}

    def __call__(self, event: Event) -> None:
        match event:
            case CallEvent():
                self._on_call(event)
            case Connected():
                self._on_connected(event)
            case Disconnected():
                self._on_disconnected(event)
            case Joined() | Dropped() | Left() | HealthChanged():
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
            case Replaying():
                self._replay(event)
            case InputNeeded() if event.call_id in self._calls:
                method: Attributes = {"mcp.method.name": shown(event.method)}
                self._calls[event.call_id].traced.note("toolkeep.input_needed", method)
            case _:
                pass

    def _start(self, event: Started) -> None:
        tool = shown(event.tool)
        attributes = conventions.of_call(event.server, tool) | self._place(event.server)
        attributes["toolkeep.call.id"] = event.call_id
        traced = self._tracing.start(f"{conventions.METHOD} {tool}", attributes)
        if len(self._calls) >= _MOST_OPEN:
            oldest = self._calls.pop(next(iter(self._calls)))
            oldest.traced.end({}, None)  # whoever told of it was closed before it ended
        self._calls[event.call_id] = _Call(time.perf_counter(), traced)

    def _end(self, event: Completed | Failed) -> None:
        call = self._calls.pop(event.call_id, None)
        if call is None:
            return
        seconds = time.perf_counter() - call.began
        outcome = conventions.of_outcome(event) | self._versions.get(event.server, {})
        problem = None
        if "error.type" in outcome:
            problem = outline(event.error) if isinstance(event, Failed) else conventions.TOOL_ERROR
        about = conventions.of_call(event.server, self._countable(event.tool))
        attributes = about | self._place(event.server) | outcome
        if not (isinstance(event, Completed) and event.result.cached):  # nothing was sent
            self._metering.call_ended(seconds, attributes, call.traced.context)
        call.traced.end(outcome | conventions.of_effort(event), problem)

    def _replay(self, event: Replaying) -> None:
        call = self._calls.get(event.call_id)
        if call is not None:
            call.traced.note("toolkeep.replay", conventions.of_replay(event))
        about = conventions.of_call(event.server, self._countable(event.tool))
        self._metering.replayed({**about, "error.type": event.failure.kind.value})

    def _countable(self, tool: str) -> str:
        """The tool's name as an attribute of metrics."""
        if tool not in self._tools:
            if len(self._tools) >= _MOST_TOOLS:
                return OTHER
            self._tools.add(tool)
        return shown(tool)

    # -- servers --------------------------------------------------------------------------------

    def _place(self, server: str) -> Attributes:
        return self._places.get(server, {})

    def _on_connected(self, event: Connected) -> None:
        version: Attributes = {VERSION: shown(event.protocol_version)}
        self._versions[event.server] = version
        attributes = {SERVER: event.server, **version, **self._place(event.server)}
        if len(self._connections) >= _MOST_OPEN:
            del self._connections[next(iter(self._connections))]
        key = (event.server, event.endpoint, event.generation)
        same = self._connections.setdefault(key, [])
        same.append(_Connection(time.perf_counter(), attributes))
        self._metering.connected(attributes)

    def _on_disconnected(self, event: Disconnected) -> None:
        key = (event.server, event.endpoint, event.generation)
        same = self._connections.get(key)
        if not same:
            return  # it was made before anybody observed
        ended = same.pop(0)
        if not same:
            del self._connections[key]
        seconds = time.perf_counter() - ended.began
        self._metering.disconnected(seconds, ended.attributes, conventions.of_end(event))

    def _on_member(self, event: Joined | Dropped | Left | HealthChanged) -> None:
        attributes: Attributes = {SERVER: event.server, "toolkeep.event": event.kind}
        if isinstance(event, HealthChanged):
            attributes["toolkeep.health"] = event.health.value
        self._metering.moved(attributes)


def _instruments(
    tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None
) -> tuple[Tracing, Metering]:
    try:
        from toolkeep.telemetry.metering import Metering
        from toolkeep.telemetry.tracing import Tracing
    except ImportError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        remedy = "Install toolkeep with its extra `otel`"
        raise ConfigError("OpenTelemetry's API is not installed", remedy=remedy) from None
    return Tracing(tracer_provider), Metering(meter_provider)
