"""A list for people: one line a thing, in aligned columns.

On a terminal the columns share its width: what things mean is cut first, and names are folded,
never cut. Anywhere else the last column alone is cut, at 80: what stands before it are names, which
somebody may want to copy or to `cut`. Widths are columns on a screen, of which 日 has two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkeep.cli.screen import Screen, one_line

if TYPE_CHECKING:
    from rich.table import Table

GAP = 2
SHORTEST = 20
"""Columns that the last one keeps, however long the names are."""
FOLDED = 12
"""Columns below which nothing is folded."""

_STYLES = {
    "healthy": "green",
    "down": "red",
    "disabled": "dim",
    "needs authorization": "yellow",
    "needs approval": "yellow",
}


def show(screen: Screen, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if screen.json or not rows:
        return
    cells = [[one_line(cell) for cell in row] for row in rows]
    if screen.terminal and fits(heads, cells, screen.width):
        screen.say(table(heads, cells, screen.width))
        return
    for text in plain(heads, cells, screen.width):
        screen.say(text)


def plain(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The lines, each without blanks at its end."""
    whole = [list(heads), *rows]
    widths = _natural(whole)[:-1]
    room = max(width - sum(widths) - GAP * len(widths), SHORTEST)
    return [_line(row, widths, room) for row in whole]


def _line(row: Sequence[str], widths: Sequence[int], room: int) -> str:
    from rich.cells import set_cell_size

    first = (set_cell_size(cell, width) for cell, width in zip(row, widths, strict=False))
    return (" " * GAP).join((*first, cut(row[-1], room))).rstrip()


def cut(text: str, room: int) -> str:
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= room else set_cell_size(text, room - 1).rstrip() + "…"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """For a terminal as wide as this."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    widths = fitted(_natural([heads, *rows]), width)
    for head, room in zip(heads, widths, strict=True):
        made.add_column(head, overflow="fold", width=room)
    for row in rows:
        texts = (*row[:-1], cut(row[-1], widths[-1]))
        made.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in texts))
    return made


def fits(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether folding helps: what is as narrow as a telephone breaks the lines itself."""
    widths = fitted(_natural([heads, *rows]), width)
    return sum(widths) + GAP * (len(widths) - 1) <= width


def fitted(natural: Sequence[int], width: int) -> list[int]:
    """The last gives way first, then the widest of the others, as far as they can."""
    widths = list(natural)
    over = sum(widths) + GAP * (len(widths) - 1) - width
    others = sorted(range(len(widths) - 1), key=widths.__getitem__, reverse=True)
    for column, least in ((len(widths) - 1, SHORTEST), *((one, FOLDED) for one in others)):
        given = min(max(over, 0), max(widths[column] - least, 0))
        widths[column] -= given
        over -= given
    return widths


def _natural(rows: Sequence[Sequence[str]]) -> list[int]:
    from rich.cells import cell_len

    return [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
