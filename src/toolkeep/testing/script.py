"""The script of a `ScriptedServer`, and what a test reads back: plain data that survives JSON.

A `Rule` selects requests, a `Behaviour` says what happens to them. A `Recorded` is one request as
it arrived, a `Cancelled` one call that the client gave up, a `Launch` one start of a process.
`Settings` and `ProcessSettings` say how a server is built. Nothing here opens a socket or knows in
which process the server runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict

from toolkeep.testing.session_loss import PYTHON_SDK, SessionLoss

JsonObject = dict[str, Any]

MODERN = "2026-07-28"
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
Era = Literal["legacy", "modern", "both"]
Transport = Literal["streamable", "sse"]
Encoding = Literal["json", "sse"]
Drop = Literal["before_body", "after_body", "after_run", "mid_answer"]


def params_of(message: JsonObject | None) -> JsonObject:
    return (message or {}).get("params") or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What happens to a request that a rule matches. Every field is optional; without any, the
    server answers correctly.

    The order is: run the tool (if `run`), wait `delay`, then drop, hang, or answer.

    A stdio server honours `delay`, `body` (a line), `result`, `error`, `error_id`, `run`, `drop`,
    `exit_code`, `cut_after`, `body_bytes`, `hang` and `prefix_lines`. HTTP+SSE honours the same,
    and applies `status`, `redirect`, `headers` and `reset` to the POST: a status from 300 up with
    `run` makes the POST fail while the answer still arrives on the stream.
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
    """Whether the tool's body runs. Default: it runs, unless the behaviour has a status from 300
    up, an error, a redirect, or a drop before the run.
    """
    encoding: Encoding | None = None
    framing: Literal["length", "chunked", "close"] | None = None
    """How the end of a JSON body is marked: by its length, by chunks, or by closing the connection.
    """
    repeat_after: float | None = None
    """Send a JSON answer a second time on its connection, this many seconds after the first."""
    drop: Drop | None = None
    """When to close the socket. A `before_body` rule with a method or tool is decided before the
    body is read only if the request has the modern `Mcp-*` headers; without them the body is read
    first, and recorded as None.

    A stdio process exits with `exit_code`: on reading the request (`before_body` and `after_body`,
    nothing ran), after the run without an answer, or after half of the answer's line. Over HTTP+SSE
    the first three close the POST's socket, and no answer follows; `mid_answer` breaks the stream
    in the middle of the answer's event.
    """
    exit_code: int = 0
    """The exit code of a process that a `drop` ends (stdio)."""
    reset: bool = False
    """Close with RST instead of FIN, wherever this behaviour closes."""
    cut_after: int | None = None
    """Close after this many bytes of the answer's body."""
    body_bytes: int | None = None
    """Answer with a JSON text result of about this many bytes, streamed."""
    redirect: str | None = None
    """A Location; with `status`, or 307."""
    hang: bool = False
    """Never answer; keep the socket open until the client closes it. Over HTTP+SSE the POST is
    accepted, unless `run` is False: then the POST hangs. A GET that hangs never sends its
    `endpoint` event.
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
    is accepted; the answer on the stream does not wait for that.
    """
    crlf: bool = False
    event_ids: bool = False
    """Number the events and keep them, so that a GET with Last-Event-ID replays what follows."""
    prime: bool = False
    """Begin with an empty event that only carries the id (2025-11-25, SEP-1699)."""
    retry_ms: int | None = None
    cut_stream_after_events: int | None = None
    """End the SSE stream after this many events. The tool goes on; its answer can be fetched by
    resuming the stream.
    """

    @property
    def runs(self) -> bool:
        if self.run is not None:
            return self.run
        if (self.status or 200) >= 300 or self.error is not None or self.redirect is not None:
            return False
        return self.drop not in ("before_body", "after_body")


CORRECT = Behaviour()
"""The behaviour of a request that no rule matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Which requests a behaviour applies to. The first matching rule with uses left wins.

    `skip` lets that many matches pass first; `times=None` means always. A request that the protocol
    refuses anyway (a lost session) only matches rules whose behaviour does not run the tool. Every
    message on a pipe counts as a POST.
    """

    do: Behaviour = CORRECT
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
    """One request as the server received it. `socket` numbers the TCP connection it came on.

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
    """A call that the client gave up: it sent `notifications/cancelled`, or closed the stream while
    the call ran.
    """

    request_id: str | int | None
    tool: str | None
    how: Literal["notification", "disconnect"]


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a stdio server's process, with its working directory and environment."""

    pid: int
    cwd: str
    environment: dict[str, str]


# -- options ------------------------------------------------------------------------------------


class SharedOptions(TypedDict, total=False):
    """The options of every transport."""

    era: Era
    tools: Sequence[JsonObject]
    page_size: int | None
    protocol_version: str
    initialize_delay: float
    strict: bool
    record: bool
    journal: str | None
    call_behaviours: bool


class ServerOptions(SharedOptions, total=False):
    """The keyword arguments of `ScriptedServer.spawn` and `ScriptedServer.local`."""

    transport: Transport
    endpoint: str | None
    encoding: Encoding
    sessions: bool
    session_loss: SessionLoss
    get_stream: bool
    api_key: str | None
    port: int
    tls: tuple[str, str] | None
    keep_alive: float | None


class ProcessOptions(TypedDict, total=False):
    """How each process of a stdio server behaves, apart from the protocol."""

    stdout_noise: str | None
    stderr: str | None
    exit_at_start: int | None
    ignore: Sequence[str]
    exit_on: Sequence[str]
    ignore_stdin: bool
    children: int
    children_ignore_signals: bool
    ignore_stdin_end: bool
    ignore_sigterm: bool


class StdioOptions(SharedOptions, ProcessOptions, total=False):
    """The keyword arguments of `ScriptedServer.stdio`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a server is built. Sent as JSON to a server in a process of its own."""

    era: Era = "both"
    transport: Transport = "streamable"
    endpoint: str | None = None
    encoding: Encoding = "json"
    sessions: bool = True
    session_loss: SessionLoss = PYTHON_SDK
    tools: Sequence[JsonObject] = ()
    page_size: int | None = None
    protocol_version: str = LEGACY[-1]
    get_stream: bool = True
    api_key: str | None = None
    port: int = 0
    tls: tuple[str, str] | None = None
    initialize_delay: float = 0.0
    keep_alive: float | None = None
    strict: bool = True
    record: bool = True
    """Whether requests are kept for `requests`. Switch it off in a long soak: they fill memory."""
    journal: str | None = None
    """A file to which every run of a tool is written before it begins, in place of the ledger. It
    survives a killed process and costs no memory.
    """
    call_behaviours: bool = False
    """Whether the argument `behaviour` of a call is applied to it, as a rule would be."""

    def __post_init__(self) -> None:
        if self.protocol_version not in LEGACY:
            raise ValueError(f"protocol_version must be one of {', '.join(LEGACY)}")

    def to_json(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: JsonObject) -> Settings:
        known: dict[str, Any] = {**raw, "session_loss": SessionLoss(**raw["session_loss"])}
        return cls(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """How each process of a stdio server behaves. Sent as JSON to each process."""

    stdout_noise: str | None = None
    """Printed before anything else."""
    stderr: str | None = None
    exit_at_start: int | None = None
    """Exit with this code before anything is read."""
    ignore: Sequence[str] = ()
    """Methods that are recorded and never answered."""
    exit_on: Sequence[str] = ()
    """Methods on which the process exits with code 1, as rmcp's servers do when the first message
    is not `initialize`.
    """
    ignore_stdin: bool = False
    """Never read stdin, so that its end goes unnoticed as well."""
    children: int = 0
    """Child processes that live until they are killed or the test's block ends. They inherit the
    pipes. Every third one is plain, the next has a session of its own, the next is an orphan too.
    """
    children_ignore_signals: bool = False
    """The children ignore SIGTERM and SIGHUP."""
    ignore_stdin_end: bool = False
    ignore_sigterm: bool = False

    def to_json(self) -> JsonObject:
        return asdict(self)


# -- matching -----------------------------------------------------------------------------------

RequestName = tuple[str | None, str | None]
"""The JSON-RPC method of a request and the tool it calls."""


class _ActiveRule:
    """A rule with its counters."""

    __slots__ = ("rule", "seen", "used")

    def __init__(self, rule: Rule) -> None:
        self.rule, self.seen, self.used = rule, 0, 0

    def take(self) -> bool:
        if self.rule.times is not None and self.used >= self.rule.times:
            return False
        self.seen += 1
        if self.seen <= self.rule.skip:
            return False
        self.used += 1
        return True


class RuleSet:
    """The rules of one server, in order."""

    def __init__(self) -> None:
        self._rules: list[_ActiveRule] = []

    def add(self, rules: Iterable[Rule]) -> None:
        self._rules += map(_ActiveRule, rules)

    def clear(self) -> None:
        self._rules.clear()

    def pick_before_body(self, http: str, announced: RequestName) -> Behaviour | None:
        """A `before_body` drop that the headers alone decide."""
        for active in self._rules:
            rule = active.rule
            if rule.do.drop == "before_body" and rule.matches(http, *announced) and active.take():
                return rule.do
        return None

    def pick(
        self,
        http: str,
        method: str | None,
        tool: str | None,
        *,
        refused: bool,
        announced: RequestName | None = None,
    ) -> Behaviour | None:
        """The behaviour of the first rule for this request. `announced` is what `pick_before_body`
        was given for it: rules that were considered there are skipped here.
        """
        for active in self._rules:
            rule = active.rule
            if refused and rule.do.runs:
                continue
            if announced and rule.do.drop == "before_body" and rule.matches(http, *announced):
                continue
            if rule.matches(http, method, tool) and active.take():
                return rule.do
        return None
