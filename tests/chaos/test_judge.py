"""The verdict by itself: statements and lines of journals in, broken invariants out."""

from collections.abc import Callable
from typing import Any

import pytest

from chaos.judge import (
    AT_MOST,
    CALM,
    ENDS,
    IN_FORCE,
    NEVER,
    ONCE,
    OWN_HEADERS,
    OWN_PLACE,
    OWN_SESSION,
    SAYS,
    Judge,
    Said,
)
from chaos.scene import EDITION, MOST_RUNS, token
from chaos.schedule import Schedule, Step

SCHEDULE = Schedule(1)


def step_with(wanted: Callable[[Step], bool], nth: int = 0) -> Step:
    found = [step for n in range(5_000) if wanted(step := SCHEDULE.step(n))]
    return found[nth]


PAY = step_with(lambda s: (s.server, s.tool, s.principal) == ("legacy", "pay", "ada"))
LOOK = step_with(lambda s: (s.server, s.tool, s.principal) == ("legacy", "look", "ada"))
GUESTS = step_with(lambda s: (s.server, s.tool, s.principal) == ("guest", "look", "ada"))
VISITORS = step_with(lambda s: (s.server, s.tool, s.principal) == ("visitor", "pay", "ada"))


def line(step: Step, *, session: str = "s", **headers: str) -> list[Any]:
    own = {"authorization": token(step.principal, step.rotation), EDITION: "0"}
    return ["ran", str(step.number), step.tool, session, {**own, **headers}]


def judged(step: Step, said: Said, runs: int) -> list[str]:
    """What is broken after a call that said so, and ran so often."""
    judge = Judge(SCHEDULE)
    judge.begins(step.number, 0)
    judge.ends(step.number, said, "", 0)
    for _ in range(runs):
        assert not list(judge.reads(step.server, line(step)))
    return [broken.invariant for broken in judge.verdict()]


@pytest.mark.parametrize(
    ("step", "said", "fine", "invariant"),
    [
        (PAY, Said.COMPLETED, {1}, ONCE),
        (LOOK, Said.COMPLETED, {1, 2, 3, 4}, ONCE),
        (GUESTS, Said.COMPLETED, {1}, ONCE),  # its settings forbid what the marks allow
        (VISITORS, Said.COMPLETED, {1, 2, 3, 4}, ONCE),  # and here they allow it without
        (PAY, Said.NOT_RUN, {0}, NEVER),
        (LOOK, Said.NOT_RUN, {0}, NEVER),
        (PAY, Said.UNKNOWN, {0, 1}, AT_MOST),
        (LOOK, Said.UNKNOWN, {0, 1, 2, 3, 4}, AT_MOST),
        (PAY, Said.CANCELLED, {0, 1}, AT_MOST),
        (PAY, Said.ANSWERED, {0, 1}, AT_MOST),
        (PAY, Said.NOTHING, set[int](), ENDS),
        (PAY, Said.NONSENSE, set[int](), SAYS),
    ],
)
def test_what_is_said_and_how_often_it_ran(step: Step, said: Said, fine: set[int], invariant: str):
    for runs in range(MOST_RUNS + 3):
        assert judged(step, said, runs) == ([] if runs in fine else [invariant])


def test_a_run_that_comes_long_after_the_verdict_is_found_and_each_finding_told_once():
    judge = Judge(SCHEDULE)
    judge.begins(PAY.number, 0)
    judge.ends(PAY.number, Said.NOT_RUN, "refused", 0)
    assert not list(judge.verdict())
    judge.forget_the_innocent()
    list(judge.reads(PAY.server, line(PAY)))
    (broken,) = judge.verdict()
    assert (broken.invariant, broken.number) == (NEVER, PAY.number)
    list(judge.reads(PAY.server, line(PAY)))
    assert not list(judge.verdict())


def test_headers_of_somebody_else_and_of_no_edition_in_force():
    judge = Judge(SCHEDULE)
    judge.begins(PAY.number, 2)
    judge.ends(PAY.number, Said.COMPLETED, "", 3)

    def read(**headers: str) -> list[str]:
        ran = line(PAY, **{EDITION: "2", **headers})
        return [broken.invariant for broken in judge.reads(PAY.server, ran)]

    assert read() == read(**{EDITION: "3"}) == []
    assert read(authorization=token("ben", PAY.rotation)) == [OWN_HEADERS]
    assert read(authorization=token("ada", PAY.rotation + 1)) == [OWN_HEADERS]
    assert read(authorization="") == [OWN_HEADERS]
    assert read(**{EDITION: "1"}) == read(**{EDITION: "4"}) == [IN_FORCE]


def test_a_call_without_identity_carries_none():
    step = step_with(lambda s: s.server == "modern" and s.principal == "")
    judge = Judge(SCHEDULE)
    judge.begins(step.number, 0)
    ran = line(step)
    (broken,) = judge.reads(step.server, ran)
    assert broken.invariant == OWN_HEADERS
    del ran[4]["authorization"]
    assert not list(judge.reads(step.server, ran))


def test_one_session_for_two_principals():
    other = step_with(lambda s: (s.server, s.tool, s.principal) == ("legacy", "pay", "ben"))
    judge = Judge(SCHEDULE)
    for step in (PAY, other):
        judge.begins(step.number, 0)
    assert not list(judge.reads("legacy", line(PAY, session="one")))
    assert not list(judge.reads("legacy", line(other, session="another")))
    for _ in range(2):
        (broken,) = judge.reads("legacy", line(other, session="one"))
        assert (broken.invariant, broken.number) == (OWN_SESSION, other.number)
        judge.forget_the_innocent()


def test_one_process_for_two_principals_but_its_id_may_come_again():
    adas, bens = (
        step_with(lambda s, who=who: (s.server, s.tool, s.principal) == ("pipe", "pay", who))
        for who in ("ada", "ben")
    )
    judge = Judge(SCHEDULE)
    for step in (adas, bens):
        judge.begins(step.number, 0)
    assert not list(judge.reads("pipe", line(adas, session="4711")))
    (broken,) = judge.reads("pipe", line(bens, session="4711"))
    assert (broken.invariant, broken.number) == (OWN_SESSION, bens.number)
    judge.forget_the_innocent()
    assert not list(judge.reads("pipe", line(bens, session="4711")))


def test_a_call_that_runs_elsewhere_or_as_something_else():
    judge = Judge(SCHEDULE)
    judge.begins(PAY.number, 0)
    (broken,) = judge.reads("twin", line(PAY))
    assert broken.invariant == OWN_PLACE
    _, *rest = line(PAY)
    (broken,) = judge.reads("legacy", ["ran", rest[0], "look", *rest[2:]])
    assert broken.invariant == OWN_PLACE


def test_wishes_are_counted_by_their_fault_and_calm_calls_are_not_judged():
    judge = Judge(SCHEDULE)
    step = step_with(lambda s: s.fault == "reset after it ran")
    judge.begins(step.number, 0)
    assert not list(judge.reads(step.server, ["behaviour", str(step.number)]))
    assert judge.granted == {"reset after it ran": 1}
    assert not list(judge.reads("legacy", ["ran", f"{CALM} 1 of ada", "look", None, {}]))
