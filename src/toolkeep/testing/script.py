"""What a test says to the server, and what it reads back: plain frozen data that survives JSON.

A `Rule` says which requests are meant, a `Behaviour` what happens to them, a `Recorded` what
arrived and a `Cancelled` which calls the client gave up. Nothing here opens a socket or knows which
process the server lives in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

JsonObject = dict[str, Any]


def params_of(message: JsonObject | None) -> JsonObject:
    return (message or {}).get("params") or {}


Encoding = Literal["json", "sse"]
Drop = Literal["before_body", "after_body", "after_run", "mid_answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What happens to a request that a rule matches. Every field is optional; an empty one is a
    correct answer.

    The order is: run the tool (if `run`), wait `delay`, then drop, hang, or answer. On a pipe
    `delay`, `body` (a line), `result`, `error`, `error_id`, `run`, `drop`, `exit_code`,
    `cut_after`, `body_bytes`, `hang` and `prefix_lines` have a meaning; so they have over HTTP+SSE,
    where `status`, `redirect`, `headers` and `reset` are about the POST (a status from 300 up with
    `run` is a POST that failed although the answer comes).
    """

    delay: float = 0.0
    """Seconds between the run of the tool and its answer."""
    status: int | None = None
    headers: Mapping[str, str] | None = None
    body: str | None = None
    """Sent verbatim instead of the answer."""
    content_type: str | None = None
    result: Mapping[str, Any] | None = None
    """A JSON-RPC result sent verbatim in place of the true one."""
    error: Mapping[str, Any] | None = None
    """A JSON-RPC error (`code`, `message`, `data`) in place of the result."""
    error_id: Literal["request", "null", "other"] = "request"
    run: bool | None = None
    """Whether the tool's body runs. Default: not with a status from 300 up, an error, or a drop
    before the run.
    """
    encoding: Encoding | None = None
    framing: Literal["length", "chunked", "close"] | None = None
    """How the end of a JSON body is told: by its length, by chunks, or by closing the connection.
    """
    repeat_after: float | None = None
    """Send a JSON answer once more on its connection, so many seconds after the first."""
    drop: Drop | None = None
    """Where to close the socket. `before_body` with a method or tool in its rule needs the modern
    `Mcp-*` headers to be decided before the body is read; without them the body is read first, and
    recorded as None.

    On a pipe the process exits with `exit_code`: on reading the request (`before_body` and
    `after_body`, nothing ran), after the run without an answer, or after half of the answer's line.
    Over HTTP+SSE the first three close the POST's socket, and no answer follows; `mid_answer`
    breaks the stream in the middle of the answer's event.
    """
    exit_code: int = 0
    """What a process exits with that is to `drop` (stdio)."""
    reset: bool = False
    """Close with RST instead of FIN, wherever this behaviour closes."""
    cut_after: int | None = None
    """Close after this many bytes of the answer's body."""
    body_bytes: int | None = None
    """Answer with a JSON text result of about this many bytes, streamed."""
    redirect: str | None = None
    """A Location; with `status`, or 307."""
    hang: bool = False
    """Never answer, keep the socket open until the client leaves. Over HTTP+SSE the POST is
    accepted, unless `run` is False: then it hangs itself. A GET that hangs never names its
    endpoint.
    """
    endless: bool = False
    """An SSE stream of comments and notifications that never brings the answer."""
    endless_gap: float = 0.05
    sse_prefix: str | None = None
    """Sent verbatim before the answer's event."""
    prefix_lines: str | None = None
    """Printed verbatim before the answer's line: noise on a pipe. A lone surrogate (U+DC80 to
    U+DCFF) is printed as the byte it stands for.
    """
    sse_linger: float = 0.0
    """Seconds that an SSE stream stays open after the answer. Over HTTP+SSE: seconds until the POST
    is accepted, which the answer on the stream does not wait for.
    """
    crlf: bool = False
    event_ids: bool = False
    """Number the events and keep them, so that a GET with Last-Event-ID replays what follows."""
    prime: bool = False
    """Begin with an empty event that only carries the id (2025-11-25, SEP-1699)."""
    retry_ms: int | None = None
    cut_stream_after_events: int | None = None
    """End the SSE stream after this many events; the tool goes on, its answer waits for resumption.
    """

    @property
    def runs(self) -> bool:
        if self.run is not None:
            return self.run
        if (self.status or 200) >= 300 or self.error is not None or self.redirect is not None:
            return False
        return self.drop not in ("before_body", "after_body")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Which requests a behaviour is for. The first matching rule with uses left wins.

    `skip` lets that many matches pass first; `times=None` means always. A request that the protocol
    refuses anyway (a lost session) only meets rules whose behaviour does not run the tool. Messages
    on a pipe count as POSTs.
    """

    do: Behaviour = Behaviour()
    method: str | None = None
    tool: str | None = None
    http: str = "POST"
    times: int | None = None
    skip: int = 0

    def matches(self, http: str, method: str | None, tool: str | None) -> bool:
        return (
            self.http == http
            and (self.method is None or self.method == method)
            and (self.tool is None or self.tool == tool)
        )

    def to_json(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: JsonObject) -> Rule:
        fields: dict[str, Any] = {**raw, "do": Behaviour(**raw["do"])}
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as the server saw it. `socket` is the same for all requests of one TCP
    connection.

    A line on a pipe counts as a POST without headers; its `socket` numbers the process, and its
    `session_id` is the process id.
    """

    seq: int
    http_method: str
    rpc_method: str | None
    tool: str | None
    headers: dict[str, str]
    body: Any
    socket: int
    session_id: str | None
    at: float


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A call the client gave up: it sent `notifications/cancelled`, or closed the stream while the
    call ran.
    """

    request_id: str | int | None
    tool: str | None
    how: Literal["notification", "disconnect"]


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a stdio server's process, with what it found around it."""

    pid: int
    cwd: str
    environment: dict[str, str]
