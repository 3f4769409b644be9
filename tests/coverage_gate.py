"""The coverage gate: fails when a floor of the house is measured below what it owes.

Reads the report of `coverage json`. Lines and branches are held to the same figure, because a
line that never runs is the same gap whether or not an `if` stands before it.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

FLOORS = {
    "_rules": 100.0,
    "_transport": 94.0,
    "_client": 95.0,
    "client.py": 90.0,
    "group.py": 95.0,
    "_catalogue": 94.0,
    "_runtime": 85.0,
    "code_mode": 94.0,
}
"""Least per cent of the lines, and of the branches, of each package or module."""

SHOWN_GAPS = 10


@dataclass(frozen=True)
class Gap:
    """What one file leaves unmeasured."""

    path: str
    lines: list[int]
    branches: list[list[int]]

    def __str__(self) -> str:
        lines = ", ".join(map(str, self.lines[:SHOWN_GAPS])) or "none"
        branches = ", ".join(f"{a}->{b}" for a, b in self.branches[:SHOWN_GAPS]) or "none"
        return f"    {self.path}: lines {lines}; branches {branches}"


@dataclass(frozen=True)
class Measured:
    """The sums over one package."""

    lines: tuple[int, int]
    branches: tuple[int, int]
    gaps: list[Gap]

    def meets(self, least: float) -> bool:
        return all(100.0 * got >= least * all_ for got, all_ in (self.lines, self.branches))

    def __str__(self) -> str:
        return ", ".join(
            f"{100.0 * got / (all_ or 1) if all_ else 100.0:.1f}% of {all_} {what}"
            for (got, all_), what in ((self.lines, "lines"), (self.branches, "branches"))
        )


def files_of(package: str, report: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, file in report["files"].items():
        if ("toolkeep", package) in zip(
            PurePath(path).parts, PurePath(path).parts[1:], strict=False
        ):
            yield path, file


def measure(package: str, report: dict[str, Any]) -> Measured | None:
    files = dict(files_of(package, report))
    if not files:
        return None
    totals = [file["summary"] for file in files.values()]
    return Measured(
        lines=(sum(t["covered_lines"] for t in totals), sum(t["num_statements"] for t in totals)),
        branches=(
            sum(t["covered_branches"] for t in totals),
            sum(t["num_branches"] for t in totals),
        ),
        gaps=[
            Gap(path, file["missing_lines"], file["missing_branches"])
            for path, file in sorted(files.items())
            if file["missing_lines"] or file["missing_branches"]
        ],
    )


def main(report_path: str) -> int:
    report = json.loads(Path(report_path).read_text(encoding="utf-8"))
    passed = True
    for package, least in FLOORS.items():
        measured = measure(package, report)
        ok = measured is not None and measured.meets(least)
        passed = passed and ok
        print(f"coverage {'ok  ' if ok else 'FAIL'} {package} (at least {least:g}%): ", end="")
        print(measured if measured is not None else "nothing of it was measured")
        if measured is not None and not ok:
            print("\n".join(map(str, measured.gaps)))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "coverage.json"))
