"""What to do after a failure: two separate questions, one pure and total answer.

Is the *connection* finished? May the *call* be sent again? A broken connection says nothing about
whether the tool ran, and a call that provably did not run may go again on any connection.

The law, walked over its whole input space in the tests: a call whose outcome is UNKNOWN is sent
again, here or at another address, only if its tool is marked repeatable and the policy is SAFE, or
if the policy is ALWAYS. So is a call that was answered in words that leave the session in doubt.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from toolkeep._rules.budget import LEAST_PAUSE
from toolkeep.errors import Delivery, Failure, FailureKind


class Channel(enum.Enum):
    """What carries the requests."""

    REQUESTS = "HTTP"
    """Each request on its own: a fault touches no other. So is a pipe that goes on after it."""
    PIPE = "stdio, SSE"
    """All requests on one pipe, and it broke: it is finished."""


class Policy(enum.Enum):
    """What the operator allows for a tool whose outcome is unknown."""

    SAFE = "safe"
    NEVER = "never"
    ALWAYS = "always"


class Step(enum.Enum):
    """What happens to the connection."""

    KEEP = "keep"
    REPLACE = "replace"
    REAUTHORIZE = "reauthorize"
    CHECK = "check"
    """Ask the session for a sign of life; replace it if there is none."""
    RELIST = "list again"
    RENEGOTIATE = "negotiate again"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a call stands when an attempt of it has failed."""

    channel: Channel
    policy: Policy
    repeatable: bool
    """The tool is marked read-only or idempotent, or the request only reads."""
    replays_left: int
    """What remains of the call's own budget."""
    already: frozenset[Step] = frozenset()
    """Remedies that were tried for this call; each is tried once."""
    time_left: float = float("inf")
    stuck: bool = False
    """The server may no longer be able to serve the session of this attempt (`is_stuck`)."""
    elsewhere: bool = False
    """Another address of the server is left that this call has not tried. Each is tried once, at
    once, and costs no budget: no address is asked more often because another is down."""


@dataclass(frozen=True, slots=True)
class Decision:
    connection: Step
    replay_after: float | None
    """Seconds until the call is sent again; None: raise."""
    costs_budget: bool = False
    """Whether this replay draws on the server's budget: those that an outage would multiply do."""
    elsewhere: bool = False
    """Whether it goes to another address of the server."""


_ONCE = {
    FailureKind.UNAUTHORIZED: Step.REAUTHORIZE,
    FailureKind.HEADER_MISMATCH: Step.RELIST,
    FailureKind.VERSION_MISMATCH: Step.RENEGOTIATE,
}
_OF_SESSIONS = {FailureKind.SESSION_LOST, FailureKind.SESSION_DOUBTED}
_PIPE_ENDS = {FailureKind.UNREACHABLE, FailureKind.BROKEN}
MENDED = {*_OF_SESSIONS, *_ONCE}
"""What a remedy mends at the address where it was met, or nowhere."""
_OF_ITS_ADDRESS = set(FailureKind) - {
    *_OF_SESSIONS,
    FailureKind.UNAUTHORIZED,
    FailureKind.HEADER_MISMATCH,
    FailureKind.EXITED,
}
"""What one address of a server may meet and another not. Credentials are the server's, and are not
tried out at one address after the other."""
_OUTAGE = {FailureKind.UNREACHABLE, FailureKind.THROTTLED, FailureKind.BROKEN}


def decide(failure: Failure, standing: Standing, *, backoff: float) -> Decision:
    """`backoff` is what the call would wait by itself; the server's Retry-After wins over it."""
    step = connection_step(failure.kind, standing)
    may = may_replay(failure, standing.policy, repeatable=standing.repeatable)
    if failure.kind in _ONCE:  # the server said what it wants, unless the answer was lost
        may = step is not Step.KEEP and (may or failure.delivery is not Delivery.UNKNOWN)
    if _goes_elsewhere(failure, standing, step, may=may):
        return Decision(step, 0.0, elsewhere=True)
    wait = _wait(failure, backoff)
    if not may or standing.replays_left <= 0 or wait >= standing.time_left:
        return Decision(step, None)
    return Decision(step, wait, costs_budget=failure.kind in _OUTAGE)


def connection_step(kind: FailureKind, standing: Standing) -> Step:
    if kind is FailureKind.SESSION_LOST:
        return Step.REPLACE
    if kind is FailureKind.SESSION_DOUBTED:
        return Step.CHECK
    if kind is FailureKind.BROKEN and standing.stuck and Step.REPLACE not in standing.already:
        return Step.REPLACE
    if kind in _PIPE_ENDS and standing.channel is Channel.PIPE:
        return Step.REPLACE
    remedy = _ONCE.get(kind, Step.KEEP)
    return Step.KEEP if remedy in standing.already else remedy


def may_replay(failure: Failure, policy: Policy, *, repeatable: bool) -> bool:
    match failure.delivery:
        case Delivery.NOT_SENT:
            return failure.kind is not FailureKind.EXITED
        case Delivery.REFUSED:
            return failure.kind in (FailureKind.SESSION_LOST, FailureKind.THROTTLED)
        case Delivery.UNKNOWN if failure.kind is FailureKind.UNREADABLE:
            return False  # the same question would get the same gibberish
        case Delivery.ANSWERED if failure.kind is not FailureKind.SESSION_DOUBTED:
            return False  # it had its answer
        case _:
            return policy is Policy.ALWAYS or (policy is Policy.SAFE and repeatable)


MOST_SESSION_FAULTS = 10


def is_stuck(faults: int, *, probe: bool) -> bool:
    """Whether a session is given up after a fault, although others may well be served: a balancer
    may send it to an instance that is gone. The breaker's probe failed in it, or so many requests,
    each begun after the last had failed; one blip that many requests met at once is one fault."""
    return probe or faults >= MOST_SESSION_FAULTS


_NO_SIGN_OF_LIFE = {
    *_OF_SESSIONS,
    FailureKind.BROKEN,
    FailureKind.UNREADABLE,
    FailureKind.REFUSED,
}


def survives(check: Failure | None) -> bool:
    """Whether a session is kept whose check failed so; None: nothing came in time. An error, a wish
    to wait (429) or for credentials is a sign of life; an address that cannot be reached says
    nothing about the session."""
    if check is None or check.kind in _NO_SIGN_OF_LIFE:
        return False
    return check.kind is not FailureKind.THROTTLED or check.status == 429


def _goes_elsewhere(failure: Failure, standing: Standing, step: Step, *, may: bool) -> bool:
    """What one address has refused provably did not run, so another may be asked."""
    if not standing.elsewhere or standing.time_left <= 0 or failure.kind not in _OF_ITS_ADDRESS:
        return False
    did_not_run = failure.delivery in (Delivery.NOT_SENT, Delivery.REFUSED)
    return step in (Step.KEEP, Step.REPLACE) and (may or did_not_run)


def _wait(failure: Failure, backoff: float) -> float:
    if failure.kind in MENDED:
        return 0.0
    if failure.retry_after is not None:
        return max(failure.retry_after, LEAST_PAUSE)
    return backoff
