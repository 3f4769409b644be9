"""Prints the table of `make shape`, and writes it to build/shape/ as Markdown and as JSON."""

import argparse
import json
import platform
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.shape import graph
from benchmarks.shape.operations import OPERATIONS, traces

RESULTS = Path(__file__).parents[2] / "build" / "shape"
TRACE_ROWS = {
    "files": "files touched",
    "lines": "distinct lines run",
    "lines_per_file": "lines run per file",
    "functions": "functions",
    "calls": "function calls",
    "classes": "classes whose methods ran",
    "package_changes": "changes of package",
}
GRAPH_ROWS = {
    "files": "files",
    "lines": "lines",
    "file_lines_median": "lines per file, median",
    "file_lines_p90": "lines per file, 90th percentile",
    "function_lines_median": "lines per function, median",
    "function_lines_p95": "lines per function, 95th percentile",
    "modules": "modules (files but `__init__` and `__main__`)",
    "one_sibling_nested": "imported by one sibling only, in sub-packages",
    "one_sibling": "imported by one sibling only, everywhere",
    "single_child_bases": "base classes with a single child",
    "cut_bases": "of these with no other use, child in another file",
    "classes": "classes",
    "private_classes": "private classes",
    "repeated_class_names": "class names in two or more modules",
}
OF_MODULES = ("one_sibling_nested", "one_sibling")
"""Rows that also show their share of the modules."""
NOTE = """\
Each column counts its own package only: httpx stands on httpcore, mcp on httpx2 and anyio,
toolkeep on aiohttp and mcp-types. Each operation runs warm; an opening is the second of its
process.
A change of package is a function call in another folder than the call before it."""


def report(packages: list[str]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for package in packages:
        root = folder(package)
        columns[package] = {
            "version": version(package),
            "traces": traces(package, root),
            "graph": graph.measure(root),
        }
    return {"python": platform.python_version(), "packages": columns}


def folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{package} is not installed here: run `make shape`, which installs it.")
    return Path(spec.submodule_search_locations[0])


def table(found: dict[str, Any]) -> str:
    """The report as a Markdown table: a row for each measure, a column for each package."""
    columns: dict[str, Any] = found["packages"]
    titles = [f"{package} {column['version']}" for package, column in columns.items()]
    rows = [["", *titles], ["---", *("---:" for _ in titles)]]
    for kind in dict.fromkeys(kind for column in columns.values() for kind in column["traces"]):
        group = [column["traces"].get(kind, {}) for column in columns.values()]
        rows.append([f"**{kind}**", *(shown(trace.get("operation")) for trace in group)])
        rows += [
            [title, *(shown(trace.get(key)) for trace in group)]
            for key, title in TRACE_ROWS.items()
        ]
    rows.append(["**source**", *("" for _ in titles)])
    for key, title in GRAPH_ROWS.items():
        measured = [column["graph"] for column in columns.values()]
        total = "modules" if key in OF_MODULES else None
        rows.append([title, *(shown(each[key], total and each[total]) for each in measured)])
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in padded)


def shown(value: Any, total: int | None = None) -> str:
    if value is None:
        return "–"
    if isinstance(value, dict):
        value = len(value)
    return f"{value} ({value / total:.0%})" if total else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description="The shape of toolkeep beside other packages.")
    parser.add_argument("packages", nargs="*", help=f"of {', '.join(OPERATIONS)}; default: all")
    parser.add_argument("--json", action="store_true", help="print JSON with every counted name")
    given = parser.parse_args()
    if unknown := set(given.packages) - set(OPERATIONS):
        parser.error(f"no operation to trace in {', '.join(sorted(unknown))}")
    found = report(given.packages or list(OPERATIONS))
    data, text = json.dumps(found, indent=1), f"{table(found)}\n\n{NOTE}"
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "shape.json").write_text(data + "\n", encoding="utf-8")
    (RESULTS / "shape.md").write_text(text + "\n", encoding="utf-8")
    print(data if given.json else text)


if __name__ == "__main__":
    main()
