"""The short form of `make chaos`: the whole world, for as long as a test may take."""

import json
from pathlib import Path

import pytest

from chaos import report
from chaos.running import soaked
from chaos.soak import Limits

SEED = 2026
SECONDS = 40.0
FEWEST = 500
"""Calls; on a machine with nothing else to do there are ten times as many. The patience is for one
that has much to do: what hangs, hangs for longer.
"""


@pytest.mark.timeout(300)
@pytest.mark.requirement("P1", "P2", "P5", "S9", "S14", "H3", "H4", "H6", "G6", "L1")
async def test_no_invariant_breaks_in_a_world_full_of_trouble(tmp_path: Path):
    limits = Limits(None, SECONDS, round=300, grace=20.0, recovery=60.0, closing=30.0)
    findings, judge = await soaked(SEED, limits, tmp_path)
    told = "\n".join(report.lines(findings, judge, SEED))
    assert not findings.broken, told
    assert findings.calls >= FEWEST, told
    assert sum(findings.troubles.values()) >= FEWEST / 60, told
    assert json.loads(json.dumps(report.as_json(findings, judge, SEED)))["broken"] == []
