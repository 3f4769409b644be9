"""The members of a group: their moves, and what is shown of them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep._rules.backoff import Backoff
from toolkeep._rules.health import (
    MEMBER_TRANSITIONS,
    Member,
    MemberState,
    active_servers,
    configured_servers,
    connected_servers,
    errors_by_server,
    failed_servers,
    health_after,
    health_check_delay,
    health_summary,
    is_recoverable,
    member_retry_delay,
)
from toolkeep._rules.states import IllegalTransition
from toolkeep.errors import (
    AuthNeeded,
    CallRejected,
    Delivery,
    Failure,
    FailureKind,
    ServerUnavailable,
)
from toolkeep.events import Health

IDLE = Member("a", "server a")
ERROR = OSError("gone")
MOVES = {
    "opening": lambda member: member.opening(),
    "opened": lambda member: member.opened(),
    "failing": lambda member: member.failing(ERROR),
    "closing": lambda member: member.closing(),
    "closed": lambda member: member.closed(),
}
WAYS = {
    MemberState.IDLE: [],
    MemberState.OPENING: ["opening"],
    MemberState.CONNECTED: ["opening", "opened"],
    MemberState.FAILED: ["opening", "failing"],
    MemberState.RECONNECTING: ["opening", "failing", "opening"],
    MemberState.CLOSING: ["opening", "closing"],
}
LEADS_TO = {
    "opened": MemberState.CONNECTED,
    "failing": MemberState.FAILED,
    "closing": MemberState.CLOSING,
    "closed": MemberState.IDLE,
}
STEPS = list(itertools.product(MemberState, LEADS_TO))


def member_in(state: MemberState, name: str = "a") -> Member[str]:
    member = Member(name, f"server {name}")
    for move in WAYS[state]:
        member = MOVES[move](member)
    return member


@pytest.mark.parametrize(("state", "move"), STEPS)
def test_a_member_moves_only_along_the_table(state: MemberState, move: str):
    member = member_in(state)
    assert member.state is state
    if LEADS_TO[move] in MEMBER_TRANSITIONS[state]:
        assert MOVES[move](member).state is LEADS_TO[move]
    else:
        with pytest.raises(IllegalTransition):
            MOVES[move](member)


def test_every_state_has_a_row_and_a_way_back_to_idle():
    assert set(MEMBER_TRANSITIONS) == set(MemberState)
    for state in set(MemberState) - {MemberState.IDLE, MemberState.CLOSING}:
        assert MemberState.CLOSING in MEMBER_TRANSITIONS[state]


@pytest.mark.parametrize("state", MemberState)
def test_a_member_has_an_error_exactly_while_it_is_failed(state: MemberState):
    member = member_in(state)
    assert (member.error is not None) == member.is_failed


def test_who_is_tried_again_stays_failed_until_it_is_connected():
    retrying = member_in(MemberState.RECONNECTING)
    assert retrying.is_failed
    assert retrying.error is ERROR
    joined = retrying.opened()
    assert (joined.error, joined.health) == (None, Health.HEALTHY)
    assert joined.last_error is ERROR


@pytest.mark.requirement("F4")
def test_a_member_whose_calls_fail_is_failed_until_one_is_answered():
    failed = member_in(MemberState.CONNECTED).failing(ERROR)
    assert (failed.is_failed, failed.health, failed.error) == (True, Health.DOWN, ERROR)
    other = ValueError("another reason")
    assert failed.still_failing(other).error is other
    well = failed.opened()
    assert (well.is_connected, well.health, well.error) == (True, Health.HEALTHY, None)


def test_a_failing_check_leaves_a_member_connected():
    member = member_in(MemberState.CONNECTED).checked(Health.DOWN, ERROR, None)
    assert (member.is_connected, member.is_unhealthy, member.error) == (True, True, None)
    assert member.last_error is ERROR
    well = member.checked(Health.HEALTHY, None, 0.5)
    assert (well.health, well.latency, well.is_unhealthy) == (Health.HEALTHY, 0.5, False)


@given(st.lists(st.sampled_from(MemberState), max_size=12), st.booleans())
def test_the_views_agree_and_keep_the_configured_order(states: list[MemberState], drop: bool):
    members = [member_in(state, f"{n:02}") for n, state in enumerate(states)]
    configured = configured_servers(members)
    connected, failed = connected_servers(members), failed_servers(members)
    assert configured == sorted(configured)
    assert connected == sorted(connected)
    assert failed == sorted(failed) == list(errors_by_server(members))
    assert not set(connected) & set(failed)
    assert active_servers(members, drop_failed=drop) == (connected if drop else configured)
    assert health_summary(members) == f"{len(connected)}/{len(members)} servers healthy"


def unavailable(status: int | None = None, retry_after: float | None = None) -> ServerUnavailable:
    kind, delivery = FailureKind.UNREACHABLE, Delivery.NOT_SENT
    failure = Failure(kind, delivery, "no", status=status, retry_after=retry_after)
    return ServerUnavailable("no", server="a", last_failure=failure)


@pytest.mark.parametrize(
    ("error", "health"),
    [
        (OSError(), Health.DOWN),
        (TimeoutError(), Health.DOWN),
        (unavailable(), Health.DOWN),
        (unavailable(status=503), Health.DOWN),
        (unavailable(status=401), Health.NEEDS_AUTHORIZATION),
        (unavailable(status=403), Health.NEEDS_AUTHORIZATION),
        (AuthNeeded("no", server="a"), Health.NEEDS_AUTHORIZATION),
        (CallRejected("no ping", server="a", delivery=Delivery.ANSWERED), Health.HEALTHY),
    ],
)
def test_what_an_error_says_about_health(error: Exception, health: Health):
    assert health_after(error) is health


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit()])
def test_what_ends_the_program_is_no_servers_failure(error: BaseException):
    assert not is_recoverable(error)
    assert is_recoverable(OSError())


BACKOFF = Backoff(first=1.0, cap=8.0)
jitters = st.floats(0, 1, exclude_max=True)


@given(jitters, st.integers(1, 50))
def test_who_is_down_is_tried_less_and_less_often_but_for_ever(jitter: float, tries: int):
    wait = member_retry_delay(ERROR, tries, BACKOFF, slow=60, jitter=jitter)
    assert 0.5 <= wait <= 8
    assert wait <= member_retry_delay(ERROR, tries + 1, BACKOFF, slow=60, jitter=jitter)


@given(jitters)
def test_who_needs_authorization_is_not_tried_in_haste(jitter: float):
    error = AuthNeeded("no", server="a")
    assert 30 <= member_retry_delay(error, 1, BACKOFF, slow=60, jitter=jitter) <= 60


@pytest.mark.parametrize(("wish", "wait"), [(None, 0.5), (0.1, 0.5), (20.0, 20.0), (1e9, 300.0)])
def test_a_server_that_says_when_to_come_back_is_obeyed_within_reason(
    wish: float | None, wait: float
):
    error = unavailable(status=503, retry_after=wish)
    assert member_retry_delay(error, 1, BACKOFF, slow=60, jitter=0) == wait


@given(jitters, st.integers(1, 50))
def test_checks_come_at_the_interval_and_sooner_while_a_server_is_down(jitter: float, misses: int):
    regular = health_check_delay(Health.HEALTHY, 0, BACKOFF, interval=60, jitter=jitter)
    assert 54 <= regular <= 66
    assert health_check_delay(Health.DOWN, misses, BACKOFF, interval=60, jitter=jitter) <= 8
    assert health_check_delay(Health.DOWN, misses, BACKOFF, interval=2, jitter=jitter) <= 2.2
    careful = health_check_delay(
        Health.NEEDS_AUTHORIZATION, misses, BACKOFF, interval=60, jitter=jitter
    )
    assert careful == regular
