"""The circuit breaker. Over real transports P9 is proved elsewhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from toolkeep._rules.breaker import Breaker, BreakerHint, BreakerPermit, BreakerState

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def opened(threshold: int = 2, at: float = 0.0) -> Breaker:
    breaker = Breaker(threshold, cooldown=1.0, factor=2.0, max_cooldown=3.0)
    for _ in range(threshold):
        breaker.record(False, at)
    return breaker


@pytest.mark.requirement("P9")
def test_a_run_of_faults_opens_one_probe_passes_and_its_success_closes():
    breaker = opened()
    assert breaker.state is OPEN
    assert breaker.admit(0.25) == BreakerPermit(allowed=False, wait=0.75)
    assert breaker.admit(1.0) == BreakerPermit(allowed=True, probe=True)
    assert breaker.state is HALF_OPEN
    assert breaker.admit(1.0) == BreakerPermit(allowed=False, wait=1.0)
    breaker.record(True, 1.5, probe=True)
    assert breaker.state is CLOSED
    assert breaker.admit(1.5) == BreakerPermit(allowed=True)


def test_a_success_between_faults_starts_the_count_anew():
    breaker = Breaker(3)
    for success in (False, False, True, False, False):
        breaker.record(success, 0)
    assert breaker.state is CLOSED
    breaker.record(False, 0)
    assert breaker.state is OPEN


def test_a_failed_probe_waits_longer_up_to_the_longest_and_a_success_starts_anew():
    breaker, now, waits = opened(), 1.0, []
    for _ in range(3):
        assert breaker.admit(now).probe
        breaker.record(False, now, probe=True)
        waits.append(breaker.admit(now).wait)
        now += waits[-1]
    assert waits == [2.0, 3.0, 3.0]
    assert breaker.admit(now).probe
    breaker.record(True, now, probe=True)
    for _ in range(2):
        breaker.record(False, now)
    assert breaker.admit(now).wait == 1.0


def test_a_hint_opens_a_breaker_for_as_long_as_the_other_and_closes_it():
    other, breaker = opened(at=5.0), Breaker(2, cooldown=1.0, max_cooldown=3.0)
    breaker.hear(other.hint(5.25), 100.0)
    assert breaker.admit(100.0) == BreakerPermit(allowed=False, wait=0.75)
    breaker.hear(BreakerHint(), 100.25)
    assert breaker.admit(100.25) == BreakerPermit(allowed=True)


def test_the_hint_of_a_closed_breaker_closes_others():
    breaker = opened()
    breaker.hear(Breaker(2).hint(0.5), 0.5)
    assert breaker.admit(0.5).allowed


def test_a_hint_is_ignored_after_a_success_since_the_faults_of_the_other_began():
    breaker = Breaker(2, cooldown=1.0)
    breaker.record(True, 98.0)
    breaker.hear(BreakerHint(wait=1.0, cooldown=1.0, failing=3.0), 100.0)
    assert breaker.state is CLOSED
    breaker.hear(BreakerHint(wait=1.0, cooldown=1.0, failing=1.0), 100.0)
    assert breaker.state is OPEN


def test_a_hint_never_closes_a_probe_early_nor_lasts_longer_than_the_longest_cooldown():
    breaker = opened()
    assert breaker.admit(1.0).probe
    breaker.hear(BreakerHint(wait=2.0, cooldown=2.0), 1.0)
    assert breaker.state is HALF_OPEN
    breaker.cancel(probe=True)
    breaker.hear(BreakerHint(wait=1e9, cooldown=1e9), 1.0)
    assert breaker.admit(1.0).wait == 3.0


def test_a_breaker_that_is_off_hears_nothing():
    breaker = Breaker(0)
    breaker.hear(BreakerHint(wait=1.0, cooldown=1.0), 0.0)
    assert breaker.admit(0.0).allowed


def test_a_probe_that_another_process_makes_is_put_off_for_a_cooldown():
    breaker = opened()
    assert breaker.admit(1.0).probe
    assert breaker.defer(1.0) == BreakerPermit(allowed=False, wait=1.0)
    assert not breaker.admit(1.9).allowed
    assert breaker.admit(2.0).probe


def test_a_probe_that_a_hint_has_ended_meanwhile_leaves_the_breaker_closed():
    breaker = opened()
    assert breaker.admit(1.0).probe
    breaker.hear(BreakerHint(), 1.0)
    assert not breaker.defer(1.0).allowed
    assert breaker.admit(1.0).allowed


def test_asking_whether_a_call_would_pass_takes_no_probe():
    breaker = opened()
    assert Breaker(2).would_admit(0.0)
    assert not breaker.would_admit(0.9)
    assert breaker.would_admit(1.0)
    assert breaker.admit(1.0).probe
    assert not breaker.would_admit(1.0)


def test_late_failures_do_not_prolong_the_cooldown():
    breaker = opened()
    breaker.record(False, 0.9)
    assert breaker.admit(1.0).probe


def test_a_late_success_ends_the_cooldown_but_only_a_probe_closes():
    breaker = opened()
    breaker.record(True, 0.1)
    assert breaker.state is OPEN
    assert breaker.admit(0.1).probe


@pytest.mark.parametrize("success", [True, False])
def test_while_the_probe_is_out_other_results_decide_nothing(success: bool):
    breaker = opened()
    assert breaker.admit(1.0).probe
    breaker.record(success, 1.0)
    assert breaker.state is HALF_OPEN


def test_after_an_abandoned_probe_the_next_call_probes():
    breaker = opened()
    assert breaker.admit(1.0).probe
    breaker.cancel(probe=False)
    assert not breaker.admit(1.0).allowed
    breaker.cancel(probe=True)
    assert breaker.admit(1.0).probe


def test_abandoning_means_nothing_when_no_probe_is_out():
    breaker = Breaker()
    breaker.cancel(probe=True)
    assert breaker.state is CLOSED


def test_a_probe_that_is_reported_twice_counts_once():
    breaker = opened()
    assert breaker.admit(1.0).probe
    breaker.record(True, 1.0, probe=True)
    breaker.record(False, 1.0, probe=True)
    assert breaker.state is CLOSED


@given(threshold=st.sampled_from([0, None]), results=st.lists(st.booleans(), max_size=50))
def test_switched_off_it_always_admits(threshold, results):
    breaker = Breaker(threshold)
    for now, success in enumerate(results):
        breaker.record(success, now)
        assert breaker.admit(now) == BreakerPermit(allowed=True)


def test_its_repr_tells_its_state():
    assert repr(Breaker(3)) == "<Breaker closed, faults 0/3>"
    assert repr(opened()) == "<Breaker open, faults 2/2>"
    assert repr(Breaker(None)) == "<Breaker closed, faults 0/off>"


@pytest.mark.parametrize(
    "wrong",
    [{"threshold": -1}, {"cooldown": 0}, {"factor": 0.5}, {"cooldown": 5, "max_cooldown": 4}],
)
def test_settings_without_sense_are_refused(wrong):
    with pytest.raises(ValueError):
        Breaker(**wrong)


class BreakerInUse(RuleBasedStateMachine):
    """Calls come and go in any order, each reported once."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(3, cooldown=1.0, factor=2.0, max_cooldown=8.0)
        self.now = 0.0
        self.running: list[BreakerPermit] = []

    @rule(wait=st.floats(0, 10))
    def time_passes(self, wait: float) -> None:
        self.now += wait

    @rule()
    def a_call_asks(self) -> None:
        before = self.breaker.state
        admission = self.breaker.admit(self.now)
        if admission.allowed:
            assert admission.probe == (before is OPEN)
            self.running.append(admission)
        else:
            assert 0 < admission.wait <= 8.0

    @precondition(lambda self: self.running)
    @rule(data=st.data(), success=st.booleans())
    def a_call_ends(self, data: st.DataObject, success: bool) -> None:
        self.breaker.record(success, self.now, self.take(data).probe)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_call_is_cancelled(self, data: st.DataObject) -> None:
        self.breaker.cancel(self.take(data).probe)

    @precondition(lambda self: not any(admission.probe for admission in self.running))
    @rule()
    def after_the_longest_cooldown_a_call_passes(self) -> None:
        self.now += 8.0
        admission = self.breaker.admit(self.now)
        assert admission.allowed
        self.running.append(admission)

    @invariant()
    def there_is_one_probe_exactly_when_half_open(self) -> None:
        probes = sum(admission.probe for admission in self.running)
        assert probes == (self.breaker.state is HALF_OPEN)

    def take(self, data: st.DataObject) -> BreakerPermit:
        return self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))


TestBreakerInUse = BreakerInUse.TestCase
