"""A list for people: one line a thing, in aligned columns.

On a terminal the columns share its width. Anywhere else the last one alone is cut, at 80 columns:
what stands before it are names, which somebody may want to copy or to `cut`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mainstay.cli.screen import Screen, one_line

if TYPE_CHECKING:
    from rich.table import Table

GAP = 2
SHORTEST = 20
"""Columns that the last one has left, however long the names are."""

_STYLES = {
    "healthy": "green",
    "down": "red",
    "disabled": "dim",
    "needs authorization": "yellow",
    "needs approval": "yellow",
}


def show(screen: Screen, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    cells = [[one_line(cell) for cell in row] for row in rows]
    if screen.terminal:
        screen.say(_table(heads, cells))
        return
    for text in plain(heads, cells, screen.width):
        screen.say(text)


def plain(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The lines, each without blanks at its end."""
    whole = [list(heads), *rows]
    widths = [max(len(row[column]) for row in whole) for column in range(len(heads) - 1)]
    before = sum(widths) + GAP * len(widths)
    room = max(width - before, SHORTEST)
    return [_line(row, widths, room) for row in whole]


def _line(row: Sequence[str], widths: Sequence[int], room: int) -> str:
    first = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
    return (" " * GAP).join((*first, cut(row[-1], room))).rstrip()


def cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1].rstrip() + "…"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for place, head in enumerate(heads):
        last = place == len(heads) - 1
        # Names are folded rather than cut; what they mean gives way first.
        table.add_column(head, overflow="ellipsis" if last else "fold", no_wrap=last, ratio=None)
    for row in rows:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return table
