"""The short form of `make bench-gateway`: whether it runs, and what it writes.

No limits of time but one that only a mistake exceeds.
"""

import json

import pytest

from benchmarks import gateway


@pytest.mark.timeout(60)
async def test_a_call_through_the_gateway_is_measured() -> None:
    report = await gateway.taken(rounds=1, seconds=0.2, only=["toolkeep"])
    rows = {(row["name"], row["era"]): row for row in report["rows"]}
    assert {name for name, _ in rows} == {"direct", "toolkeep"}
    for (name, _), row in rows.items():
        assert row["calls"] > 0
        assert 0 < row["p50"] <= row["p99"]
        assert ("per_core" in row) == (name == "toolkeep")
    # A response in two packets would wait 40 ms for an acknowledgement.
    assert all(row["p50"] < 30 for row in rows.values())
    assert rows["toolkeep", "legacy"]["rss_idle"] < 300


def test_the_page_says_what_was_measured() -> None:
    report = {
        "about": {"date": "2026-11-19", "processor": "P", "cores": 2, "load": 0.1, "python": "3"},
        "versions": {"toolkeep": "1"},
        "rows": [
            {"name": "direct", "era": "legacy", "p50": 1.0, "p99": 2.0, "rate": 1000.0},
            {
                "name": "toolkeep",
                "era": "legacy",
                "p50": 1.5,
                "p99": 2.5,
                "rate": 900.0,
                "per_core": 2000.0,
                "rss": 80.0,
                "rss_idle": 90.0,
            },
        ],
    }
    table = gateway.table(report).splitlines()
    assert "| direct | legacy | 1.00 ms |  | 2.00 ms | 1,000 |  |  |  |" in table
    row = "| toolkeep 1 | legacy | 1.50 ms | 0.50 ms | 2.50 ms | 900 | 2,000 | 80 MB | 90 MB |"
    assert row in table


def test_the_page_has_the_committed_figures() -> None:
    report = json.loads(gateway.RESULTS.read_text("utf-8"))
    assert gateway.page(report) == gateway.PAGE.read_text("utf-8")
