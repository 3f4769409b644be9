"""Classify a request without a result: from transport evidence to a `Failure`.

HTTP facts count first, then JSON-RPC codes, then text. Text is read in two tables only, because
servers disagree on how to say that a session is gone:

- `SESSION_LOST_RULES` are recorded responses of known servers, matched as a whole, and the rules
  that a user adds. They prove that the session is gone and that the request did not run.
- `SESSION_LOST_HINTS` are statuses and words. They prove the same only if no JSON-RPC error
  carries our id. An error with our id answers the call, whatever its words: then only the session
  is uncertain.

`probe_verdict` tells the protocol era of a server after a failed `server/discover`. Only a
response can decide it: a 401, 429, 5xx or network fault is an outage and never downgrades a
server. `tests/unit/rules/session_answers.json` records one response for each rule and hint.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from toolkeep.errors import ConfigError, Delivery, Failure, FailureKind

HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022
METHOD_NOT_FOUND = -32601
CONNECTION_CLOSED = -32000

_MISMATCH_KINDS = {
    HEADER_MISMATCH: FailureKind.HEADER_MISMATCH,
    UNSUPPORTED_VERSION: FailureKind.VERSION_MISMATCH,
}
_OUTAGES = (
    FailureKind.UNREACHABLE,
    FailureKind.UNAUTHORIZED,
    FailureKind.THROTTLED,
    FailureKind.BROKEN,
)
_VERSION_PATTERN = re.compile(r"\d{4}-\d{2}-\d{2}")

_REFUSED_BEFORE_RUNNING = frozenset(
    {400, 402, *range(404, 408), *range(410, 419), 421, 422, 425, 426, 428, 431, 451}
)
"""Statuses sent before a request is processed (RFC 9110, 6585, 7725, 8470). Other 4xx prove
nothing: 408 and 499 mean that it took too long, 409 and 424 that it may be done in part."""


class Era(enum.Enum):
    """Generation of the protocol."""

    LEGACY = "legacy"
    """2024-11-05 to 2025-11-25: handshake and, over HTTP, sessions."""
    MODERN = "modern"
    """2026-07-28: no handshake, no sessions."""


class ProbeVerdict(enum.Enum):
    """What a failed probe says about the server."""

    LEGACY = "legacy"
    OUTAGE = "outage"
    """Undecided: the probe's failure fails the opening."""
    OTHER_VERSION = "other version"
    """Modern, with a version that we support too: probe again with that version."""
    UNSUPPORTED = "unsupported"
    """Modern, with versions that we do not support."""


def probe_verdict(
    failure: Failure, *, modern: Collection[str], legacy: Collection[str]
) -> ProbeVerdict:
    """Decide by a failed probe. `modern` and `legacy` are the versions that we support."""
    if failure.kind in _OUTAGES:
        return ProbeVerdict.OUTAGE
    if failure.kind is not FailureKind.VERSION_MISMATCH:
        return ProbeVerdict.LEGACY
    supported = supported_versions(failure.data)
    if any(version in modern for version in supported):
        return ProbeVerdict.OTHER_VERSION
    if not supported or any(version in legacy for version in supported):
        return ProbeVerdict.LEGACY
    return ProbeVerdict.UNSUPPORTED


def supported_versions(data: object) -> tuple[str, ...]:
    """The versions in the data of a -32022. Malformed data gives an empty tuple."""
    if not isinstance(data, Mapping):
        return ()
    named = cast("Mapping[str, Any]", data).get("supported")
    if not isinstance(named, list):
        return ()
    return tuple(version for version in cast("list[Any]", named) if isinstance(version, str))


def probe_timeout(connect_budget: float) -> float:
    """Seconds for a probe: a server that ignores it must leave time for the handshake."""
    return min(3.0, connect_budget / 3)


def handshake_survives(method: str, status: int | None) -> bool:
    """Whether the handshake goes on after a notification got this status.

    `notifications/initialized` needs no response. A server that fails on it with a 5xx has already
    agreed to a version, and the next request shows whether the session works. A 4xx is a refusal.
    """
    return method == "notifications/initialized" and status is not None and status >= 500


class FaultKind(enum.Enum):
    """What the transport observed."""

    CONNECT = "connect"
    """No connection: name lookup, refusal, TLS, proxy, or no free connection in time."""
    STATUS = "status"
    """An HTTP status other than 2xx, with its whole body."""
    ERROR = "error"
    """A JSON-RPC error in a 2xx response."""
    UNREADABLE = "unreadable"
    """A 2xx response that is not valid JSON-RPC, a redirect that is not followed, or another status
    with a body that is too large or not valid JSON."""
    BROKEN = "broken"
    """The connection broke or stalled before the response was complete."""
    EXITED = "exited"
    """The server's process ended before it was ready."""


@dataclass(frozen=True, slots=True)
class RpcError:
    """The JSON-RPC error found in a response."""

    code: int
    message: str
    data: Any = None
    answers_request: bool = True
    """Whether it carries the id of our request (servers also send null, or another id)."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the transport knows about a request that got no result."""

    kind: FaultKind
    sent: bool
    """Whether a byte of the request may have left this machine."""
    detail: str
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Retry-After and WWW-Authenticate, lower-case names."""
    error: RpcError | None = None
    text: str = ""
    """The beginning of a body that was not JSON-RPC."""
    carried_session: bool = False
    exit_code: int | None = None
    stderr: str = ""
    """The last lines that the process wrote to stderr."""
    standard_codes: bool = False
    """Whether -32020 and -32022 have the meaning of 2026-07-28: the request was modern, or a
    handshake. A legacy server may use these codes for errors of its own."""

    @property
    def retry_after(self) -> float | None:
        return parse_retry_after(self.headers.get("retry-after"))


@dataclass(frozen=True, slots=True)
class SessionLostRule:
    """One way in which a server says that a session is gone.

    A rule matches the response to a request that carried a session id. `None` matches anything.
    Users may add rules for servers that toolkeep does not know.
    """

    source: str
    status: int | None = None
    code: int | None = None
    pattern: str | None = None
    """A case-insensitive regular expression, searched in the error's message or the body."""

    def __post_init__(self) -> None:
        remedy = "Give a status, a code or a regular expression"
        if self.status is None and self.code is None and self.pattern is None:
            raise ConfigError(f"the rule {self.source!r} has no condition", remedy=remedy)
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            text = f"the pattern of {self.source!r} is not a regular expression: {error}"
            raise ConfigError(text, key="session_lost_rules", remedy=remedy) from None


SESSION_LOST_RULES: tuple[SessionLostRule, ...] = (
    SessionLostRule(
        "Python SDK 2.x, unknown session", status=404, code=-32600, pattern=r"\ASession not found\Z"
    ),
    SessionLostRule(
        "TypeScript and C# SDK, unknown session",
        status=404,
        code=-32001,
        pattern=r"\ASession not found\Z",
    ),
    SessionLostRule(
        "C# SDK, an older version, unknown session",
        status=404,
        code=32001,
        pattern=r"\ASession not found\Z",
    ),
    SessionLostRule(
        "TypeScript SDK, Express examples",
        status=400,
        code=-32000,
        pattern=r"\ABad Request: No valid session ID provided\Z",
    ),
    SessionLostRule(
        "TypeScript SDK, fresh transport",
        status=400,
        code=-32000,
        pattern=r"\ABad Request: Server not initialized\Z",
    ),
    SessionLostRule(
        "Python SDK 1.x, session missing",
        status=400,
        code=-32600,
        pattern=r"\ABad Request: Missing session ID\Z",
    ),
    SessionLostRule(
        "Python SDK 1.x client behind a gateway", code=32600, pattern=r"\ASession terminated\Z"
    ),
    SessionLostRule(
        "Python SDK 2.x client behind a gateway", code=-32600, pattern=r"\ASession terminated\Z"
    ),
    SessionLostRule(
        "gateways that answer HTTP 200", status=200, code=-32000, pattern=r"\ASession not found\Z"
    ),
    SessionLostRule(
        "Rust SDK (rmcp) before 0.9",
        status=401,
        pattern=r"\AUnauthorized: Session not found\s*\Z",
    ),
)
"""Recorded responses of known servers. Each pattern matches the whole text."""

_UNKNOWN_WORDS = (
    "no|not|invalid|unknown|unrecogni[sz]ed|mismatch|missing|required|bad|stale|expired|ended"
    "|closed|deleted|terminated|lost|gone"
)
_UNKNOWN_SESSION_PATTERN = (
    rf"\b({_UNKNOWN_WORDS})\b(\W+\w+){{0,2}}\W+session\b"
    rf"|\bsession\b(\W+\w+){{0,4}}?\W+({_UNKNOWN_WORDS})\b"
    r"|\bnot initiali[sz]ed\b"
)
_SESSION_REFUSALS: tuple[SessionLostRule, ...] = (
    SessionLostRule("Specification 2025-03-26 and later: any 404", status=404),
    SessionLostRule(
        "a 400 that says that the session is unknown, or the handshake missing",
        status=400,
        pattern=_UNKNOWN_SESSION_PATTERN,
    ),
)
"""Proof if no error carries our id: servers refuse so before they choose a tool."""

SESSION_LOST_HINTS: tuple[SessionLostRule, ...] = (
    *_SESSION_REFUSALS,
    SessionLostRule("another 400 that names a session", status=400, pattern=r"\bsession\b"),
    SessionLostRule(
        "code 32600 in an error that names a session", code=32600, pattern=r"\bsession\b"
    ),
)
"""Statuses and words that may mean a lost session. If a JSON-RPC error carries our id, they prove
nothing about the call, and the session is checked."""

_MAX_TEXT_SEARCHED = 4000
"""Characters of a message that are searched; the recorded responses are far shorter."""


def classify(
    evidence: Evidence, *, rules: Sequence[SessionLostRule] = SESSION_LOST_RULES
) -> Failure:
    """Classify by the first classifier that applies; without one, the connection broke."""
    for classifier in _CLASSIFIERS:
        if (failure := classifier(evidence, rules)) is not None:
            return failure
    return _failure(evidence, FailureKind.BROKEN, Delivery.UNKNOWN, "anything else: broken")


def _exited(evidence: Evidence, rules: Sequence[SessionLostRule]) -> Failure | None:
    if evidence.kind is not FaultKind.EXITED or evidence.sent:
        return None
    return _failure(evidence, FailureKind.EXITED, Delivery.NOT_SENT, "ended before it was ready")


def _not_sent(evidence: Evidence, rules: Sequence[SessionLostRule]) -> Failure | None:
    if evidence.sent:
        return None
    return _failure(evidence, FailureKind.UNREACHABLE, Delivery.NOT_SENT, "nothing written")


def _session(evidence: Evidence, rules: Sequence[SessionLostRule]) -> Failure | None:
    if not evidence.carried_session or _is_cut(evidence) or _is_missing_method(evidence):
        return None
    if "www-authenticate" in evidence.headers:
        return None  # a challenge is about credentials, whatever its body says
    if (rule := _first_match(rules, evidence)) is not None:
        return _failure(evidence, FailureKind.SESSION_LOST, Delivery.REFUSED, rule.source)
    if (hint := _first_match(SESSION_LOST_HINTS, evidence)) is None:
        return None
    answered = evidence.error is not None and evidence.error.answers_request
    if not answered and hint in _SESSION_REFUSALS:
        return _failure(evidence, FailureKind.SESSION_LOST, Delivery.REFUSED, hint.source)
    if evidence.error is None:
        return None
    return _failure(evidence, FailureKind.SESSION_UNCERTAIN, Delivery.ANSWERED, hint.source)


def _first_match(rules: Sequence[SessionLostRule], evidence: Evidence) -> SessionLostRule | None:
    return next((rule for rule in rules if _matches(rule, evidence)), None)


def _matches(rule: SessionLostRule, evidence: Evidence) -> bool:
    if rule.status is not None and rule.status != evidence.status:
        return False
    if rule.code is not None and (evidence.error is None or evidence.error.code != rule.code):
        return False
    if rule.pattern is None:
        return True
    text = evidence.error.message if evidence.error else evidence.text
    return re.search(rule.pattern, text[:_MAX_TEXT_SEARCHED], re.IGNORECASE) is not None


def _is_cut(evidence: Evidence) -> bool:
    """Whether a part of the response is unknown. It may say that the tool ran, whatever the
    status."""
    return evidence.kind in (FaultKind.BROKEN, FaultKind.UNREADABLE)


def _is_missing_method(evidence: Evidence) -> bool:
    """Whether the server says -32601 to this request; modern servers send it with a 404."""
    error = evidence.error
    return error is not None and error.code == METHOD_NOT_FOUND and error.answers_request


def _unauthorized(evidence: Evidence, rules: Sequence[SessionLostRule]) -> Failure | None:
    if evidence.status not in (401, 403):
        return None
    return _failure(evidence, FailureKind.UNAUTHORIZED, Delivery.REFUSED, "401 or 403")


def _throttled(evidence: Evidence, rules: Sequence[SessionLostRule]) -> Failure | None:
    asked_to_wait = evidence.status == 503 and evidence.retry_after is not None
    if evidence.status != 429 and not asked_to_wait:
        return None
    rule = "429, or 503 with Retry-After"
    return _failure(evidence, FailureKind.THROTTLED, Delivery.REFUSED, rule)


def _cancelled_at_shutdown(evidence: Evidence, rules: Sequence[SessionLostRule]) -> Failure | None:
    """The Python SDK (2.3) sends this error for tools that it cancels when it shuts down."""
    error = evidence.error
    if error is None or (error.code, error.message) != (CONNECTION_CLOSED, "Connection closed"):
        return None
    return _failure(
        evidence, FailureKind.BROKEN, Delivery.UNKNOWN, "Python SDK: cancelled at shutdown"
    )


def _rejected(evidence: Evidence, rules: Sequence[SessionLostRule]) -> Failure | None:
    error = evidence.error
    if error is None:
        return None
    if (evidence.status or 200) >= 500 and not error.answers_request:
        return None  # the general error of a crashed server, not a response to this request
    kind = _MISMATCH_KINDS.get(error.code, FailureKind.REJECTED)
    if kind is not FailureKind.REJECTED and not _has_standard_meaning(evidence):
        kind = FailureKind.REJECTED
    return _failure(evidence, kind, Delivery.ANSWERED, "a JSON-RPC error")


def _has_standard_meaning(evidence: Evidence) -> bool:
    """Whether -32020 or -32022 is the code of 2026-07-28, which is sent before anything runs.

    A legacy server may use both codes for errors of its own. An upgraded server responds with
    HTTP 400, -32022 and the versions it supports, as 2026-07-28 requires.
    """
    if evidence.standard_codes:
        return True
    error = evidence.error
    if error is None or error.code != UNSUPPORTED_VERSION or evidence.status != 400:
        return False
    return any(map(_VERSION_PATTERN.fullmatch, supported_versions(error.data)))


def _refused(evidence: Evidence, rules: Sequence[SessionLostRule]) -> Failure | None:
    if evidence.status not in _REFUSED_BEFORE_RUNNING or _is_cut(evidence):
        return None
    return _failure(evidence, FailureKind.REFUSED, Delivery.REFUSED, "a 4xx sent before processing")


def _unreadable(evidence: Evidence, rules: Sequence[SessionLostRule]) -> Failure | None:
    if evidence.kind is not FaultKind.UNREADABLE:
        return None
    return _failure(evidence, FailureKind.UNREADABLE, Delivery.UNKNOWN, "not a valid response")


_CLASSIFIERS: tuple[Callable[[Evidence, Sequence[SessionLostRule]], Failure | None], ...] = (
    _exited,
    _not_sent,
    _session,
    _unauthorized,
    _throttled,
    _cancelled_at_shutdown,
    _rejected,
    _refused,
    _unreadable,
)


def _failure(evidence: Evidence, kind: FailureKind, delivery: Delivery, rule: str) -> Failure:
    error = evidence.error
    return Failure(
        kind=kind,
        delivery=delivery,
        message=error.message if error else evidence.detail,
        status=evidence.status,
        code=error.code if error else None,
        data=error.data if error else None,
        retry_after=evidence.retry_after,
        headers=evidence.headers,
        exit_code=evidence.exit_code,
        stderr=evidence.stderr,
        rule=rule,
    )


def parse_retry_after(value: str | None) -> float | None:
    """Seconds from a Retry-After header. The HTTP-date form needs a clock, so the transport
    converts it to seconds first."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
