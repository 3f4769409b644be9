"""The short form of `make bench`: everybody runs, and the counts are as claimed. No times.

Those who need an environment of their own are in `make bench QUICK=1` only.
"""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchmarks import about, page, quick, recovery, stub, targets
from benchmarks.calls import TURNS
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


def test_a_call_that_is_sent_once_is_taken_off_once(server: Stub, everybody: Remote) -> None:
    everybody.tell(be="sdk")
    found = recovery.one(server, everybody, times=1)
    assert found["error"], "it does not send the call again"
    assert found["requests"] == 0


@pytest.mark.parametrize(
    ("turns", "load", "why"),
    [
        (TURNS, 2.0, ""),
        (TURNS - 1, 0.1, "turns"),
        (TURNS, 2.1, "load"),
    ],
)
def test_figures_of_few_turns_or_of_a_busy_machine_are_not_published(
    turns: int, load: float, why: str
) -> None:
    told = about.unfit(turns, load, cores=2)
    assert why in told
    assert bool(told) == bool(why)


def test_publishing_too_few_turns_is_refused_before_anything_is_measured() -> None:
    command = [sys.executable, "-m", "benchmarks", "--publish", "--turns", "1"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=page.ROOT, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing is published: 1 turns of each are too few" in done.stderr


def test_everybody_takes_part_in_some_cell() -> None:
    assert {name for cell in CELLS for name in cell.who} == set(ROSTER)


def test_a_figure_that_is_missing_is_no_target_met() -> None:
    nothing = {"calls": [], "opening": {}, "recovery": {}, "imports": {}, "catalogue": {}}
    assert not any(one["holds"] for one in targets.judged(nothing))


def test_the_page_and_the_pictures_say_what_the_committed_figures_say() -> None:
    assert page.stale() == []


def test_the_committed_figures_carry_their_date_and_machine() -> None:
    told = json.loads(page.RESULTS.read_text(encoding="utf-8"))["about"]
    assert all(told[key] for key in ("date", "system", "cores", "python", "versions"))
