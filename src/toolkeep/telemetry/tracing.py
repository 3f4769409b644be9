"""Spans: one for each call, from its first moment to its last, replays and waits included.

A span is a child of whatever was current where the call began. It is not made the current one
itself: an observer that is closed in the middle of a call could not take that back, and the next
call would be taken for a child of this one.
"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import propagate
from opentelemetry.context import Context, get_current
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_tracer,
    set_span_in_context,
)

from toolkeep._version import __version__
from toolkeep.telemetry.conventions import Attributes


class Traced:
    """One call's span, and the context in which it stands: the caller's, baggage included."""

    __slots__ = ("_span", "context")

    def __init__(self, span: Span, context: Context) -> None:
        self._span, self.context = span, context

    def meta(self) -> dict[str, str]:
        """The context as the configured propagators write it. Who records nothing adds nothing."""
        carrier: dict[str, str] = {}
        if self._span.is_recording():
            propagate.inject(carrier, context=self.context)
        return carrier

    def note(self, name: str, attributes: Attributes) -> None:
        self._span.add_event(name, attributes)

    def end(self, attributes: Mapping[str, str | int | float | bool], problem: str | None) -> None:
        self._span.set_attributes(attributes)
        if problem is not None:
            self._span.set_status(Status(StatusCode.ERROR, problem))
        self._span.end()


class Tracing:
    """Makes spans."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._tracer = get_tracer("toolkeep", __version__, provider)

    def start(self, name: str, attributes: Attributes) -> Traced:
        around = get_current()
        span = self._tracer.start_span(name, around, SpanKind.CLIENT, attributes)
        return Traced(span, set_span_in_context(span, around))
