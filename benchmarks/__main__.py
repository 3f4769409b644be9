"""The driver: one run, one report. See the package for how to call it."""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import (
    about,
    calls,
    catalogue,
    gate,
    imports,
    instructions,
    opening,
    page,
    quick,
    recovery,
    stub,
    tables,
    targets,
)
from benchmarks.cells import CELLS
from benchmarks.roster import ROSTER
from benchmarks.workers import ROOT, worker

RESULTS = ROOT / "build" / "bench.json"


def run(turns: int) -> dict[str, Any]:
    """Everything, in an order that keeps what takes turns together."""
    began = time.monotonic()
    report: dict[str, Any] = {"about": {**about.about(), "turns": turns}}
    with stub.running() as server:
        with calls.crew(server) as crew:
            report["calls"] = []
            for row in calls.measure(server, crew, CELLS, turns):
                report["calls"].append(row)
                print(call_line(row), flush=True)
        for part in (opening, recovery, imports, catalogue):
            name = part.__name__.rpartition(".")[2]
            print(f"{name} …", flush=True)
            report[name] = part.measure(server)
            save(report, RESULTS)  # what is measured stays, whatever comes after
        if instructions.available():
            print("instructions …", flush=True)
            report["instructions"] = gate.counted(server)
    report["targets"] = targets.judged(report)
    report["took_s"] = time.monotonic() - began
    return report


def call_line(row: dict[str, Any]) -> str:
    return (
        f"{row['answer']:<5} {row['era']:<6} {row['size']:>7} B {row['in_flight']:>3} in flight"
        f"  {ROSTER[row['contestant']].title:<42} {row['cpu_ms']:>8.3f} ms CPU"
        f" {row['wall_ms']:>8.3f} ms wall {row['connections']:>5.2f} sockets"
        f"  server busy {row['server_busy']:>4.0%}"
    )


def run_quick() -> list[str]:
    """What is not as claimed."""
    rows: list[dict[str, Any]] = []
    wrong: list[str] = []
    with stub.running() as server:
        for environment in dict.fromkeys(each.environment for each in ROSTER.values()):
            names = [name for name, each in ROSTER.items() if each.environment == environment]
            if not ROSTER[names[0]].is_here:
                print(f"{environment} is not made: {', '.join(names)} left out")
                continue
            with worker(names[0], environment) as remote:
                for name in names:
                    for row in quick.counts(server, remote, name):
                        rows.append(row)
                        print(" ".join(str(value) for value in row.values()), flush=True)
                    if name in recovery.WHO and ROSTER[name].kind == "ours":
                        wrong += quick.lost_session(server, remote, name)
                remote.tell(close=True)
    return [*quick.problems(rows), *wrong]


def main() -> None:
    parser = argparse.ArgumentParser(description="What a call costs, side by side.")
    parser.add_argument("--quick", action="store_true", help="whether it runs; no times")
    parser.add_argument("--publish", action="store_true", help="into the repository and its docs")
    parser.add_argument("--turns", type=int, default=calls.TURNS, help="of each contestant")
    given = parser.parse_args()
    if given.quick:
        wrong = run_quick()
        print("\n".join(["Not as claimed:", *wrong]) if wrong else "All counts are as claimed.")
        sys.exit(bool(wrong))
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if given.publish and (why := about.unfit(given.turns, load, cores)):
        parser.error(f"nothing is published: {why}")
    report = run(given.turns)
    save(report, RESULTS)
    if given.publish:
        save(report, page.RESULTS)
        page.write(report)
    print(f"\n{tables.about(report)}")
    for heading, body in tables.sections(report):
        print(f"\n{heading}\n\n{body}")
    missed = [one["what"] for one in report["targets"] if not one["holds"]]
    print("\n" + ("Missed: " + "; ".join(missed) if missed else "Every target holds."))
    sys.exit(bool(missed))


def save(report: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
