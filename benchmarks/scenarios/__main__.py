"""`python -m benchmarks.scenarios ADAPTER [NAME …]`: drive a client, print the verdicts.

Exits with 1 if one of them is `failed`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.scenarios import SCENARIOS, Report, Verdict, run


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scenarios",
        description="Drive an MCP client through troubles, and say what it made of them.",
    )
    parser.add_argument("adapter", help="package.module:Name, or path/to/file.py:Name")
    parser.add_argument("names", nargs="*", help="of scenarios; globs, such as 'lost-*'")
    parser.add_argument("--era", choices=("legacy", "modern"), default="legacy")
    parser.add_argument("--python", default=sys.executable, help="of the client's environment")
    parser.add_argument("--jobs", type=int, default=1, help="scenarios at once")
    parser.add_argument("--json", type=Path, help="a file for the report")
    return parser.parse_intermixed_args()


def _tell(verdict: Verdict) -> None:
    sys.stdout.write(f"{verdict.result:<15}{verdict.scenario:<36}{verdict.evidence}\n")
    sys.stdout.flush()


async def _run(asked: argparse.Namespace) -> Report:
    chosen = [
        each
        for each in SCENARIOS
        if not asked.names or any(fnmatch(each.name, name) for name in asked.names)
    ]
    return await run(
        asked.adapter,
        scenarios=chosen,
        era=asked.era,
        python=asked.python,
        jobs=asked.jobs,
        on_verdict=_tell,
    )


def main() -> int:
    asked = _asked()
    report = asyncio.run(_run(asked))
    if asked.json is not None:
        asked.json.write_text(json.dumps(report.to_json(), indent=1) + "\n", "utf-8")
    failed, passed = len(report.of("failed")), len(report.of("passed"))
    sys.stdout.write(f"{report.client}: {passed} passed, {failed} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
