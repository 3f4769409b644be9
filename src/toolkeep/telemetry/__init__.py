"""What can be made of events: log lines, and OpenTelemetry's spans and metrics.

    client.observe(LogObserver(), listen=False)
    client.observe(OpenTelemetry(), listen=False)

Both are plain observers, fed by the one stream of events. Neither ever shows what is in a call: no
arguments, results, headers, session ids, and no words of a server's, which might repeat them.
"""

from __future__ import annotations

from toolkeep.telemetry.logs import LogObserver
from toolkeep.telemetry.otel import OpenTelemetry

__all__ = ["LogObserver", "OpenTelemetry"]
