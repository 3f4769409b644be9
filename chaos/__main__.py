"""`python -m chaos --calls N --seed S [--seconds T] [--plan] [--json FILE] [--record]`"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from chaos import page, report
from chaos.running import soaked
from chaos.schedule import Schedule
from chaos.soak import Limits


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calls", type=int, help="how many calls; 5000, unless seconds are given")
    parser.add_argument("--seconds", type=float, help="begin no further call after so long")
    parser.add_argument("--plan", action="store_true", help="print the schedule, and do nothing")
    parser.add_argument("--json", type=Path, help="also write what was found to this file")
    parser.add_argument("--record", action="store_true", help="and to results.json and the docs")
    given = parser.parse_args()
    if given.calls is None and given.seconds is None:
        given.calls = 5_000
    return given


def _limits(given: argparse.Namespace) -> Limits:
    """At least a few quiet moments, and not too many."""
    return Limits(given.calls, given.seconds, max(200, min(2_000, (given.calls or 0) // 8)))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    given = _arguments()
    if given.plan:
        for line in Schedule(given.seed).lines(given.calls or 5_000):
            print(line)
        return 0
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        findings, judge = asyncio.run(soaked(given.seed, _limits(given), Path(folder), tell=_tell))
    for line in report.lines(findings, judge, given.seed):
        print(line)
    found = report.as_json(findings, judge, given.seed)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1))
    if given.record:
        page.record(found)
    return 1 if findings.broken else 0


if __name__ == "__main__":
    sys.exit(main())
