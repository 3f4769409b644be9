"""The page in the docs says what is checked, and what the recorded soaks found."""

from chaos import calm, holdings, judge, page, soak, witness
from chaos.soak import ENOUGH

ALL = (
    *judge.OF_CALLS,
    *(calm.BACK, holdings.GROWS, holdings.LEFT, witness.ONE_END, witness.CAUGHT),
    *(soak.QUIET, soak.EDITED, soak.USEFUL, soak.INJECTED),
)


def test_the_page_lists_every_invariant():
    listed = [line[2:] for line in page.PAGE.read_text("utf-8").splitlines()]
    assert [invariant for invariant in ALL if invariant not in listed] == []


def test_the_page_shows_what_was_recorded():
    assert page.main(["--check"]) == 0, "run: python -m chaos.page"


def test_what_was_recorded_is_three_soaks_that_had_every_fault_and_broke_nothing():
    runs = page.recorded()
    assert len({run["seed"] for run in runs}) == len(runs) >= 3
    for run in runs:
        assert run["broken"] == []
        assert run["calls"] >= ENOUGH


def test_other_results_make_another_page():
    runs = page.recorded()
    text = page.PAGE.read_text("utf-8")
    assert page.drawn(text, runs) == text
    assert page.drawn(text, [{**runs[0], "broken": ["a lie"]}]) != text
