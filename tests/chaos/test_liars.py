"""The judge can fail: a runtime that lies is caught, and only where it lied."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chaos.calm import BACK
from chaos.holdings import LEFT
from chaos.judge import (
    CANCELS,
    ENDS,
    HUSHED,
    IN_FORCE,
    NEVER,
    ONCE,
    OWN_ANSWER,
    OWN_HEADERS,
    OWN_PLACE,
    OWN_SESSION,
    SAYS,
)
from chaos.running import soaked
from chaos.soak import EDITED, QUIET, Findings, Limits
from chaos.witness import CAUGHT, ONE_END
from tests.chaos._liar import SEED, Liar

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def caught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Liar, Findings]:
    """One liar, and what was found about it."""
    return asyncio.run(judged(tmp_path_factory.mktemp("lies")))


async def judged(folder: Path) -> tuple[Liar, Findings]:
    liars: list[Liar] = []

    def made(*given: Any, **options: Any) -> Liar:
        liars.append(Liar(*given, **options))
        return liars[-1]

    limits = Limits(600, round=600, grace=5.0, recovery=1.5, closing=1.0)
    try:
        findings, _ = await soaked(SEED, limits, folder, made)
    finally:
        for liar in liars:
            liar.give_back()
    (liar,) = liars
    return liar, findings


def accused(findings: Findings, invariant: str) -> set[int | None]:
    return {broken.number for broken in findings.broken if broken.invariant == invariant}


@pytest.mark.parametrize(
    ("lie", "invariant"),
    [
        ("resends", ONCE),
        ("denies", NEVER),
        ("disguises", OWN_HEADERS),
        ("confuses", OWN_ANSWER),
        ("stays", CANCELS),
        ("hangs", ENDS),
        ("dawdles", ENDS),
        ("tells", HUSHED),
        ("stammers", SAYS),
        ("pretends", SAYS),
        ("misdirects", OWN_PLACE),
    ],
)
def test_each_lie_about_a_call_is_found_out(
    caught: tuple[Liar, Findings], lie: str, invariant: str
):
    liar, findings = caught
    assert liar.told[lie]
    assert liar.told[lie] <= accused(findings, invariant)


@pytest.mark.parametrize(
    "invariant", [OWN_SESSION, IN_FORCE, ONE_END, CAUGHT, QUIET, EDITED, BACK, LEFT]
)
def test_what_is_wrong_with_the_rest_is_found_out(caught: tuple[Liar, Findings], invariant: str):
    assert accused(caught[1], invariant)


@pytest.mark.parametrize(
    ("invariant", "digits"),
    [
        *((NEVER, {1}), (OWN_HEADERS, {2}), (OWN_ANSWER, {4}), (CANCELS, {5})),
        *((ENDS, {6, 8}), (SAYS, {6}), (OWN_PLACE, {7})),
    ],
)
def test_nobody_is_accused_of_a_lie_that_was_not_told(
    caught: tuple[Liar, Findings], invariant: str, digits: set[int]
):
    """Of the others the consequences are wider than the calls that were chosen."""
    numbers = accused(caught[1], invariant)
    assert {number % 10 for number in numbers if number is not None} <= digits


@pytest.mark.parametrize("place", ["a step of", "a line of"], ids=["progress", "a debug line"])
def test_a_token_is_found_wherever_it_is_shown(caught: tuple[Liar, Findings], place: str):
    told = [broken.client for broken in caught[1].broken if broken.invariant == HUSHED]
    assert any(place in words for words in told)


def test_what_was_left_is_named(caught: tuple[Liar, Findings]):
    told = [f"{b.client} {b.ledger}" for b in caught[1].broken if b.invariant == LEFT]
    assert any("tasks" in words for words in told)
    assert any("servers still have of us: {'modern': 1}" in words for words in told)
