"""How each row of the recovery table (design, section 5) is made to happen over HTTP.

Data for `test_no_double_run.py`. A `Trouble` says what the server or the proxy does, whether the
tool runs in an attempt that meets it, and what the wire should make of it. It does not say what
happens next: that is for the rules.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkeep._rules.recovery import RetryPolicy
from toolkeep.errors import Delivery, Failure, FailureKind
from toolkeep.testing import Behaviour, FaultProxy

KEY = "the one call"

Kind = FailureKind
NOT_SENT, REFUSED = Delivery.NOT_SENT, Delivery.REFUSED
ANSWERED, UNKNOWN = Delivery.ANSWERED, Delivery.UNKNOWN


@dataclass(frozen=True)
class Safety:
    """One way in which a tool may, or may not, be repeated."""

    tool: str
    policy: RetryPolicy
    repeatable: bool
    """Its server marks it as read-only or idempotent."""
    may_run_twice: bool
    """The law, in words and not in code: marked and `safe`, or the operator said `always`."""


ALWAYS, NEVER = "operator_says_always", "operator_says_never"
SAFETIES = (
    Safety("record", RetryPolicy.SAFE, repeatable=False, may_run_twice=False),
    Safety("record_read_only", RetryPolicy.SAFE, repeatable=True, may_run_twice=True),
    Safety("record_idempotent", RetryPolicy.SAFE, repeatable=True, may_run_twice=True),
    Safety(ALWAYS, RetryPolicy.ALWAYS, repeatable=False, may_run_twice=True),
    Safety(NEVER, RetryPolicy.NEVER, repeatable=True, may_run_twice=False),
)
OWN_TOOLS = [
    {"name": ALWAYS, "inputSchema": {"type": "object"}},
    {"name": NEVER, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
]


@dataclass(frozen=True)
class Trouble:
    """How to make one row of the table happen to a call."""

    name: str
    kind: FailureKind
    delivery: Delivery
    do: Behaviour | None = None
    """What the server does to the call …"""
    fault: Callable[[FaultProxy], None] | None = None
    """… or what the proxy in front of it does to the connection."""
    runs: int | None = 0
    """How often the tool runs in an attempt that meets this; None: at most once, nobody knows."""
    modern: tuple[FailureKind, Delivery] | None = None
    """What it means in the modern era, where that differs."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def failure(self, era: str) -> Failure:
        legacy = (self.kind, self.delivery)
        kind, delivery = self.modern if self.modern and era == "modern" else legacy
        wait = (self.do.headers or {}).get("retry-after") if self.do else None
        return Failure(kind, delivery, self.name, retry_after=None if wait is None else float(wait))


def error(code: int, text: str = "no") -> dict[str, Any]:
    return {"code": code, "message": text}


def broken(name: str, runs: int | None, **how: Any) -> Trouble:
    return Trouble(name, Kind.BROKEN, UNKNOWN, Behaviour(**how), runs=runs)


def unreadable(name: str, **how: Any) -> Trouble:
    do = Behaviour(run=True, **how)
    return Trouble(name, Kind.UNREADABLE, UNKNOWN, do, runs=1)


def through_proxy(name: str, fault: Callable[[FaultProxy], None], runs: int | None) -> Trouble:
    return Trouble(name, Kind.BROKEN, UNKNOWN, fault=fault, runs=runs)


SILENCE: dict[str, Any] = {"timeouts": {"read": 0.5}}
FRESH_SOCKETS: dict[str, Any] = {"keep_alive": 1e-6}
OTHER_ANSWER = '{"jsonrpc":"2.0","id":987654,"result":{"content":[]}}'
TROUBLES = (
    Trouble(
        "connect refused",
        Kind.UNREACHABLE,
        NOT_SENT,
        fault=lambda proxy: proxy.refuse(),
        settings=FRESH_SOCKETS,
    ),
    Trouble(
        "404", Kind.SESSION_LOST, REFUSED, Behaviour(status=404), modern=(Kind.REFUSED, REFUSED)
    ),
    Trouble(
        "400 that names the session",
        Kind.SESSION_LOST,
        REFUSED,
        Behaviour(status=400, error=error(-32000, "no valid session"), error_id="null"),
        modern=(Kind.REJECTED, ANSWERED),
    ),
    Trouble("401", Kind.UNAUTHORIZED, REFUSED, Behaviour(status=401)),
    Trouble("403", Kind.UNAUTHORIZED, REFUSED, Behaviour(status=403)),
    Trouble("429", Kind.THROTTLED, REFUSED, Behaviour(status=429)),
    Trouble(
        "503 with Retry-After",
        Kind.THROTTLED,
        REFUSED,
        Behaviour(status=503, headers={"retry-after": "0"}),
    ),
    Trouble("400", Kind.REFUSED, REFUSED, Behaviour(status=400, body="bad")),
    Trouble("413", Kind.REFUSED, REFUSED, Behaviour(status=413)),
    unreadable("foreign redirect", status=307, redirect="http://elsewhere.invalid/mcp"),
    unreadable("202", status=202, body=""),
    unreadable("HTML", body="<html>", content_type="text/html"),
    unreadable("half a JSON", body='{"jsonrpc":', content_type="application/json"),
    unreadable("an event that is no JSON", body="data: {\n\n", content_type="text/event-stream"),
    unreadable("another's answer", body=OTHER_ANSWER, content_type="application/json"),
    unreadable("oversized", body_bytes=300_000),
    broken("closed before the body", 0, drop="before_body"),
    broken("closed after the body", 0, drop="after_body"),
    broken("reset after the body", 0, drop="after_body", reset=True),
    broken("closed after the run", 1, drop="after_run"),
    broken("reset after the run", 1, drop="after_run", reset=True),
    broken("cut in the answer", 1, drop="mid_answer"),
    broken("reset in the answer", 1, drop="mid_answer", reset=True),
    broken("cut after the head", 1, cut_after=0),
    broken("a stream without an answer", 1, encoding="sse", cut_stream_after_events=0),
    *(broken(f"{status}", 0, status=status) for status in (500, 502, 503, 504)),
    *(broken(f"{status} after the run", 1, status=status, run=True) for status in (500, 502, 504)),
    broken("500 for nobody in particular", 0, status=500, error=error(-32603), error_id="null"),
    Trouble("read", Kind.BROKEN, UNKNOWN, Behaviour(hang=True), runs=1, settings=SILENCE),
    through_proxy("reset on the way there", lambda proxy: proxy.break_one(KEY.encode()), 0),
    through_proxy("reset at the first byte back", lambda proxy: proxy.reset(), 1),
    through_proxy("reset in the head", lambda proxy: proxy.reset(after_bytes=40), 1),
    through_proxy("cut in the head", lambda proxy: proxy.cut(after_bytes=40), 1),
    through_proxy("cut in the request", lambda proxy: proxy.cut(after_bytes=60, direction="up"), 0),
    Trouble(
        "deaf",
        *(Kind.BROKEN, UNKNOWN),
        fault=lambda proxy: proxy.stall(),
        runs=None,
        settings=SILENCE,
    ),
    Trouble("an error", Kind.REJECTED, ANSWERED, Behaviour(error=error(-32000))),
    Trouble(
        "an error after the run",
        Kind.REJECTED,
        ANSWERED,
        Behaviour(error=error(-32000), run=True),
        runs=1,
    ),
    Trouble("404 with -32601", Kind.REJECTED, ANSWERED, Behaviour(status=404, error=error(-32601))),
    Trouble(
        "500 with an answer", Kind.REJECTED, ANSWERED, Behaviour(status=500, error=error(-32603))
    ),
    Trouble(
        "-32020",
        Kind.REJECTED,
        ANSWERED,
        Behaviour(status=400, error=error(-32020)),
        modern=(Kind.HEADER_MISMATCH, ANSWERED),
    ),
    Trouble(
        "-32022",
        Kind.REJECTED,
        ANSWERED,
        Behaviour(status=400, error=error(-32022)),
        modern=(Kind.VERSION_MISMATCH, ANSWERED),
    ),
    Trouble(
        "-32022 with versions",
        Kind.VERSION_MISMATCH,
        ANSWERED,
        Behaviour(status=400, error={**error(-32022), "data": {"supported": ["2026-07-28"]}}),
    ),
    Trouble(
        "an error that names a session",
        Kind.REJECTED,
        ANSWERED,
        Behaviour(status=400, error=error(-32000, "checkout session cs_12"), run=True),
        runs=1,
    ),
)
