"""What a failed probe says about a server's era, over the whole space of failures."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep._rules.classify import ProbeVerdict, probe_timeout, probe_verdict, supported_versions
from toolkeep.errors import Delivery, Failure, FailureKind

MODERN = ("2026-07-28", "2027-01-01")
LEGACY = ("2024-11-05", "2025-11-25")
OUTAGES = {
    FailureKind.UNREACHABLE,
    FailureKind.UNAUTHORIZED,
    FailureKind.THROTTLED,
    FailureKind.BROKEN,
}

NAMED = [
    ({"supported": ["2026-07-28"]}, ProbeVerdict.OTHER_VERSION),
    ({"supported": ["2024-11-05", "2027-01-01"]}, ProbeVerdict.OTHER_VERSION),
    ({"supported": ["3000-01-01", "2027-01-01"], "requested": "x"}, ProbeVerdict.OTHER_VERSION),
    ({"supported": ["2025-11-25"]}, ProbeVerdict.LEGACY),
    ({"supported": ["3000-01-01", "2024-11-05"]}, ProbeVerdict.LEGACY),
    ({"supported": ["3000-01-01"]}, ProbeVerdict.UNSUPPORTED),
    ({"supported": []}, ProbeVerdict.LEGACY),
    ({"supported": "2026-07-28"}, ProbeVerdict.LEGACY),
    ({"supported": None}, ProbeVerdict.LEGACY),
    ({"supported": [None, 20260728, ["2026-07-28"]]}, ProbeVerdict.LEGACY),
    ({"supported": [7, "2026-07-28"]}, ProbeVerdict.OTHER_VERSION),
    ({}, ProbeVerdict.LEGACY),
    (None, ProbeVerdict.LEGACY),
    (["2026-07-28"], ProbeVerdict.LEGACY),
    ("2026-07-28", ProbeVerdict.LEGACY),
]


def judged(kind: FailureKind, delivery: Delivery, data: object = None) -> ProbeVerdict:
    failure = Failure(kind, delivery, "a probe", data=data)
    return probe_verdict(failure, modern=MODERN, legacy=LEGACY)


SPACE = list(itertools.product(FailureKind, Delivery, [data for data, _ in NAMED]))


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind in OUTAGES])
def test_an_outage_is_never_a_verdict(kind: FailureKind):
    judgements = {judged(k, delivery, data) for k, delivery, data in SPACE if k is kind}
    assert judgements == {ProbeVerdict.OUTAGE}


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind not in OUTAGES])
def test_any_other_answer_is_a_verdict(kind: FailureKind):
    judgements = {judged(k, delivery, data) for k, delivery, data in SPACE if k is kind}
    if kind is FailureKind.VERSION_MISMATCH:
        assert judgements == set(ProbeVerdict) - {ProbeVerdict.OUTAGE}
    else:
        assert judgements == {ProbeVerdict.LEGACY}


@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize(("data", "expected"), NAMED)
def test_a_version_mismatch_is_judged_by_the_versions_it_names(data, expected, delivery):
    assert judged(FailureKind.VERSION_MISMATCH, delivery, data) is expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("supported"), inner),
)


@given(JSON)
def test_whatever_a_server_names_its_versions_are_texts(data):
    failure = Failure(FailureKind.VERSION_MISMATCH, Delivery.ANSWERED, "", data=data)
    assert all(isinstance(version, str) for version in supported_versions(failure.data))
    assert probe_verdict(failure, modern=MODERN, legacy=LEGACY) in ProbeVerdict


@pytest.mark.parametrize(
    ("budget", "bound"), [(30.0, 3.0), (9.0, 3.0), (8.7, 2.9), (3.0, 1.0), (0.3, 0.1)]
)
def test_a_probe_may_take_a_third_of_the_opening_and_three_seconds_at_most(budget, bound):
    assert probe_timeout(budget) == pytest.approx(bound)
