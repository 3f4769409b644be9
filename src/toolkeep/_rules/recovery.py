"""Decide what to do after a failure: what happens to the connection, and is the call retried?

The two questions are separate. A broken connection says nothing about whether the tool ran, and
a call that provably did not run may be sent again on any connection.

The rule, tested over the whole input space: a call whose outcome is UNKNOWN is sent again, to
this endpoint or another, only if its tool is repeatable and the policy is SAFE, or if the
policy is ALWAYS. The same holds for a call whose response leaves the session uncertain.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from toolkeep._rules.backoff import MIN_PAUSE
from toolkeep.errors import Delivery, Failure, FailureKind


class TransportKind(enum.Enum):
    """How requests share a connection."""

    REQUEST_RESPONSE = "HTTP"
    """Each request stands alone: a fault affects no other. Also a pipe that survives the fault."""
    DUPLEX = "stdio, SSE"
    """All requests share one pipe, and the pipe broke."""


class RetryPolicy(enum.Enum):
    """Whether a call with an unknown outcome may be retried."""

    SAFE = "safe"
    """Only if its tool is marked read-only or idempotent."""
    NEVER = "never"
    ALWAYS = "always"


class ConnectionAction(enum.Enum):
    """What happens to the connection."""

    KEEP = "keep"
    REPLACE = "replace"
    REAUTHORIZE = "reauthorize"
    CHECK = "check"
    """Ping in the session; replace the connection if there is no response."""
    RELIST = "list again"
    RENEGOTIATE = "negotiate again"


@dataclass(frozen=True, slots=True)
class RetryContext:
    """The state of a call after a failed attempt."""

    transport: TransportKind
    policy: RetryPolicy
    repeatable: bool
    """The tool is marked read-only or idempotent, or the request only reads."""
    retries_left: int
    """Retries that the call may still use."""
    tried: frozenset[ConnectionAction] = frozenset()
    """Actions that were tried for this call; each is tried once."""
    time_left: float = float("inf")
    session_stuck: bool = False
    """The server may be unable to serve the session of this attempt (`is_session_stuck`)."""
    has_other_endpoint: bool = False
    """Whether the call has not tried all endpoints of the server. Each is tried once, without delay
    and without cost: the failure of one endpoint does not multiply requests to another."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do after one failed attempt."""

    action: ConnectionAction
    retry_delay: float | None
    """Seconds until the call is sent again; None: raise the error."""
    costs_budget: bool = False
    """Whether the retry takes a token of the server's bucket: true for retries after outages."""
    use_other_endpoint: bool = False
    """Whether the retry goes to another endpoint of the server."""
    reason: str = field(default="", compare=False)
    """Why the call is sent again, or not, for people."""


_REMEDIES = {
    FailureKind.UNAUTHORIZED: ConnectionAction.REAUTHORIZE,
    FailureKind.HEADER_MISMATCH: ConnectionAction.RELIST,
    FailureKind.VERSION_MISMATCH: ConnectionAction.RENEGOTIATE,
}
_MARKED = "the tool is marked read-only or idempotent"
_NOT_MARKED = "the tool is not marked read-only or idempotent"
_SAFE_REASONS = {
    Delivery.NOT_SENT: "it was not sent",
    Delivery.REFUSED: "the server refused it before it could run",
}
_SESSION_FAILURES = {FailureKind.SESSION_LOST, FailureKind.SESSION_UNCERTAIN}
_DUPLEX_ENDS = {FailureKind.UNREACHABLE, FailureKind.BROKEN}
REMEDIED_IN_PLACE = {*_SESSION_FAILURES, *_REMEDIES}
"""Failures whose remedy works only at the same endpoint."""
_ENDPOINT_FAILURES = set(FailureKind) - {
    *_SESSION_FAILURES,
    FailureKind.UNAUTHORIZED,
    FailureKind.HEADER_MISMATCH,
    FailureKind.EXITED,
}
"""Failures that another endpoint may not have. All endpoints share the server's credentials, so
UNAUTHORIZED is not among them: bad credentials are not tried at each endpoint in turn."""
_OUTAGES = {FailureKind.UNREACHABLE, FailureKind.THROTTLED, FailureKind.BROKEN}

MAX_SESSION_FAULTS = 10
"""Consecutive faults in one session after which it is stuck."""

_FAILED_CHECKS = {
    *_SESSION_FAILURES,
    FailureKind.BROKEN,
    FailureKind.UNREADABLE,
    FailureKind.REFUSED,
}


def decide(failure: Failure, context: RetryContext, *, backoff: float) -> Decision:
    """Decide what to do. `backoff` is the default delay; the server's Retry-After replaces it."""
    action = connection_action(failure.kind, context)
    may = may_retry(failure, context.policy, repeatable=context.repeatable)
    if failure.kind in _REMEDIES:  # the server asked for the remedy, unless its response was lost
        may = action is not ConnectionAction.KEEP and (
            may or failure.delivery is not Delivery.UNKNOWN
        )
    if _uses_other_endpoint(failure, context, action, may=may):
        return Decision(action, 0.0, use_other_endpoint=True, reason="another address may work")
    delay, reason = _retry_delay(failure, backoff), retry_reason(failure, context, may=may)
    if not may:
        return Decision(action, None, reason=reason)
    if context.retries_left <= 0:
        return Decision(action, None, reason="no retry is left")
    if delay >= context.time_left:
        return Decision(action, None, reason="the deadline passes before it could be")
    return Decision(action, delay, costs_budget=failure.kind in _OUTAGES, reason=reason)


def retry_reason(failure: Failure, context: RetryContext, *, may: bool) -> str:
    """Why the call may, or may not, be sent again."""
    if failure.kind in _REMEDIES:
        return f"the server asks to {_REMEDIES[failure.kind].value}" if may else "nothing helped"
    if may and failure.delivery is not Delivery.UNKNOWN:
        return _SAFE_REASONS.get(failure.delivery, "the session was gone")
    if may:
        return _MARKED if context.repeatable else "retry is 'always'"
    return _refusal(failure, context.policy)


def _refusal(failure: Failure, policy: RetryPolicy) -> str:
    if failure.kind is FailureKind.EXITED:
        return "the program would exit again"
    if failure.delivery is Delivery.REFUSED:
        return "the server would refuse it again"
    if failure.kind is FailureKind.UNREADABLE:
        return "the response would be unreadable again"
    if failure.delivery is Delivery.ANSWERED and failure.kind is not FailureKind.SESSION_UNCERTAIN:
        return "the response is the outcome"
    return "retry is 'never'" if policy is RetryPolicy.NEVER else _NOT_MARKED


def connection_action(kind: FailureKind, context: RetryContext) -> ConnectionAction:
    """What happens to the connection, whether the call is retried or not."""
    if kind is FailureKind.SESSION_LOST:
        return ConnectionAction.REPLACE
    if kind is FailureKind.SESSION_UNCERTAIN:
        return ConnectionAction.CHECK
    if (
        kind is FailureKind.BROKEN
        and context.session_stuck
        and ConnectionAction.REPLACE not in context.tried
    ):
        return ConnectionAction.REPLACE
    if kind in _DUPLEX_ENDS and context.transport is TransportKind.DUPLEX:
        return ConnectionAction.REPLACE
    remedy = _REMEDIES.get(kind, ConnectionAction.KEEP)
    return ConnectionAction.KEEP if remedy in context.tried else remedy


def may_retry(failure: Failure, policy: RetryPolicy, *, repeatable: bool) -> bool:
    """Whether sending the call again cannot run the tool twice, or the policy accepts that."""
    match failure.delivery:
        case Delivery.NOT_SENT:
            return failure.kind is not FailureKind.EXITED
        case Delivery.REFUSED:
            return failure.kind in (FailureKind.SESSION_LOST, FailureKind.THROTTLED)
        case Delivery.UNKNOWN if failure.kind is FailureKind.UNREADABLE:
            return False  # the same request would get the same unreadable response
        case Delivery.ANSWERED if failure.kind is not FailureKind.SESSION_UNCERTAIN:
            return False  # the response is the outcome
        case _:
            return policy is RetryPolicy.ALWAYS or (policy is RetryPolicy.SAFE and repeatable)


def is_session_stuck(faults: int, *, probe: bool) -> bool:
    """Whether to give up a session after a fault, even if the server serves other sessions.

    A load balancer may route the session to an instance that is gone. A session is stuck if the
    breaker's probe failed in it, or after `MAX_SESSION_FAULTS` faults. A fault counts only if its
    request began after the previous fault: one blip that hits many requests is one fault.
    """
    return probe or faults >= MAX_SESSION_FAULTS


def session_survives(check: Failure | None) -> bool:
    """Whether to keep a session after a failed check; None: the check timed out.

    An error, a 429 or a request for credentials shows that the session works. An endpoint that
    cannot be reached says nothing about the session.
    """
    if check is None or check.kind in _FAILED_CHECKS:
        return False
    return check.kind is not FailureKind.THROTTLED or check.status == 429


def _uses_other_endpoint(
    failure: Failure, context: RetryContext, action: ConnectionAction, *, may: bool
) -> bool:
    """A call that one endpoint refused provably did not run, so another endpoint may get it."""
    if (
        not context.has_other_endpoint
        or context.time_left <= 0
        or failure.kind not in _ENDPOINT_FAILURES
    ):
        return False
    did_not_run = failure.delivery in (Delivery.NOT_SENT, Delivery.REFUSED)
    return action in (ConnectionAction.KEEP, ConnectionAction.REPLACE) and (may or did_not_run)


def _retry_delay(failure: Failure, backoff: float) -> float:
    if failure.kind in REMEDIED_IN_PLACE:
        return 0.0
    if failure.retry_after is not None:
        return max(failure.retry_after, MIN_PAUSE)
    return backoff
