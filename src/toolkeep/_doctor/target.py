"""The endpoint under examination: what is configured for it, and the traffic recorded on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from toolkeep._transport.trace import OnTrace, TraceEvent, TraceKind
from toolkeep.config import Origin, ServerSpec, redact_url, secrets_of_url

HTTP_WAIT, PROGRAM_WAIT = 10.0, 60.0
"""Seconds for each step. `npx` and `uvx` may have to download a program before it speaks."""
MAX_EVENTS = 2000
"""Recorded events: more than a handshake needs. The pages of a long tool list are not kept."""
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Target:
    """One server at one address."""

    spec: ServerSpec
    origins: Mapping[str, Origin] = field(default_factory=dict[str, Origin])
    """Where each key of the server is written."""
    timeout: float | None = None
    tap: OnTrace | None = None
    only_address: bool = True
    """Whether the server has this address only."""

    @property
    def label(self) -> str:
        return self.spec.name if self.only_address else f"{self.spec.name} at {self.url}"

    @property
    def wait(self) -> float:
        """Seconds that one step may take."""
        default = PROGRAM_WAIT if self.spec.command else HTTP_WAIT
        return default if self.timeout is None else self.timeout

    @property
    def host(self) -> str:
        return urlsplit(self.spec.url).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.spec.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def is_https(self) -> bool:
        return urlsplit(self.spec.url).scheme == "https"

    @property
    def url(self) -> str:
        """The URL without its secrets."""
        return redact_url(self.spec.url)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Configured values that must not be shown."""
        spec = self.spec
        key = (spec.api_key.get_secret_value(),) if spec.api_key is not None else ()
        urls = (*secrets_of_url(spec.url), *secrets_of_url(spec.proxy or ""))
        return (*key, *spec.headers.values(), *urls, *spec.secrets)

    def key(self, name: str) -> str:
        """The name of a key and where it is, or would be, written: `'url' (mcp.json:4)`."""
        nearby = (name, "url", "urls", "command")
        origin = next((self.origins[one] for one in nearby if one in self.origins), None)
        if origin is None or origin == Origin():
            return repr(name)
        if name in self.origins:
            return f"{name!r} ({origin})"
        server = f"server {self.spec.name!r}"
        return f"{name!r} ({f'{origin.file}, {server}' if origin.file else server})"


class Traffic:
    """A `OnTrace` that records what passes over the wire and hands it on to the trace.

    One for each examination. Requests that the doctor sends itself (probes) are recorded apart:
    they are not evidence about the client's own requests.
    """

    def __init__(self, trace: OnTrace | None = None) -> None:
        self._trace = trace
        self.events: list[TraceEvent] = []
        self.probes: list[TraceEvent] = []
        self.changed = asyncio.Event()

    def __call__(self, event: TraceEvent) -> None:
        if len(self.events) < MAX_EVENTS:
            self.events.append(event)
        self.changed.set()
        self._hand_on(event)

    def record_probe(self, event: TraceEvent) -> None:
        """The `OnTrace` of the doctor's own requests."""
        self.probes.append(event)
        self._hand_on(event)

    def _hand_on(self, event: TraceEvent) -> None:
        if self._trace is not None:
            self._trace(event)

    def select(self, *moves: TraceKind) -> list[TraceEvent]:
        return [event for event in self.events if event.kind in moves]

    @property
    def last_probe_body(self) -> str:
        return next((one.body for one in reversed(self.probes) if one.kind is TraceKind.BODY), "")

    @property
    def responses(self) -> list[TraceEvent]:
        """The heads of the HTTP responses."""
        return self.select(TraceKind.RESPONSE)

    @property
    def opened(self) -> TraceEvent | None:
        """The start of the program."""
        return next(iter(self.select(TraceKind.OPENED)), None)

    @property
    def has_mcp_response(self) -> bool:
        """Whether an HTTP response came that can carry an MCP message."""
        return any(
            200 <= (one.status or 0) < 300 and media_type(one) in ("application/json", EVENT_STREAM)
            for one in self.responses
        )

    @property
    def rejected_by_mcp_server(self) -> bool:
        """Whether the last HTTP response is a 400 that carries a JSON-RPC message."""
        last = self.responses[-1] if self.responses else None
        return last is not None and last.status == 400 and '"jsonrpc"' in self.body_of(last)

    @property
    def timed_out(self) -> bool:
        """Whether the client gave up waiting for its last HTTP request."""
        last = self.select(
            TraceKind.REQUEST, TraceKind.RESPONSE, TraceKind.FAILED, TraceKind.ABANDONED
        )
        return bool(last) and last[-1].kind is TraceKind.ABANDONED

    @property
    def stray_output(self) -> str:
        """What the program printed to standard output that is not a message."""
        return "\n".join(one.body for one in self.select(TraceKind.STRAY_OUTPUT))

    def body_of(self, response: TraceEvent) -> str:
        bodies = self.select(TraceKind.BODY)
        return "\n".join(
            one.body for one in bodies if one.request_number == response.request_number
        )

    def results(self) -> Iterator[dict[str, Any]]:
        """Every JSON-RPC result that came."""
        for event in self.select(TraceKind.BODY, TraceKind.RECEIVED):
            for line in event.body.splitlines() or ("",):
                result = _result(line.removeprefix("data:"))
                if result is not None:
                    yield result


def media_type(response: TraceEvent) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _result(text: str) -> dict[str, Any] | None:
    try:
        message: Any = json.loads(text)
    except ValueError:
        return None
    if not isinstance(message, dict):
        return None
    result: Any = cast("dict[str, Any]", message).get("result")
    return cast("dict[str, Any]", result) if isinstance(result, dict) else None
