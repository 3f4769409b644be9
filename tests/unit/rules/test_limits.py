"""Token bucket, backoff and deadline. Over real transports P3 and P4 are proved elsewhere."""

import functools
import math
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep._rules.backoff import MIN_PAUSE, Backoff, Pacer, stream_reopen_delay
from toolkeep._rules.limits import Deadline, TokenBucket, take_tokens

moments = st.floats(min_value=0, max_value=1e6)
seconds = st.floats(min_value=0, max_value=1e4)
jitters = st.floats(min_value=0, max_value=1, exclude_max=True)


@pytest.mark.requirement("P4")
@given(
    capacity=st.integers(0, 20),
    per_second=st.floats(0, 10),
    waits=st.lists(st.floats(0, 5), max_size=60),
)
def test_a_bucket_grants_no_more_than_its_capacity_and_rate(capacity, per_second, waits):
    bucket, now, granted = TokenBucket(capacity, per_second), 100.0, 0
    for wait in waits:
        now += wait
        granted += bucket.take(now)
        assert granted <= capacity + per_second * (now - 100.0) + 1e-6


@given(capacity=st.floats(0, 20), per_second=st.floats(0, 10), times=st.lists(moments))
def test_a_bucket_stays_between_empty_and_full_whatever_the_clock_does(capacity, per_second, times):
    bucket = TokenBucket(capacity, per_second)
    for now in times:
        assert 0 <= bucket.available(now) <= capacity
        bucket.take(now)


def test_a_bucket_starts_full_empties_and_refills():
    bucket = TokenBucket(2, per_second=0.5)
    assert [bucket.take(0), bucket.take(0), bucket.take(0)] == [True, True, False]
    assert bucket.available(2) == 1
    assert [bucket.take(2), bucket.take(2)] == [True, False]
    assert bucket.available(1e9) == 2
    assert repr(bucket) == "<TokenBucket 0 of 2, 0.5/s>"


def test_ten_refills_of_a_tenth_are_one_token():
    assert functools.reduce(operator.add, [0.1] * 10) < 1  # `sum` rounds once, from Python 3.12 on
    bucket = TokenBucket(1, per_second=0.1)
    assert bucket.take(0)
    assert [bucket.take(step) for step in range(1, 11)] == [False] * 9 + [True]


def test_a_clock_that_goes_back_gives_no_tokens_twice():
    bucket = TokenBucket(1, per_second=1)
    assert bucket.take(10)
    assert not bucket.take(5)
    assert not bucket.take(10)
    assert bucket.take(11)


@pytest.mark.parametrize(("capacity", "per_second"), [(-1, 1), (1, -1)])
def test_a_bucket_of_less_than_nothing_is_refused(capacity, per_second):
    with pytest.raises(ValueError):
        TokenBucket(capacity, per_second)


@pytest.mark.requirement("P4")
@given(attempt=st.integers(1, 100_000), jitter=jitters)
def test_a_delay_is_between_half_and_all_of_its_capped_exponential(attempt, jitter):
    backoff = Backoff()
    full = min(10.0, 0.2 * 2.0 ** min(attempt - 1, 100))
    assert full / 2 <= backoff.delay(attempt, jitter) <= full


@given(attempt=st.integers(1, 200), jitter=jitters, factor=st.floats(1, 1e6))
def test_delays_never_shrink_from_attempt_to_attempt_and_never_pass_the_cap(
    attempt, jitter, factor
):
    backoff = Backoff(first=0.1, factor=factor, cap=7)
    assert backoff.delay(attempt, jitter) <= backoff.delay(attempt + 1, jitter) <= 7


def test_the_ten_thousandth_attempt_waits_as_long_as_the_cap():
    assert Backoff().delay(10_000, 0.0) == 5.0


def test_attempts_before_the_first_count_as_the_first():
    assert Backoff().delay(0, 0.5) == Backoff().delay(1, 0.5) == pytest.approx(0.15)


def test_a_backoff_can_be_none_at_all():
    assert Backoff(first=0).delay(10_000, 0.9) == 0
    assert Backoff(cap=0).delay(3, 0.9) == 0


@pytest.mark.parametrize("wrong", [{"first": -1}, {"factor": 0.5}, {"cap": -1}])
def test_a_backoff_that_shrinks_or_is_negative_is_refused(wrong):
    with pytest.raises(ValueError):
        Backoff(**wrong)


deadlines = st.builds(Deadline, st.none() | moments, st.none() | moments)


@given(deadline=deadlines, now=moments)
def test_a_deadline_has_passed_exactly_when_nothing_remains(deadline, now):
    assert deadline.has_passed(now) == (deadline.remaining(now) == 0)
    assert deadline.remaining(now) >= 0


@pytest.mark.requirement("P3")
@given(deadline=deadlines, now=moments, by=seconds)
def test_progress_never_shortens_a_deadline_never_beats_its_cap_and_revives_nothing(
    deadline, now, by
):
    later = deadline.extended(now, by)
    assert later.remaining(now) >= deadline.remaining(now)
    assert later.has_passed(now) == deadline.has_passed(now)
    assert later.cap == deadline.cap
    if later.at is not None and later.cap is not None:
        assert later.at <= later.cap


def test_no_deadline_never_passes():
    never = Deadline(None, cap=5)
    assert never.remaining(1e9) == math.inf
    assert not never.has_passed(1e9)
    assert never.extended(1e9, 1) is never


def test_progress_extends_up_to_the_cap():
    deadline = Deadline(10, cap=25)
    assert deadline.extended(8, 10) == Deadline(18, 25)
    assert deadline.extended(8, 100) == Deadline(25, 25)
    assert deadline.extended(8, 1) == deadline
    assert Deadline(10).extended(8, 100) == Deadline(108)
    assert deadline.extended(10, 100) == deadline


def test_a_cap_before_the_deadline_is_the_deadline():
    assert Deadline(30, cap=20).at == 20


def test_a_clock_that_stood_still_moves_the_deadline_no_further_than_its_cap():
    assert Deadline(10, cap=20).shifted(5) == Deadline(15, cap=20)
    assert Deadline(10, cap=12).shifted(5) == Deadline(12, cap=12)
    assert Deadline(10).shifted(5) == Deadline(15)
    assert Deadline(None).shifted(5) == Deadline(None)


# -- what a server can have us do ---------------------------------------------------------------


@given(wish=seconds, short=st.integers(0, 10**6), empty=st.integers(0, 10**6))
def test_no_pause_before_a_stream_is_shorter_than_the_floor_or_the_wish(wish, short, empty):
    assert stream_reopen_delay(wish, short=short, empty=empty) >= max(wish, MIN_PAUSE)


def test_streams_that_end_at_once_raise_the_floor_to_a_second_and_no_further():
    pauses = [stream_reopen_delay(0.0, short=short, empty=0) for short in range(7)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0])


def test_streams_without_a_message_double_the_pause():
    assert [stream_reopen_delay(1.0, short=0, empty=empty) for empty in range(4)] == [1, 2, 4, 8]


@given(
    longest=st.floats(0.1, 60),
    triggers=st.lists(st.floats(0, 0.01), min_size=1, max_size=200),
)
def test_work_that_is_caused_without_end_is_paced(longest, triggers):
    pace, now, waits = Pacer(longest), 100.0, []
    for gap in triggers:
        now += gap
        waits.append(pace.delay(now))
        now += waits[-1]
        pace.mark_done(now)
    assert waits[0] == 0
    assert max(waits) <= longest
    assert waits == sorted(waits)
    assert len(waits) < 20 or waits[-1] == longest


def test_after_a_quiet_time_work_is_done_at_once_again():
    pace = Pacer(5.0)
    pace.mark_done(100.0)
    pace.mark_done(100.0)
    assert pace.delay(104.9) > 0
    assert pace.delay(105.1) == 0


@pytest.mark.requirement("D1")
@given(
    rate=st.floats(0.01, 100),
    burst=st.floats(1, 50),
    waits=st.lists(st.floats(0, 5), max_size=60),
)
def test_a_shared_bucket_never_gives_more_than_its_burst_and_its_rate(rate, burst, waits):
    now, full_at, taken = 1e9, 0.0, 0
    for wait in waits:
        now += wait
        full_at, refused = take_tokens(full_at, now, rate=rate, burst=burst, cost=1)
        taken += not refused
    assert taken <= burst + (now - 1e9) * rate + len(waits) * rate * 1e-6 + 1e-6


def test_a_shared_bucket_says_how_long_and_then_gives():
    full_at, wait = take_tokens(0, 100, rate=2, burst=2, cost=2)
    assert (full_at, wait) == (101, 0)
    full_at, wait = take_tokens(full_at, 100, rate=2, burst=2, cost=1)
    assert (full_at, wait) == (101, 0.5)
    assert take_tokens(full_at, 100.5, rate=2, burst=2, cost=1) == (101.5, 0)


def test_a_clock_that_was_set_back_costs_a_shared_bucket_one_burst_at_most():
    assert take_tokens(5000, 100, rate=2, burst=4, cost=1) == (102, 0.5)
