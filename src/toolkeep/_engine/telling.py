"""How a failure is told: whose fault it is, whether the call ran, and what to do now."""

from __future__ import annotations

from typing import Any, Protocol

from toolkeep._rules.classify import Evidence, Trouble, classify
from toolkeep._wire.attempt import Attempt
from toolkeep._wire.fault import CredentialsFault, InvalidAnswer
from toolkeep.errors import (
    AuthNeeded,
    CallError,
    CallNotDelivered,
    CallNotSentInTime,
    CallOutcomeUnknown,
    CallRejected,
    CallTimedOut,
    Delivery,
    Failure,
    FailureKind,
    InvalidResult,
    RemoteProtocolError,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep.results import CallResult

_MAY_HAVE_RUN = "It may have run: find out before sending it again"
_DID_NOT_RUN = "It did not run: sending it again is safe"
_NOT_MCP = (FailureKind.UNREADABLE, FailureKind.VERSION_MISMATCH, FailureKind.REFUSED)


class What(Protocol):
    """The request that failed."""

    @property
    def method(self) -> str: ...
    @property
    def tool(self) -> str | None: ...
    @property
    def timeout(self) -> float: ...


class Story(Protocol):
    """What became of it."""

    @property
    def attempts(self) -> int: ...
    @property
    def worst(self) -> Delivery: ...
    @property
    def last(self) -> Failure | None: ...


def went_astray(attempt: Attempt) -> Failure:
    """A cancellation that nobody asked of this task is a fault like any other."""
    trouble = Trouble.BROKEN if attempt.sent else Trouble.CONNECT
    detail = "something on the way cancelled the request by itself"
    return classify(Evidence(trouble=trouble, sent=attempt.sent, detail=detail))


def told(
    error: InvalidAnswer | CredentialsFault, server: str, what: What, story: Story, duration: float
) -> ToolkeepError:
    """What needs no verdict: a result that breaks the protocol, an authorizer that failed."""
    if isinstance(error, CredentialsFault):
        return AuthNeeded(f"{server}: {error}. Nothing was sent", server=server)
    result: Any = error.raw
    if what.tool is not None:
        result = CallResult(error.raw, server, what.tool, story.attempts, duration)
    text = f"{server}: {what.tool or what.method} ran, but {error.message}"
    attempts = story.attempts
    return InvalidResult(text, server=server, tool=what.tool, attempts=attempts, result=result)


def error_for(
    failure: Failure,
    server: str,
    what: What,
    story: Story,
    *,
    opening: bool,
    since: float | None = None,
) -> ToolkeepError:
    """The error that ends a request, as its last attempt alone would have it."""
    if failure.kind is FailureKind.UNAUTHORIZED:
        text = f"{server} wants authorization ({failure}). Check api_key, headers or the authorizer"
        return AuthNeeded(text, server=server, failure=failure)
    if opening and failure.kind in _NOT_MCP:
        text = f"{server} does not speak a protocol that we know ({failure}). Check its URL"
        return RemoteProtocolError(text, server=server, failure=failure)
    if opening:
        text = f"{server} cannot be reached ({failure}). {_DID_NOT_RUN}"
        return ServerUnavailable(text, server=server, since=since, last_failure=failure)
    match failure.delivery:
        case Delivery.ANSWERED:
            rejected = _call_error(CallRejected, failure, server, what, story, "The server said no")
            rejected.delivery = Delivery.ANSWERED
            return rejected
        case Delivery.UNKNOWN:
            return _call_error(CallOutcomeUnknown, failure, server, what, story, _MAY_HAVE_RUN)
        case _:
            return _call_error(CallNotDelivered, failure, server, what, story, _DID_NOT_RUN)


def _call_error(
    kind: type[CallError], failure: Failure | None, server: str, what: What, story: Story, end: str
) -> CallError:
    name = what.tool or what.method
    times = "" if story.attempts == 1 else f" after {story.attempts} attempts"
    reason = failure or "the deadline passed"
    return kind(
        f"{server}: {name} failed{times} ({reason}). {end}",
        server=server,
        tool=what.tool,
        attempts=story.attempts,
        delivery=story.worst,
        failure=failure,
    )


def outcome_unknown(error: ToolkeepError, server: str, what: What, story: Story) -> CallError:
    """An earlier attempt may have run; no later refusal hides that."""
    failure = error.failure or story.last
    return _call_error(CallOutcomeUnknown, failure, server, what, story, _MAY_HAVE_RUN)


def closed_meanwhile(server: str, what: What, story: Story) -> CallError:
    reason = Failure(FailureKind.UNREACHABLE, Delivery.NOT_SENT, "the client was closed")
    return _call_error(CallNotDelivered, reason, server, what, story, _DID_NOT_RUN)


def timed_out(server: str, what: What, story: Story) -> ToolkeepError:
    """The deadline passed. Before anything was sent that is "not delivered", never "unknown"."""
    if not what.method:
        text = f"{server} was not ready within {what.timeout:g} s ({story.last or 'it was silent'})"
        return ServerUnavailable(text, server=server, last_failure=story.last)
    unknown = story.worst is Delivery.UNKNOWN
    kind = CallTimedOut if unknown else CallNotSentInTime
    end = _MAY_HAVE_RUN if unknown else _DID_NOT_RUN
    name = what.tool or what.method
    last = f"; before that: {story.last}" if story.last else ""
    return kind(
        f"{server}: {name} was given up after {what.timeout:g} s{last}. {end}",
        server=server,
        tool=what.tool,
        attempts=story.attempts,
        delivery=story.worst,
        failure=story.last,
    )


def refused_by_breaker(
    server: str, wait: float, story: Story, *, since: float | None
) -> ToolkeepError:
    text = f"{server} has failed repeatedly and is left alone for {wait:.1f} s. {_DID_NOT_RUN}"
    return ServerUnavailable(text, server=server, since=since, last_failure=story.last)
