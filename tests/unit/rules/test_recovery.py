"""`decide` over its whole input space: it always answers, and its laws hold everywhere."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from mainstay._rules.recovery import Channel, Decision, Policy, Standing, Step, decide
from mainstay.errors import Delivery, Failure, FailureKind

BACKOFF = 2.0
RETRY_AFTER = (None, 0.0, 5.0)
TIMES_LEFT = (0.0, 1.0, 2.0, 2.1, 5.0, 5.1, float("inf"))
"""Around each wait there is: none, the backoff, the server's 5 seconds."""

ONCE = {
    FailureKind.UNAUTHORIZED: Step.REAUTHORIZE,
    FailureKind.HEADER_MISMATCH: Step.RELIST,
    FailureKind.VERSION_MISMATCH: Step.RENEGOTIATE,
}
OUTAGES = {FailureKind.UNREACHABLE, FailureKind.THROTTLED, FailureKind.BROKEN}
ALREADY = (
    frozenset[Step](),
    *(frozenset({step}) for step in Step),
    frozenset(ONCE.values()),
)


@dataclass(frozen=True)
class Case:
    failure: Failure
    standing: Standing
    decision: Decision

    @property
    def replays(self) -> bool:
        return self.decision.replay_after is not None


def failure(kind: FailureKind, delivery: Delivery, retry_after: float | None = None) -> Failure:
    return Failure(kind, delivery, "as it happens", retry_after=retry_after)


def every_case() -> Iterator[Case]:
    space = itertools.product(
        FailureKind,
        Delivery,
        RETRY_AFTER,
        Channel,
        Policy,
        (False, True),
        (0, 1, 3),
        ALREADY,
        TIMES_LEFT,
    )
    for kind, delivery, retry_after, channel, policy, repeatable, left, already, time in space:
        failed = failure(kind, delivery, retry_after)
        standing = Standing(channel, policy, repeatable, left, already, time)
        yield Case(failed, standing, decide(failed, standing, backoff=BACKOFF))


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return list(every_case())


def test_there_is_a_decision_for_everything(cases: list[Case]):
    sizes = (FailureKind, Delivery, RETRY_AFTER, Channel, Policy, "no", "013", ALREADY, TIMES_LEFT)
    assert len(cases) == math.prod(len(size) for size in sizes)
    for case in cases:
        assert case.decision.connection in Step
        assert case.decision.replay_after is None or case.decision.replay_after >= 0


def test_an_unknown_outcome_is_replayed_only_where_that_was_allowed(cases: list[Case]):
    replayed = [c for c in cases if c.replays and c.failure.delivery is Delivery.UNKNOWN]
    assert replayed
    for case in replayed:
        policy, repeatable = case.standing.policy, case.standing.repeatable
        assert policy is Policy.ALWAYS or (policy is Policy.SAFE and repeatable), case


def test_never_ignores_the_marks(cases: list[Case]):
    never = [c for c in cases if c.standing.policy is Policy.NEVER]
    assert not [c for c in never if c.replays and c.failure.delivery is Delivery.UNKNOWN]


def test_gibberish_is_never_asked_for_twice(cases: list[Case]):
    unreadable = [c for c in cases if c.failure.kind is FailureKind.UNREADABLE]
    assert not [c for c in unreadable if c.replays and c.failure.delivery is Delivery.UNKNOWN]


def test_nothing_is_replayed_beyond_the_budget_of_its_call(cases: list[Case]):
    assert not [c for c in cases if c.replays and c.standing.replays_left == 0]


def test_nothing_is_replayed_that_would_begin_after_the_deadline(cases: list[Case]):
    for case in cases:
        if case.decision.replay_after is not None:
            assert case.decision.replay_after < case.standing.time_left, case


def test_an_answer_is_final_unless_a_remedy_is_left(cases: list[Case]):
    for case in cases:
        if case.replays and case.failure.delivery is Delivery.ANSWERED:
            assert ONCE[case.failure.kind] is case.decision.connection, case


def test_each_remedy_is_tried_once(cases: list[Case]):
    for case in cases:
        if case.decision.connection in ONCE.values():
            assert case.decision.connection not in case.standing.already, case
            assert case.decision.connection is ONCE[case.failure.kind]
        elif case.failure.kind in ONCE:
            assert not case.replays, case


def test_a_lost_session_always_costs_its_connection(cases: list[Case]):
    lost = [c for c in cases if c.failure.kind is FailureKind.SESSION_LOST]
    assert {c.decision.connection for c in lost} == {Step.REPLACE}


@pytest.mark.parametrize("kind", [FailureKind.UNREACHABLE, FailureKind.BROKEN])
def test_a_fault_ends_a_pipe_but_not_an_http_connection(cases: list[Case], kind: FailureKind):
    faults = [c for c in cases if c.failure.kind is kind]
    steps = {(c.standing.channel, c.decision.connection) for c in faults}
    assert steps == {(Channel.PIPE, Step.REPLACE), (Channel.REQUESTS, Step.KEEP)}


def test_nothing_else_costs_a_connection(cases: list[Case]):
    replaced = {c.failure.kind for c in cases if c.decision.connection is Step.REPLACE}
    assert replaced == {FailureKind.SESSION_LOST, FailureKind.UNREACHABLE, FailureKind.BROKEN}


def test_retry_after_wins_over_the_backoff(cases: list[Case]):
    patient = [c for c in cases if c.replays and c.failure.kind in OUTAGES]
    assert patient
    for case in patient:
        asked = case.failure.retry_after
        assert case.decision.replay_after == (BACKOFF if asked is None else asked), case


def test_what_a_remedy_mends_is_replayed_at_once(cases: list[Case]):
    mended = [c for c in cases if c.replays and c.failure.kind in {*ONCE, FailureKind.SESSION_LOST}]
    assert {c.decision.replay_after for c in mended} == {0.0}


def test_exactly_the_replays_of_an_outage_draw_on_the_budget_of_the_server(cases: list[Case]):
    for case in cases:
        expected = case.replays and case.failure.kind in OUTAGES
        assert case.decision.costs_budget is expected, case


def plain(**changes: Any) -> Standing:
    given: dict[str, Any] = {
        "channel": Channel.REQUESTS,
        "policy": Policy.SAFE,
        "repeatable": False,
    }
    return Standing(**{**given, "replays_left": 3, **changes})


MUST_REPLAY = [
    (FailureKind.UNREACHABLE, Delivery.NOT_SENT),
    (FailureKind.SESSION_LOST, Delivery.REFUSED),
    (FailureKind.THROTTLED, Delivery.REFUSED),
    (FailureKind.UNAUTHORIZED, Delivery.REFUSED),
    (FailureKind.HEADER_MISMATCH, Delivery.ANSWERED),
    (FailureKind.VERSION_MISMATCH, Delivery.ANSWERED),
]
MUST_RAISE = [
    (FailureKind.EXITED, Delivery.NOT_SENT),
    (FailureKind.REFUSED, Delivery.REFUSED),
    (FailureKind.UNREADABLE, Delivery.UNKNOWN),
    (FailureKind.BROKEN, Delivery.UNKNOWN),
    (FailureKind.REJECTED, Delivery.ANSWERED),
]


def test_the_two_lists_above_name_every_kind():
    assert {kind for kind, _ in MUST_REPLAY + MUST_RAISE} == set(FailureKind)


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize(("kind", "delivery"), MUST_REPLAY)
def test_what_did_not_run_is_replayed_under_every_policy(kind, delivery, policy):
    standing = plain(policy=policy)
    assert decide(failure(kind, delivery), standing, backoff=BACKOFF).replay_after is not None


@pytest.mark.parametrize(("kind", "delivery"), MUST_RAISE)
def test_a_plain_tool_is_not_sent_again_after_anything_else(kind, delivery):
    assert decide(failure(kind, delivery), plain(), backoff=BACKOFF).replay_after is None


@pytest.mark.parametrize(
    ("policy", "repeatable", "replayed"),
    [
        (Policy.SAFE, True, True),
        (Policy.SAFE, False, False),
        (Policy.NEVER, True, False),
        (Policy.NEVER, False, False),
        (Policy.ALWAYS, True, True),
        (Policy.ALWAYS, False, True),
    ],
)
def test_a_broken_call_is_replayed_as_its_policy_says(policy, repeatable, replayed):
    broken = failure(FailureKind.BROKEN, Delivery.UNKNOWN)
    decision = decide(broken, plain(policy=policy, repeatable=repeatable), backoff=BACKOFF)
    assert (decision.replay_after is not None) is replayed
