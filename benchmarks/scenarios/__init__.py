"""Troubles that any MCP client can be driven through, and verdicts on what it made of them.

    from benchmarks.scenarios import run

    report = asyncio.run(run("my_adapter.py:Adapter"))
    print(report)

An `Adapter` of some twenty lines says how a client is opened, called and closed. It runs in a
process of its own; the servers, which misbehave on purpose, live in this one. Each verdict is drawn
from what the server saw: how often a tool ran, what was sent, who was cancelled.
"""

from benchmarks.scenarios._driver import Told, Turn
from benchmarks.scenarios._running import SCENARIOS, run
from benchmarks.scenarios.adapter import Adapter, OnProgress
from benchmarks.scenarios.report import Report, Verdict, table
from benchmarks.scenarios.scenario import Scenario, scenario
from benchmarks.scenarios.stage import Broken, NotApplicable, Stage

__all__ = [
    "SCENARIOS",
    "Adapter",
    "Broken",
    "NotApplicable",
    "OnProgress",
    "Report",
    "Scenario",
    "Stage",
    "Told",
    "Turn",
    "Verdict",
    "run",
    "scenario",
    "table",
]
