"""How the demo is drawn: plain lines into a log; in colour, with a bar that moves, on a terminal.

The only module of the demo that knows rich, which may be missing: then a terminal is a log, too.
Nothing is wider than 80 columns, and what the output's encoding lacks is not used.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import textwrap
from collections.abc import Callable, Generator, Sequence
from typing import IO, TYPE_CHECKING

from examples.demo.claims import Claim
from toolkeep._version import __version__

if TYPE_CHECKING:
    from rich.console import Console

Step = Callable[[float, str], None]

WIDTH = 80
BAR = 30
_MARGIN = "    "


class Screen:
    """Line by line. Lives as long as one run of the demo."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        rich_in_signs = _can_write(out, "✓✗█░")
        self._yes, self._no = ("✓", "✗") if rich_in_signs else ("ok", "NO")
        self._full, self._empty = ("█", "░") if rich_in_signs else ("#", "-")

    # -- what there is to say -------------------------------------------------------------------

    def opening(self) -> None:
        self._line(f"toolkeep {__version__}: three servers, and what a client does for its callers")
        self._line(
            "Requests and runs are counted by the servers, which are processes of their own."
        )

    def act(self, number: int, title: str) -> None:
        self._put("", "")
        self._put(f"{number:>2}  {title}", "bold")

    def say(self, text: str) -> None:
        self._line(text, _MARGIN)

    def claims(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        for claim in claims:
            if claim.holds:
                sign = f"{_MARGIN}{self._yes} "
                self._line(claim.told, sign, "green", styled=len(sign))
            else:
                differed = f"{claim.told} -- promised {claim.promised!r}, seen {claim.seen!r}"
                self._line(differed, f"{_MARGIN}{self._no} ", "bold red")
        return claims

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Texts to the left; what begins with a digit stands under its digits."""
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        for row, style in [(head, "dim"), *((row, "") for row in rows)]:
            cells = (_aligned(cell, width) for cell, width in zip(row, widths, strict=True))
            self._put(f"{_MARGIN}{'  '.join(cells)}".rstrip(), style)

    @contextlib.contextmanager
    def bar(self) -> Generator[Step]:
        """For one watched call: how far it is, and what it says of itself."""
        yield self._step

    def closing(self, *, held: int, made: int) -> None:
        self._put("", "")
        self._put(f"{held} of {made} claims held.", "bold green" if held == made else "bold red")

    # -- drawing --------------------------------------------------------------------------------

    def _step(self, fraction: float, message: str) -> None:
        done = round(fraction * BAR)
        drawn = f"{self._full * done}{self._empty * (BAR - done)}"
        self._put(f"{_MARGIN}{drawn} {fraction:4.0%}  {message}", "")

    def _line(
        self, text: str, indent: str = "", style: str = "", *, styled: int | None = None
    ) -> None:
        """One paragraph, wrapped; further lines stand under the text."""
        for part in textwrap.wrap(text, WIDTH - len(indent)):
            self._put(f"{indent}{part}", style, styled)
            indent = " " * len(indent)

    def _put(self, line: str, style: str, styled: int | None = None) -> None:
        """`styled`: only so many characters are in this style."""
        print(line, file=self._out, flush=True)


class Painted(Screen):
    """On rich's console."""

    def __init__(self, console: Console) -> None:
        super().__init__(console.file)
        self._console = console

    @contextlib.contextmanager
    def bar(self) -> Generator[Step]:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        columns = (
            TextColumn("   "),
            BarColumn(BAR),
            TaskProgressColumn(),
            TextColumn("{task.description}"),
        )
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task("", total=1.0)

            def step(fraction: float, message: str) -> None:
                progress.update(task, completed=fraction, description=message)

            yield step

    def _put(self, line: str, style: str, styled: int | None = None) -> None:
        from rich.text import Text

        text = Text(line)
        text.stylize(style, 0, styled)
        self._console.print(text, soft_wrap=True)


def screen_for(out: IO[str]) -> Screen:
    """The best that this output can show."""
    if not out.isatty() or os.environ.get("TERM") == "dumb" or not _has_rich():
        return Screen(out)
    from rich.console import Console

    return Painted(Console(file=out, width=WIDTH))


def _has_rich() -> bool:
    return importlib.util.find_spec("rich") is not None


def _aligned(cell: str, width: int) -> str:
    return cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width)


def _can_write(out: IO[str], text: str) -> bool:
    try:
        text.encode(getattr(out, "encoding", None) or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
