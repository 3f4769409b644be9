"""From wire evidence to a `Failure`: what did this answer, or this silence, mean?

HTTP facts count first, then JSON-RPC codes, then text. Text is read in one place only, the two
tables of answers about the session, because servers disagree on how to say that it is gone. Two
strengths of evidence:

- `SESSION_ROWS` are the recorded answers of known servers, matched as a whole, and the rows that a
  user adds. They prove that the session is gone and that the request did not run.
- `SESSION_HINTS` are statuses and words. They prove the same only where no JSON-RPC error answers
  our id. An error with our id is an answer to the call whatever words are in it ("card declined
  after checkout session cs_12 was charged"): the session is then in doubt, the call is not.

`tests/unit/rules/session_answers.json` records one answer for each row and each hint.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolkeep._rules.era import supported_versions
from toolkeep.errors import ConfigError, Delivery, Failure, FailureKind

HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022
METHOD_NOT_FOUND = -32601
CONNECTION_CLOSED = -32000
_MISMATCHES = {
    HEADER_MISMATCH: FailureKind.HEADER_MISMATCH,
    UNSUPPORTED_VERSION: FailureKind.VERSION_MISMATCH,
}


class Trouble(enum.Enum):
    """What the wire saw."""

    CONNECT = "connect"
    """No connection: name lookup, refusal, TLS, proxy, or no free place in time."""
    STATUS = "status"
    """An HTTP status other than 2xx."""
    ERROR = "error"
    """A JSON-RPC error in a 2xx answer."""
    UNREADABLE = "unreadable"
    """A 2xx answer that is not an answer, or a redirect that is not followed."""
    BROKEN = "broken"
    """The connection broke, or fell silent, before the answer was whole."""
    EXITED = "exited"
    """The server's process ended before it was ready."""


@dataclass(frozen=True, slots=True)
class RpcError:
    """The JSON-RPC error found in an answer."""

    code: int
    message: str
    data: Any = None
    answers_request: bool = True
    """Whether its id is the id of our request (servers also send null, or an id of their own)."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the wire knows about a request that brought no result."""

    trouble: Trouble
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
    """How a process ended, and its last words."""
    fixed_codes: bool = False
    """Whether -32020 and -32022 can only mean what 2026-07-28 says: the request was modern, or a
    handshake. A legacy server may have given them a meaning of its own."""

    @property
    def retry_after(self) -> float | None:
        return parse_retry_after(self.headers.get("retry-after"))


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One way in which a server says that a session is gone.

    A row matches an answer to a request that carried a session id. `None` matches anything.
    Users may add rows for servers that have a way of their own.
    """

    source: str
    status: int | None = None
    code: int | None = None
    pattern: str | None = None
    """A case-insensitive regular expression, searched in the error's message or the body."""

    def __post_init__(self) -> None:
        remedy = "Give a status, a code or a regular expression"
        if self.status is None and self.code is None and self.pattern is None:
            raise ConfigError(f"the row {self.source!r} matches nothing", remedy=remedy)
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            text = f"the pattern of {self.source!r} is no regular expression: {error}"
            raise ConfigError(text, key="session_rows", remedy=remedy) from None


SESSION_ROWS: tuple[SessionRow, ...] = (
    SessionRow(
        "Python SDK 2.x, unknown session", status=404, code=-32600, pattern=r"\ASession not found\Z"
    ),
    SessionRow(
        "TypeScript and C# SDK, unknown session",
        status=404,
        code=-32001,
        pattern=r"\ASession not found\Z",
    ),
    SessionRow(
        "C# SDK, an older version, unknown session",
        status=404,
        code=32001,
        pattern=r"\ASession not found\Z",
    ),
    SessionRow(
        "TypeScript SDK, Express examples",
        status=400,
        code=-32000,
        pattern=r"\ABad Request: No valid session ID provided\Z",
    ),
    SessionRow(
        "TypeScript SDK, fresh transport",
        status=400,
        code=-32000,
        pattern=r"\ABad Request: Server not initialized\Z",
    ),
    SessionRow(
        "Python SDK 1.x, session missing",
        status=400,
        code=-32600,
        pattern=r"\ABad Request: Missing session ID\Z",
    ),
    SessionRow(
        "Python SDK 1.x client behind a gateway", code=32600, pattern=r"\ASession terminated\Z"
    ),
    SessionRow(
        "Python SDK 2.x client behind a gateway", code=-32600, pattern=r"\ASession terminated\Z"
    ),
    SessionRow(
        "gateways that answer HTTP 200", status=200, code=-32000, pattern=r"\ASession not found\Z"
    ),
    SessionRow(
        "Rust SDK (rmcp) before 0.9",
        status=401,
        pattern=r"\AUnauthorized: Session not found\s*\Z",
    ),
)
"""Recorded answers of known servers. Each matches the whole text of its answer."""

_UNKNOWN = (
    "no|not|invalid|unknown|unrecogni[sz]ed|mismatch|missing|required|bad|stale|expired|ended"
    "|closed|deleted|terminated|lost|gone"
)
_SAYS_UNKNOWN = (
    rf"\b({_UNKNOWN})\b(\W+\w+){{0,2}}\W+session\b"
    rf"|\bsession\b(\W+\w+){{0,4}}?\W+({_UNKNOWN})\b"
    r"|\bnot initiali[sz]ed\b"
)
_REFUSALS: tuple[SessionRow, ...] = (
    SessionRow("Specification 2025-03-26 and later: any 404", status=404),
    SessionRow(
        "a 400 that says that the session is unknown, or the handshake missing",
        status=400,
        pattern=_SAYS_UNKNOWN,
    ),
)
"""Proof where nothing answers our id: such a refusal comes before a tool is chosen."""
SESSION_HINTS: tuple[SessionRow, ...] = (
    *_REFUSALS,
    SessionRow("another 400 that names a session", status=400, pattern=r"\bsession\b"),
    SessionRow("code 32600 in an error that names a session", code=32600, pattern=r"\bsession\b"),
)
"""Statuses and words that may mean a lost session. Where a JSON-RPC error answers, they prove
nothing about the call: the session is checked."""
_TEXT_READ = 4000
"""Characters of a message that are searched; the recorded answers are far shorter."""


def classify(evidence: Evidence, *, rows: Sequence[SessionRow] = SESSION_ROWS) -> Failure:
    """The first rule that recognises the evidence; the last recognises everything."""
    for recognise in _RULES:
        if (failure := recognise(evidence, rows)) is not None:
            return failure
    return _failure(evidence, FailureKind.BROKEN, Delivery.UNKNOWN, "anything else: broken")


def _exited(evidence: Evidence, rows: Sequence[SessionRow]) -> Failure | None:
    if evidence.trouble is not Trouble.EXITED or evidence.sent:
        return None
    return _failure(evidence, FailureKind.EXITED, Delivery.NOT_SENT, "ended before it was ready")


def _not_sent(evidence: Evidence, rows: Sequence[SessionRow]) -> Failure | None:
    if evidence.sent:
        return None
    return _failure(evidence, FailureKind.UNREACHABLE, Delivery.NOT_SENT, "nothing written")


def _session(evidence: Evidence, rows: Sequence[SessionRow]) -> Failure | None:
    if not evidence.carried_session or _is_missing_method(evidence):
        return None
    if "www-authenticate" in evidence.headers:
        return None  # a challenge is about credentials, whatever its body says
    if (row := _first(rows, evidence)) is not None:
        return _failure(evidence, FailureKind.SESSION_LOST, Delivery.REFUSED, row.source)
    if (hint := _first(SESSION_HINTS, evidence)) is None:
        return None
    answered = evidence.error is not None and evidence.error.answers_request
    if not answered and hint in _REFUSALS:
        return _failure(evidence, FailureKind.SESSION_LOST, Delivery.REFUSED, hint.source)
    if evidence.error is None:
        return None
    return _failure(evidence, FailureKind.SESSION_DOUBTED, Delivery.ANSWERED, hint.source)


def _first(rows: Sequence[SessionRow], evidence: Evidence) -> SessionRow | None:
    return next((row for row in rows if _matches(row, evidence)), None)


def _matches(row: SessionRow, evidence: Evidence) -> bool:
    if row.status is not None and row.status != evidence.status:
        return False
    if row.code is not None and (evidence.error is None or evidence.error.code != row.code):
        return False
    if row.pattern is None:
        return True
    said = evidence.error.message if evidence.error else evidence.text
    return re.search(row.pattern, said[:_TEXT_READ], re.IGNORECASE) is not None


def _is_missing_method(evidence: Evidence) -> bool:
    """A 404 may also be the modern way to say -32601 to this very request."""
    error = evidence.error
    return error is not None and error.code == METHOD_NOT_FOUND and error.answers_request


def _unauthorized(evidence: Evidence, rows: Sequence[SessionRow]) -> Failure | None:
    if evidence.status not in (401, 403):
        return None
    return _failure(evidence, FailureKind.UNAUTHORIZED, Delivery.REFUSED, "401 or 403")


def _throttled(evidence: Evidence, rows: Sequence[SessionRow]) -> Failure | None:
    asked_to_wait = evidence.status == 503 and evidence.retry_after is not None
    if evidence.status != 429 and not asked_to_wait:
        return None
    row = "429, or 503 with Retry-After"
    return _failure(evidence, FailureKind.THROTTLED, Delivery.REFUSED, row)


def _cut_off(evidence: Evidence, rows: Sequence[SessionRow]) -> Failure | None:
    """The Python SDK (2.3) answers so for the tools that it cancels when it shuts down."""
    error = evidence.error
    if error is None or (error.code, error.message) != (CONNECTION_CLOSED, "Connection closed"):
        return None
    return _failure(evidence, FailureKind.BROKEN, Delivery.UNKNOWN, "Python SDK: cut off")


def _rejected(evidence: Evidence, rows: Sequence[SessionRow]) -> Failure | None:
    error = evidence.error
    if error is None:
        return None
    if (evidence.status or 200) >= 500 and not error.answers_request:
        return None  # a crashed server's general apology, not an answer to this request
    kind = _MISMATCHES.get(error.code, FailureKind.REJECTED)
    if kind is not FailureKind.REJECTED and not _means_what_is_specified(evidence):
        kind = FailureKind.REJECTED
    return _failure(evidence, kind, Delivery.ANSWERED, "a JSON-RPC error")


def _means_what_is_specified(evidence: Evidence) -> bool:
    """Whether -32020 or -32022 is the one of 2026-07-28, and so was said before anything ran.

    A legacy server may use both codes for errors of its own. One that has been upgraded answers
    HTTP 400 with -32022 and the versions it supports, which 2026-07-28 requires.
    """
    if evidence.fixed_codes:
        return True
    error = evidence.error
    if error is None or error.code != UNSUPPORTED_VERSION or evidence.status != 400:
        return False
    return any(map(_VERSION.fullmatch, supported_versions(error.data)))


_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}")
_AT_THE_DOOR = frozenset(
    {400, 402, *range(404, 408), *range(410, 419), 421, 422, 425, 426, 428, 431, 451}
)
"""What is said before anything is done (RFC 9110, 6585, 7725, 8470). Other 4xx prove nothing: 408
and 499 are said of what took too long, 409 and 424 of what was done in part."""


def _refused(evidence: Evidence, rows: Sequence[SessionRow]) -> Failure | None:
    if evidence.status not in _AT_THE_DOOR:
        return None
    return _failure(evidence, FailureKind.REFUSED, Delivery.REFUSED, "turned away at the door")


def _unreadable(evidence: Evidence, rows: Sequence[SessionRow]) -> Failure | None:
    if evidence.trouble is not Trouble.UNREADABLE:
        return None
    return _failure(evidence, FailureKind.UNREADABLE, Delivery.UNKNOWN, "not an answer")


_RULES: tuple[Callable[[Evidence, Sequence[SessionRow]], Failure | None], ...] = (
    _exited,
    _not_sent,
    _session,
    _unauthorized,
    _throttled,
    _cut_off,
    _rejected,
    _refused,
    _unreadable,
)


def _failure(evidence: Evidence, kind: FailureKind, delivery: Delivery, row: str) -> Failure:
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
        row=row,
    )


def parse_retry_after(value: str | None) -> float | None:
    """Seconds from a Retry-After header. Its HTTP-date form needs a clock: the wire turns it into
    seconds before it reaches these rules."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
