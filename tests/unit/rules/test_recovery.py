"""`decide` over its whole input space: it always answers, and its laws hold everywhere."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from toolkeep._rules.backoff import MIN_PAUSE
from toolkeep._rules.recovery import (
    ConnectionAction,
    Decision,
    RetryContext,
    RetryPolicy,
    TransportKind,
    decide,
    is_session_stuck,
    session_survives,
)
from toolkeep.errors import Delivery, Failure, FailureKind

BACKOFF = 2.0
ANSWERED = Delivery.ANSWERED
RETRY_AFTER = (None, 0.0, 5.0)
TIMES_LEFT = (0.0, 1.0, 2.0, 2.1, 5.0, 5.1, float("inf"))
"""Around each wait there is: none, the backoff, the server's 5 seconds."""

ONCE = {
    FailureKind.UNAUTHORIZED: ConnectionAction.REAUTHORIZE,
    FailureKind.HEADER_MISMATCH: ConnectionAction.RELIST,
    FailureKind.VERSION_MISMATCH: ConnectionAction.RENEGOTIATE,
}
OUTAGES = {FailureKind.UNREACHABLE, FailureKind.THROTTLED, FailureKind.BROKEN}
ALREADY = (
    frozenset[ConnectionAction](),
    *(frozenset({step}) for step in ConnectionAction),
    frozenset(ONCE.values()),
)


@dataclass(frozen=True)
class Case:
    failure: Failure
    standing: RetryContext
    decision: Decision

    @property
    def replays(self) -> bool:
        return self.decision.retry_delay is not None


def failure(kind: FailureKind, delivery: Delivery, retry_after: float | None = None) -> Failure:
    return Failure(kind, delivery, "as it happens", retry_after=retry_after)


def every_case() -> Iterator[Case]:
    space = itertools.product(
        FailureKind,
        Delivery,
        RETRY_AFTER,
        TransportKind,
        RetryPolicy,
        (False, True),
        (0, 1, 3),
        ALREADY,
        TIMES_LEFT,
        (False, True),
    )
    rest: list[Any]
    for kind, delivery, retry_after, *rest in space:
        failed = failure(kind, delivery, retry_after)
        *first, elsewhere = rest
        standing = RetryContext(*first, has_other_endpoint=elsewhere)
        yield Case(failed, standing, decide(failed, standing, backoff=BACKOFF))


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return list(every_case())


def test_there_is_a_decision_for_everything(cases: list[Case]):
    sizes = (
        FailureKind,
        Delivery,
        RETRY_AFTER,
        TransportKind,
        RetryPolicy,
        "no",
        "013",
        ALREADY,
        TIMES_LEFT,
    )
    assert len(cases) == math.prod(len(size) for size in sizes) * len((False, True))
    for case in cases:
        assert case.decision.action in ConnectionAction
        assert case.decision.retry_delay is None or case.decision.retry_delay >= 0


def test_an_unknown_outcome_is_replayed_only_where_that_was_allowed(cases: list[Case]):
    replayed = [c for c in cases if c.replays and c.failure.delivery is Delivery.UNKNOWN]
    assert replayed
    for case in replayed:
        policy, repeatable = case.standing.policy, case.standing.repeatable
        assert policy is RetryPolicy.ALWAYS or (policy is RetryPolicy.SAFE and repeatable), case


def test_never_ignores_the_marks(cases: list[Case]):
    never = [c for c in cases if c.standing.policy is RetryPolicy.NEVER]
    assert not [c for c in never if c.replays and c.failure.delivery is Delivery.UNKNOWN]


def test_gibberish_is_never_asked_for_twice(cases: list[Case]):
    unreadable = [c for c in cases if c.failure.kind is FailureKind.UNREADABLE]
    assert not [c for c in unreadable if c.replays and c.failure.delivery is Delivery.UNKNOWN]


def test_nothing_is_replayed_beyond_the_budget_of_its_call(cases: list[Case]):
    spent = [c for c in cases if c.replays and c.standing.retries_left == 0]
    assert not [c for c in spent if not c.decision.use_other_endpoint]


def test_nothing_is_replayed_that_would_begin_after_the_deadline(cases: list[Case]):
    for case in cases:
        if case.decision.retry_delay is not None:
            assert case.decision.retry_delay < case.standing.time_left, case


def test_an_answer_is_final_unless_a_remedy_is_left(cases: list[Case]):
    for case in cases:
        doubted = case.failure.kind is FailureKind.SESSION_UNCERTAIN
        if case.replays and case.failure.delivery is Delivery.ANSWERED and not doubted:
            assert ONCE[case.failure.kind] is case.decision.action, case


@pytest.mark.requirement("S5", "P2")
def test_an_answer_that_leaves_the_session_in_doubt_is_replayed_as_an_unknown_outcome_is(
    cases: list[Case],
):
    doubted = [c for c in cases if c.failure.kind is FailureKind.SESSION_UNCERTAIN]
    assert {c.decision.action for c in doubted} == {ConnectionAction.CHECK}
    answered = [c for c in doubted if c.failure.delivery is Delivery.ANSWERED]
    assert any(c.replays for c in answered)
    for case in answered:
        policy, repeatable = case.standing.policy, case.standing.repeatable
        vouched = policy is RetryPolicy.ALWAYS or (policy is RetryPolicy.SAFE and repeatable)
        assert vouched or not case.replays, case


@pytest.mark.requirement("S5", "G7")
@pytest.mark.parametrize("kind", FailureKind)
@pytest.mark.parametrize("status", [None, 429, 503])
def test_a_session_survives_a_check_that_shows_life_or_never_reached_it(
    kind: FailureKind, status: int | None
):
    given_up = {
        FailureKind.SESSION_LOST,
        FailureKind.SESSION_UNCERTAIN,
        FailureKind.BROKEN,
        FailureKind.UNREADABLE,
        FailureKind.REFUSED,
    }
    told_to_come_later = kind is FailureKind.THROTTLED and status != 429
    check = Failure(kind, ANSWERED, "as it happens", status=status)
    assert session_survives(check) is (kind not in given_up and not told_to_come_later)


def test_a_session_does_not_survive_a_check_without_an_answer():
    assert not session_survives(None)


@pytest.mark.parametrize(
    ("faults", "probe", "stuck"),
    [(0, False, False), (9, False, False), (10, False, True), (1, True, True)],
)
def test_a_session_is_stuck_after_a_failed_probe_or_a_run_of_faults(faults, probe, stuck):
    assert is_session_stuck(faults, probe=probe) is stuck


@pytest.mark.parametrize("channel", TransportKind)
@pytest.mark.parametrize("kind", FailureKind)
def test_a_stuck_session_is_replaced_once_in_a_call_and_only_after_a_fault(kind, channel):
    usual = decide(failure(kind, Delivery.UNKNOWN), plain(transport=channel), backoff=BACKOFF)
    stuck = plain(transport=channel, session_stuck=True)
    decision = decide(failure(kind, Delivery.UNKNOWN), stuck, backoff=BACKOFF)
    assert decision.retry_delay == usual.retry_delay
    if kind is FailureKind.BROKEN:
        assert decision.action is ConnectionAction.REPLACE
        again = dataclasses.replace(stuck, tried=frozenset({ConnectionAction.REPLACE}))
        usual = decide(failure(kind, Delivery.UNKNOWN), again, backoff=BACKOFF)
        kept = channel is TransportKind.REQUEST_RESPONSE
        assert usual.action is (ConnectionAction.KEEP if kept else ConnectionAction.REPLACE)
    else:
        assert decision.action is usual.action


def test_each_remedy_is_tried_once(cases: list[Case]):
    for case in cases:
        if case.decision.action in ONCE.values():
            assert case.decision.action not in case.standing.tried, case
            assert case.decision.action is ONCE[case.failure.kind]
        elif case.failure.kind in ONCE and not case.decision.use_other_endpoint:
            assert not case.replays, case


def test_a_lost_session_always_costs_its_connection(cases: list[Case]):
    lost = [c for c in cases if c.failure.kind is FailureKind.SESSION_LOST]
    assert {c.decision.action for c in lost} == {ConnectionAction.REPLACE}


@pytest.mark.parametrize("kind", [FailureKind.UNREACHABLE, FailureKind.BROKEN])
def test_a_fault_ends_a_pipe_but_not_an_http_connection(cases: list[Case], kind: FailureKind):
    faults = [c for c in cases if c.failure.kind is kind]
    steps = {(c.standing.transport, c.decision.action) for c in faults}
    assert steps == {
        (TransportKind.DUPLEX, ConnectionAction.REPLACE),
        (TransportKind.REQUEST_RESPONSE, ConnectionAction.KEEP),
    }


def test_nothing_else_costs_a_connection(cases: list[Case]):
    replaced = {c.failure.kind for c in cases if c.decision.action is ConnectionAction.REPLACE}
    assert replaced == {FailureKind.SESSION_LOST, FailureKind.UNREACHABLE, FailureKind.BROKEN}


def test_retry_after_wins_over_the_backoff(cases: list[Case]):
    here = [c for c in cases if c.replays and not c.decision.use_other_endpoint]
    patient = [c for c in here if c.failure.kind in OUTAGES]
    assert patient
    for case in patient:
        asked = case.failure.retry_after
        wait = BACKOFF if asked is None else max(asked, MIN_PAUSE)
        assert case.decision.retry_delay == wait, case


def test_what_a_remedy_mends_is_replayed_at_once(cases: list[Case]):
    kinds = {*ONCE, FailureKind.SESSION_LOST, FailureKind.SESSION_UNCERTAIN}
    mended = [c for c in cases if c.replays and c.failure.kind in kinds]
    assert {c.decision.retry_delay for c in mended} == {0.0}


def test_exactly_the_replays_of_an_outage_draw_on_the_budget_of_the_server(cases: list[Case]):
    for case in cases:
        here = case.replays and not case.decision.use_other_endpoint
        expected = here and case.failure.kind in OUTAGES
        assert case.decision.costs_budget is expected, case


# -- another address of the server --------------------------------------------------------------


def test_nothing_goes_elsewhere_unless_an_address_is_left(cases: list[Case]):
    assert any(c.decision.use_other_endpoint for c in cases)
    assert not [
        c for c in cases if c.decision.use_other_endpoint and not c.standing.has_other_endpoint
    ]


def test_what_goes_elsewhere_goes_at_once_and_draws_on_no_budget(cases: list[Case]):
    gone = [c.decision for c in cases if c.decision.use_other_endpoint]
    assert {(d.retry_delay, d.costs_budget) for d in gone} == {(0.0, False)}


def test_what_was_answered_goes_nowhere_else(cases: list[Case]):
    assert not [
        c for c in cases if c.decision.use_other_endpoint and c.failure.delivery is ANSWERED
    ]


def test_what_may_have_run_goes_elsewhere_exactly_where_it_would_go_again_here(cases: list[Case]):
    """The other addresses are no way around the law."""
    for case in cases:
        if case.decision.use_other_endpoint and case.failure.delivery is Delivery.UNKNOWN:
            roomy = dataclasses.replace(
                case.standing, has_other_endpoint=False, retries_left=1, time_left=float("inf")
            )
            here = decide(case.failure, roomy, backoff=BACKOFF)
            assert here.retry_delay is not None, case


def test_what_is_mended_is_mended_where_it_was_met(cases: list[Case]):
    for case in cases:
        if case.decision.use_other_endpoint:
            assert case.failure.kind is not FailureKind.SESSION_LOST, case
            assert case.failure.kind is not FailureKind.SESSION_UNCERTAIN, case
            assert case.failure.kind is not FailureKind.UNAUTHORIZED, case
            assert case.decision.action not in ONCE.values(), case


@pytest.mark.parametrize("kind", [FailureKind.REFUSED, FailureKind.THROTTLED])
def test_what_one_address_refuses_another_is_asked_for(kind: FailureKind):
    standing = plain(has_other_endpoint=True, retries_left=0, policy=RetryPolicy.NEVER)
    assert decide(
        failure(kind, Delivery.REFUSED, 5.0), standing, backoff=BACKOFF
    ).use_other_endpoint


def test_an_address_that_is_left_changes_nothing_but_that(cases: list[Case]):
    """Whatever does not go elsewhere is decided as if there were one address."""
    for case in cases:
        if case.standing.has_other_endpoint and not case.decision.use_other_endpoint:
            alone = dataclasses.replace(case.standing, has_other_endpoint=False)
            assert decide(case.failure, alone, backoff=BACKOFF) == case.decision, case


def plain(**changes: Any) -> RetryContext:
    given: dict[str, Any] = {
        "transport": TransportKind.REQUEST_RESPONSE,
        "policy": RetryPolicy.SAFE,
        "repeatable": False,
    }
    return RetryContext(**{**given, "retries_left": 3, **changes})


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
    (FailureKind.SESSION_UNCERTAIN, Delivery.ANSWERED),
]


def test_the_two_lists_above_name_every_kind():
    assert {kind for kind, _ in MUST_REPLAY + MUST_RAISE} == set(FailureKind)


@pytest.mark.parametrize("policy", RetryPolicy)
@pytest.mark.parametrize(("kind", "delivery"), MUST_REPLAY)
def test_what_did_not_run_is_replayed_under_every_policy(kind, delivery, policy):
    standing = plain(policy=policy)
    assert decide(failure(kind, delivery), standing, backoff=BACKOFF).retry_delay is not None


@pytest.mark.parametrize(("kind", "delivery"), MUST_RAISE)
def test_a_plain_tool_is_not_sent_again_after_anything_else(kind, delivery):
    assert decide(failure(kind, delivery), plain(), backoff=BACKOFF).retry_delay is None


@pytest.mark.parametrize(
    ("policy", "repeatable", "replayed"),
    [
        (RetryPolicy.SAFE, True, True),
        (RetryPolicy.SAFE, False, False),
        (RetryPolicy.NEVER, True, False),
        (RetryPolicy.NEVER, False, False),
        (RetryPolicy.ALWAYS, True, True),
        (RetryPolicy.ALWAYS, False, True),
    ],
)
def test_a_broken_call_is_replayed_as_its_policy_says(policy, repeatable, replayed):
    broken = failure(FailureKind.BROKEN, Delivery.UNKNOWN)
    decision = decide(broken, plain(policy=policy, repeatable=repeatable), backoff=BACKOFF)
    assert (decision.retry_delay is not None) is replayed


def test_every_decision_says_why(cases: list[Case]):
    assert all(case.decision.reason for case in cases)


@pytest.mark.parametrize(
    ("kind", "delivery", "facts", "reason"),
    [
        ("UNREACHABLE", "NOT_SENT", {}, "it was not sent"),
        ("EXITED", "NOT_SENT", {}, "the program would exit again"),
        ("SESSION_LOST", "REFUSED", {}, "the server refused it before it could run"),
        ("REFUSED", "REFUSED", {}, "the server would refuse it again"),
        ("BROKEN", "UNKNOWN", {}, "the tool is not marked read-only or idempotent"),
        ("BROKEN", "UNKNOWN", {"policy": RetryPolicy.NEVER}, "retry is 'never'"),
        ("BROKEN", "UNKNOWN", {"policy": RetryPolicy.ALWAYS}, "retry is 'always'"),
        ("BROKEN", "UNKNOWN", {"repeatable": True}, "the tool is marked read-only or idempotent"),
        ("UNREADABLE", "UNKNOWN", {}, "the response would be unreadable again"),
        ("REJECTED", "ANSWERED", {}, "the response is the outcome"),
        ("SESSION_UNCERTAIN", "ANSWERED", {"repeatable": True}, "the session was gone"),
        ("UNAUTHORIZED", "REFUSED", {}, "the server asks to reauthorize"),
        ("UNAUTHORIZED", "REFUSED", {"tried": frozenset(ONCE.values())}, "nothing helped"),
        ("UNREACHABLE", "NOT_SENT", {"retries_left": 0}, "no retry is left"),
        (
            "UNREACHABLE",
            "NOT_SENT",
            {"time_left": 1.0},
            "the deadline passes before it could be",
        ),
        ("UNREACHABLE", "NOT_SENT", {"has_other_endpoint": True}, "another address may work"),
    ],
)
def test_the_reason_names_what_decided(kind: str, delivery: str, facts: Any, reason: str):
    failed = failure(FailureKind[kind], Delivery[delivery])
    assert decide(failed, plain(**facts), backoff=BACKOFF).reason == reason
