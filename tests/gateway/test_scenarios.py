"""Troubles of a server, seen through a gateway: the verdicts are those of a direct connection.

The short form of `python -m benchmarks.scenarios`, with the adapter of the gateway.
"""

import pytest

from benchmarks.scenarios import SCENARIOS, run
from benchmarks.scenarios.compare import ADAPTERS

NAMES = [
    *("lost-session", "answer-lost", "half-a-stream", "reset-before-it-ran", "tool-error"),
    *("cancelled-by-its-caller", "progress-as-it-happens", "list-changed"),
]


@pytest.mark.timeout(90)
async def test_a_client_is_told_through_a_gateway_what_it_is_told_directly() -> None:
    chosen = [one for one in SCENARIOS if one.name in NAMES]
    report = await run(f"{ADAPTERS / 'toolkeep_gateway.py'}:Adapter", scenarios=chosen)
    found = {one.scenario: (one.result, one.evidence) for one in report.verdicts}
    assert {name: told for name, told in found.items() if told[0] != "passed"} == {}
    assert len(found) == len(NAMES)
