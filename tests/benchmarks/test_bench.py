"""The short form of `make bench`: everybody runs, and the counts are as claimed. No times.

Those who need an environment of their own are in `make bench QUICK=1` only.
"""

import json
from collections.abc import Iterator

import pytest

from benchmarks import page, quick, recovery, stub, targets
from benchmarks.cells import CELLS
from benchmarks.roster import ROSTER
from benchmarks.stub import Stub
from benchmarks.workers import Remote, worker

HERE = [name for name, each in ROSTER.items() if not each.environment]
OURS = [name for name in recovery.WHO if ROSTER[name].kind == "ours"]


@pytest.fixture(scope="module")
def server() -> Iterator[Stub]:
    with stub.running() as running:
        yield running


@pytest.fixture(scope="module")
def everybody() -> Iterator[Remote]:
    """One process for all: nothing is timed."""
    with worker(HERE[0]) as remote:
        yield remote
        remote.tell(close=True)


@pytest.mark.parametrize("name", HERE)
def test_a_contestant_runs_and_ours_cost_one_request_and_no_socket(
    server: Stub, everybody: Remote, name: str
) -> None:
    rows = list(quick.counts(server, everybody, name))
    assert rows
    assert quick.problems(rows) == []


@pytest.mark.parametrize("name", OURS)
@pytest.mark.requirement("S4")
def test_a_lost_session_costs_one_handshake(server: Stub, everybody: Remote, name: str) -> None:
    assert quick.lost_session(server, everybody, name) == []


def test_everybody_takes_part_in_some_cell() -> None:
    assert {name for cell in CELLS for name in cell.who} == set(ROSTER)


def test_a_figure_that_is_missing_is_no_target_met() -> None:
    nothing = {"calls": [], "opening": {}, "recovery": {}, "imports": {}, "catalogue": {}}
    assert not any(one["holds"] for one in targets.judged(nothing))


def test_the_page_and_the_pictures_say_what_the_committed_figures_say() -> None:
    assert page.stale() == []


def test_the_committed_figures_carry_their_date_and_machine() -> None:
    about = json.loads(page.RESULTS.read_text(encoding="utf-8"))["about"]
    assert all(about[key] for key in ("date", "system", "cores", "python", "versions"))
