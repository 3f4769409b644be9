"""Where a command writes: its results to standard output, its notes to standard error.

What a server sent is escaped before a terminal sees it: control characters and marks that change
the direction of text are spelled out. Where standard output is not a terminal, nothing is
coloured, cut or wrapped.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

Row = Sequence[str]

DEFAULT_WIDTH = 80
"""Columns of a terminal whose size is unknown."""
PIPE_WIDTH = 1_000_000
"""Columns given to rich where standard output is not a terminal: too many to cut or wrap a line."""
COLUMN_GAP = 2
COLUMN_MIN = 12
"""Columns below which a table's column is not folded."""
LAST_COLUMN_MIN = 20
"""Columns that a table's last column keeps before the other columns are folded."""

STATUS_STYLES = {
    "healthy": "green",
    "down": "red",
    "disabled": "dim",
    "needs authorization": "yellow",
    "needs approval": "yellow",
}
"""Cells of a table that are coloured on a terminal."""


class Output:
    """The streams of one run of a command."""

    def __init__(self, json: bool = False) -> None:
        self.json = json
        """With `--json`: one document for programs, and no text for people."""
        self._consoles: dict[TextIO, Console] = {}

    @property
    def is_terminal(self) -> bool:
        return sys.stdout.isatty()

    @property
    def can_redraw(self) -> bool:
        """Whether standard error is a terminal on which a line can be overwritten."""
        return sys.stderr.isatty() and not self.error_console.is_dumb_terminal

    @property
    def console(self) -> Console:
        return self._console(sys.stdout)

    @property
    def error_console(self) -> Console:
        return self._console(sys.stderr)

    def _console(self, stream: TextIO) -> Console:
        if stream not in self._consoles:
            width = None if stream.isatty() else PIPE_WIDTH
            self._consoles[stream] = make_console(stream, width)
        return self._consoles[stream]

    # -- for people -----------------------------------------------------------------------------

    def print(self, what: RenderableType = "") -> None:
        """Print text or something that rich renders. Does nothing with `--json`."""
        if self.json:
            return
        if isinstance(what, str):
            self.write(what + "\n")
        elif self.is_terminal:
            self.console.print(what)
        else:
            with self.console.capture() as captured:
                self.console.print(what)
            self.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))

    def print_wrapped(self, text: str) -> None:
        """Print sentences, wrapped on a terminal. Does nothing with `--json`."""
        self.print(wrap_for(sys.stdout, text))

    def print_table(self, headers: Row, rows: Sequence[Row], *, cut_last: bool = True) -> None:
        """Print one line for each row. On a terminal, the last column is cut to fit, and the
        others are folded; without `cut_last` the last one is folded, too."""
        if self.json or not rows:
            return
        if not self.is_terminal:
            self.print(make_table(headers, rows, cut_last=False, whole=True))
        elif fits(headers, rows, self.console.width):
            self.console.print(make_table(headers, rows, cut_last=cut_last))
        else:
            # Folded columns would be too narrow to read: let the terminal break the lines.
            table = make_table(headers, rows, cut_last=False)
            make_console(sys.stdout, PIPE_WIDTH).print(table)

    def write(self, text: str) -> None:
        """Write text as it is, escaped if a terminal reads it; also with `--json`."""
        sys.stdout.write(escape(text) if self.is_terminal else text)
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Print to standard error; also with `--json`."""
        sys.stdout.flush()
        write_error(wrap_for(sys.stderr, text))

    # -- for programs ---------------------------------------------------------------------------

    def print_json(self, value: Any) -> None:
        """Print the document of `--json`. Does nothing without it."""
        if self.json:
            sys.stdout.write(to_json(value) + "\n")
            sys.stdout.flush()


def make_console(stream: TextIO, width: int | None) -> Console:
    """A console that prints text as it is. FORCE_COLOR is ignored in a pipe."""
    from rich.console import Console

    return Console(
        file=stream,
        width=width,
        force_terminal=None if stream.isatty() else False,
        markup=False,
        highlight=False,
        emoji=False,
    )


def fits(headers: Row, rows: Sequence[Row], width: int) -> bool:
    """Whether a table has room in this width with readable columns."""
    from rich.cells import cell_len

    natural = [max(map(cell_len, column)) for column in zip(headers, *rows, strict=True)]
    *others, last = natural
    least = sum(min(one, COLUMN_MIN) for one in others) + min(last, LAST_COLUMN_MIN)
    return least + COLUMN_GAP * len(others) <= width


def make_table(headers: Row, rows: Sequence[Row], *, cut_last: bool, whole: bool = False) -> Table:
    """A table without lines. With `cut_last` it takes a terminal's whole width. `whole`: all lines
    of a cell, joined; otherwise its first one."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    shown = one_line if whole else first_line
    cells = [[shown(cell) for cell in row] for row in rows]
    table = Table(
        box=None,
        expand=cut_last,
        header_style="bold",
        pad_edge=False,
        padding=(0, COLUMN_GAP, 0, 0),
        show_header=any(headers),
    )
    for header in headers[:-1] if cut_last else headers:
        table.add_column(header, overflow="fold")
    if cut_last:
        widest = max(cell_len(row[-1]) for row in (headers, *cells))
        # For a column with a ratio, rich takes `width` as the least that it gets.
        least = min(widest, LAST_COLUMN_MIN)
        table.add_column(headers[-1], no_wrap=True, overflow="ellipsis", ratio=1, width=least)
    for row in cells:
        table.add_row(*(Text(cell, style=STATUS_STYLES.get(cell, "")) for cell in row))
    return table


def to_json(value: Any) -> str:
    """A JSON document for standard output; on a terminal, control characters are escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    if sys.stdout.isatty() and escape(text) != text:
        return json.dumps(value, indent=2, default=str)
    return text


def wrap_for(stream: TextIO, text: str) -> str:
    """Escaped and wrapped between words for a terminal; unchanged for anything else."""
    if not stream.isatty():
        return text
    try:
        width = os.get_terminal_size(stream.fileno()).columns or DEFAULT_WIDTH
    except OSError:
        width = DEFAULT_WIDTH
    return "\n".join(_wrap(line, width) for line in escape(text).split("\n"))


def _wrap(line: str, width: int) -> str:
    """Further lines are indented two columns more. Words that do not fit are left whole."""
    if len(line) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(
        line,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def escape(text: str) -> str:
    """The text with everything spelled out that a terminal would act on."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode("ascii")
        for one in text
    )


def first_line(text: str) -> str:
    """The first line that is not blank, escaped; for a cell of a table."""
    return next((escape(line).strip() for line in text.splitlines() if line.strip()), "")


def one_line(text: str) -> str:
    """All lines, joined and escaped; for a cell of a table that a program reads."""
    return " ".join(escape(line) for line in map(str.strip, text.splitlines()) if line)


def write_error(text: str) -> None:
    """Print to standard error. A closed pipe is ignored: the command goes on to its end."""
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Send what is still to be written there to the null device, so that exiting is silent."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def replace_unencodable() -> None:
    """Spell out characters that the streams' encoding lacks: a server may send anything."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
