"""What the tests of telemetry share: OpenTelemetry's SDK in memory, and servers of every kind."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from tests.engine.helpers_tasks import Era, closing
from toolkeep import Client
from toolkeep.telemetry import OpenTelemetry
from toolkeep.testing import ScriptedServer

Transport = Literal["http", "stdio"]

every_transport = pytest.mark.parametrize("transport", ["http", "stdio"])


@dataclass
class Telescope:
    """OpenTelemetry's SDK, exporting into memory."""

    sampled: bool = True
    spans_out: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    metrics_out: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)

    def __post_init__(self) -> None:
        sampler = ALWAYS_ON if self.sampled else ALWAYS_OFF
        self.tracing = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.tracing.add_span_processor(SimpleSpanProcessor(self.spans_out))
        self.metering = MeterProvider([self.metrics_out], shutdown_on_exit=False)
        self.tracer = self.tracing.get_tracer("the application")

    def observer(self, **options: Any) -> OpenTelemetry:
        return OpenTelemetry(self.tracing, self.metering, **options)

    def calls(self) -> list[ReadableSpan]:
        """The spans that have ended and are ours."""
        spans = self.spans_out.get_finished_spans()
        return [s for s in spans if s.instrumentation_scope and is_ours(s.instrumentation_scope)]

    def call(self) -> ReadableSpan:
        (span,) = self.calls()
        return span

    def points(self, metric: str) -> list[Any]:
        """The data points of a metric."""
        return [point for name, point in self._points() if name == metric]

    def _points(self) -> Iterator[tuple[str, Any]]:
        data = self.metrics_out.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    yield from ((metric.name, point) for point in metric.data.data_points)

    def shown(self) -> str:
        """Everything that would be exported."""
        spans = [span.to_json() for span in self.spans_out.get_finished_spans()]
        data = self.metrics_out.get_metrics_data()
        return "\n".join([*spans, data.to_json() if data else ""])

    def close(self) -> None:
        self.tracing.shutdown()
        self.metering.shutdown()


def is_ours(scope: Any) -> bool:
    return scope.name == "toolkeep"


@asynccontextmanager
async def observed(
    telescope: Telescope, era: Era, transport: Transport = "http", **spec: Any
) -> AsyncIterator[tuple[ScriptedServer, Client]]:
    """A server, and a client that is observed."""
    kind = ScriptedServer.local if transport == "http" else ScriptedServer.stdio
    async with (
        kind(era=era) as server,
        closing(Client({"name": "kit", "mode": era, **server.spec, **spec})) as client,
    ):
        client.observe(telescope.observer(servers=[client.spec]), listen=False)
        yield server, client


def traceparent(span: ReadableSpan) -> str:
    """As W3C has it."""
    own = span.get_span_context()
    assert own is not None
    return f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"


async def metas(server: ScriptedServer, tool: str) -> list[dict[str, Any]]:
    """The `_meta` of the calls that arrived, in order."""
    seen = await server.requests(tool=tool)
    bodies = [r.body if isinstance(r.body, dict) else json.loads(r.body) for r in seen]
    return [body["params"].get("_meta", {}) for body in bodies]
