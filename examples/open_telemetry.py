"""Calls as spans, with the trace that they belong to sent along."""

import asyncio

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from toolkeep import Runtime
from toolkeep.telemetry import OpenTelemetry
from toolkeep.testing import ScriptedServer

SHOWN = ("toolkeep.server.name", "network.transport", "mcp.protocol.version", "error.type")


async def main() -> None:
    spans = InMemorySpanExporter()  # yours goes to a collector
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    async with ScriptedServer.local() as server:
        runtime = Runtime({"notes": server.url})
        runtime.observe(OpenTelemetry(provider))
        async with runtime:
            with provider.get_tracer("agent").start_as_current_span("answer") as answer:
                await runtime.call("notes.echo", {"text": "hello"})
                await runtime.call("notes.fail", {"message": "no such invoice"})
        calls = await server.requests("tools/call")
        meta = [call.body["params"]["_meta"] for call in calls]
    for span in spans.get_finished_spans():
        print(span.name, {k: v for k, v in (span.attributes or {}).items() if k in SHOWN})
    trace_id = f"{answer.get_span_context().trace_id:032x}"
    print("the servers know the trace:", all(trace_id in one["traceparent"] for one in meta))


asyncio.run(main())
