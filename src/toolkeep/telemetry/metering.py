"""Metrics: how long calls and connections last, what is sent again, who comes and goes."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider, get_meter

from toolkeep._version import __version__
from toolkeep.telemetry.conventions import BUCKETS, Attributes


class Metering:
    """The instruments. Every attribute that they are given has few values."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = get_meter("toolkeep", __version__, provider)
        self._operation = meter.create_histogram(
            "mcp.client.operation.duration",
            "s",
            "How long calls took, replays and waits included.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._session = meter.create_histogram(
            "mcp.client.session.duration",
            "s",
            "How long connections lasted.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._open = meter.create_up_down_counter(
            "toolkeep.client.connections", "{connection}", "Connections that take calls."
        )
        self._replays = meter.create_counter(
            "toolkeep.client.replays", "{replay}", "Attempts that failed and were followed by one."
        )
        self._moves = meter.create_counter(
            "toolkeep.server.events", "{event}", "Servers that joined, were dropped, left, changed."
        )

    def call_ended(self, seconds: float, attributes: Attributes, context: Context) -> None:
        """`context`: the span's, so that an exemplar can point to it."""
        self._operation.record(seconds, attributes, context)

    def connected(self, attributes: Attributes) -> None:
        self._open.add(1, attributes)

    def disconnected(self, seconds: float, attributes: Attributes, end: Attributes) -> None:
        """`attributes`: those that it was counted with when it was made."""
        self._open.add(-1, attributes)
        self._session.record(seconds, {**attributes, **end})

    def replayed(self, attributes: Attributes) -> None:
        self._replays.add(1, attributes)

    def moved(self, attributes: Attributes) -> None:
        self._moves.add(1, attributes)
