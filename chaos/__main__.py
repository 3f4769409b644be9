"""`python -m chaos --calls N --seed S [--seconds T] [--plan] [--json FILE]`"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from pathlib import Path

from chaos import report
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
    given = parser.parse_args()
    if given.calls is None and given.seconds is None:
        given.calls = 5_000
    return given


def _limits(given: argparse.Namespace) -> Limits:
    """At least a few quiet moments, and not too many."""
    if given.calls is None:
        return Limits(None, given.seconds, 2_000)
    return Limits(given.calls, given.seconds, max(200, min(5_000, given.calls // 5)))


def main() -> int:
    given = _arguments()
    if given.plan:
        for line in Schedule(given.seed).lines(given.calls or 5_000):
            print(line)
        return 0
    logging.getLogger("mainstay").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        findings, judge = asyncio.run(soaked(given.seed, _limits(given), Path(folder)))
    for line in report.lines(findings, judge, given.seed):
        print(line)
    if given.json is not None:
        given.json.write_text(json.dumps(report.as_json(findings, judge, given.seed), indent=1))
    return 1 if findings.broken else 0


if __name__ == "__main__":
    sys.exit(main())
