"""Puts the committed figures into the docs: tables between two marks, and pictures.

python -m benchmarks.page           write them
python -m benchmarks.page --check   exit 1 if what is there is not what the figures say
"""

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import plot, tables
from benchmarks.workers import ROOT

RESULTS = ROOT / "benchmarks" / "results.json"
PAGE = ROOT / "docs" / "explanation" / "performance.md"
PICTURES = ROOT / "docs" / "pictures"
BEGIN = "<!-- Written by `python -m benchmarks.page` from benchmarks/results.json -->"
END = "<!-- Until here -->"


def drawn(report: dict[str, Any]) -> dict[Path, str]:
    """What each file should hold."""
    text = PAGE.read_text(encoding="utf-8")
    before, begun, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise SystemExit(f"{PAGE.name} has lost its marks")
    page = f"{before}{BEGIN}\n\n{block(report)}\n{END}{after}"
    pictures = {PICTURES / name: text for name, text in plot.pictures(report).items()}
    return {PAGE: page, **pictures}


def block(report: dict[str, Any]) -> str:
    parts = [tables.about(report), ""]
    for heading, body in tables.sections(report):
        parts += [f"### {heading}", "", body, ""]
    return "\n".join(parts)


def stale() -> list[str]:
    """The files that differ from what the committed figures say."""
    found = drawn(json.loads(RESULTS.read_text(encoding="utf-8")))
    return [
        path.name
        for path, text in found.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def write(report: dict[str, Any]) -> None:
    for path, text in drawn(report).items():
        path.write_text(text, encoding="utf-8")


def main() -> None:
    if "--check" in sys.argv:
        for name in (found := stale()):
            print(f"{name} is stale: python -m benchmarks.page")
        sys.exit(bool(found))
    write(json.loads(RESULTS.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
