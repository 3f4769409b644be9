"""Which server works with what: marks on the tests, and the page that is written from them.

A test says what it is about: `proves` names features that it shows to work, `lacks` those that it
shows the server not to offer, `refuses` those that cannot work there and why. `at` names the
server, the transport and the era; it stands on the test or on one of its parameters. Every cell of
the page is one of these marks on a test that passed, and a row with an empty cell is an error: so
nothing is said there by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "reference" / "interop.md"

Feature = Literal[
    "tools",
    "prompts",
    "resources",
    "completion",
    "progress",
    "logging",
    "list changes",
    "cancellation",
    "sampling",
    "elicitation",
    "roots",
]
FEATURES: tuple[Feature, ...] = get_args(Feature)

MARKS = {
    "at(server, way, era)": "the server, transport and era that the test is about",
    "proves(*features)": "what the test shows to work",
    "lacks(*features)": "what the test shows the server not to offer",
    "refuses(why, *features)": "what cannot work there, and why",
}


def at(server: str, way: str, era: str) -> pytest.MarkDecorator:
    return pytest.mark.at(server, way, era)


def proves(*features: Feature) -> pytest.MarkDecorator:
    return pytest.mark.proves(*features)


def lacks(*features: Feature) -> pytest.MarkDecorator:
    return pytest.mark.lacks(*features)


def refuses(why: str, *features: Feature) -> pytest.MarkDecorator:
    return pytest.mark.refuses(why, *features)


@dataclass(frozen=True)
class Cell:
    """One mark of one test."""

    row: tuple[str, str, str]
    feature: str
    says: str
    """`yes`, `–`, or why not."""
    test: str
    """`file.py::function`."""


def cells_of(item: pytest.Item) -> list[Cell]:
    where = item.get_closest_marker("at")
    if where is None:
        return []
    test = f"{item.path.name}::{getattr(item, 'originalname', item.name)}"
    said = [(feature, "yes") for mark in item.iter_markers("proves") for feature in mark.args]
    said += [(feature, "–") for mark in item.iter_markers("lacks") for feature in mark.args]
    said += [
        (feature, mark.args[0])
        for mark in item.iter_markers("refuses")
        for feature in mark.args[1:]
    ]
    server, way, era = where.args
    return [Cell((server, way, era), feature, says, test) for feature, says in said]


Table = dict[tuple[str, str, str], dict[str, Cell]]


def table_of(cells: Iterable[Cell]) -> Table:
    """Of several tests of one thing, the first; a `yes` is stronger than anything else."""
    table: Table = {}
    for cell in sorted(cells, key=lambda cell: cell.says != "yes"):
        table.setdefault(cell.row, {}).setdefault(cell.feature, cell)
    return table


def holes(table: Table) -> list[str]:
    return [
        f"{' '.join(row)}: {feature}"
        for row, cells in table.items()
        for feature in FEATURES
        if feature not in cells
    ]


# --- the page ---------------------------------------------------------------------------------


def page(table: Table, date: str) -> str:
    reasons: dict[str, int] = {}
    lines = [
        "| server | transport | era | " + " | ".join(FEATURES) + " |",
        "|---|---|---|" + "---|" * len(FEATURES),
    ]
    for row in sorted(table):
        shown = (_shown(table[row][feature], reasons) for feature in FEATURES)
        lines.append("| " + " | ".join((*row, *shown)) + " |")
    notes = "\n".join(f"{number}. {why}" for why, number in reasons.items())
    return TEXT.format(
        table="\n".join(lines), notes=notes, date=date, versions=", ".join(versions())
    )


def _shown(cell: Cell, reasons: dict[str, int]) -> str:
    if cell.says == "–":
        return "–"
    file, function = cell.test.split("::")
    link = f'(../../tests/interop/{file} "{function}")'
    if cell.says == "yes":
        return f"[yes]{link}"
    return f"[no, {reasons.setdefault(cell.says, len(reasons) + 1)}]{link}"


def versions() -> Iterable[str]:
    """As they are installed."""
    for name in ("mcp", "fastmcp", "mcp-server-time", "mcp-server-git", "mcp-server-fetch"):
        yield f"{name} {metadata.version(name)}"
    wanted: Mapping[str, Any] = json.loads((HERE / "package.json").read_text("utf-8"))
    for name, version in wanted["dependencies"].items():
        yield f"{name} {version}"


def date_of(text: str) -> str:
    """When the page was last written."""
    return text.partition("Last run: ")[2].partition(",")[0]


TEXT = """\
<!-- Written by tests/interop from the marks of its tests. Run `make interop` again. -->

# Tested servers

What works between `toolkeep.Client` and servers of other projects. Each server is a separate
program. Every "yes" links to a test that passed in the last run; the title of the link is the
name of the test. "–": the server does not offer the feature, which a test has checked.

{table}

{notes}

*Cancellation*: a call is cancelled, and the next call works; with FastMCP, the TypeScript SDK and
fetch the test also checks that the call ended at the server. *List changes*: the client is
notified, and its next list is the new one. HTTP+SSE is the transport of 2024.

Also tested: the server of [the official Python SDK](../../tests/interop/test_official_sdk.py)
in both eras; sessions that [are resumed](../../tests/interop/test_stored_sessions.py), and
that [processes share](../../tests/interop/test_shared_sessions.py), with servers on both SDKs.

Last run: {date}, with {versions}.
"""
