"""Observers that turn events into log lines, and into OpenTelemetry's spans and metrics.

    client.observe(LogObserver(), listen=False)
    client.observe(OpenTelemetry(), listen=False)

Neither shows the contents of a call: no arguments, results, headers or session ids, and no text of
a server, which might repeat them.
"""

from __future__ import annotations

from toolkeep.telemetry.logs import LogObserver
from toolkeep.telemetry.otel import OpenTelemetry

__all__ = ["LogObserver", "OpenTelemetry"]
