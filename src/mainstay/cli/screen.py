"""Where a command says things: people's words and one JSON document on standard output, notes on
standard error.

What a server sent is shown, never obeyed: signs that a terminal would act on are spelled out.
Where standard output is no terminal there is no colour, no frame and no moving cursor.
"""

from __future__ import annotations

import json as json_
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDTH = 80
"""Columns, where there is no terminal to ask."""


class Screen:
    """One for each run of a command."""

    def __init__(self, json: bool = False) -> None:
        self.json = json
        self._consoles: dict[bool, Console] = {}

    @property
    def terminal(self) -> bool:
        """Whether a person looks at standard output."""
        return sys.stdout.isatty()

    @property
    def width(self) -> int:
        return self.console.width if self.terminal else WIDTH

    def say(self, what: RenderableType = "") -> None:
        """For people; nothing with `--json`."""
        if self.json:
            return
        if isinstance(what, str):
            self.write(what + "\n")
        else:
            self.console.print(what)

    def give(self, value: Any) -> None:
        """For programs; nothing without `--json`."""
        if self.json:
            text = json_.dumps(value, ensure_ascii=False, indent=2, default=str)
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def note(self, text: str) -> None:
        """Beside the point, on standard error; also with `--json`."""
        sys.stdout.flush()
        sys.stderr.write(harmless(text) + "\n" if sys.stderr.isatty() else text + "\n")
        sys.stderr.flush()

    def write(self, text: str) -> None:
        """Text as it is; on a terminal without what it would obey."""
        sys.stdout.write(harmless(text) if self.terminal else text)
        sys.stdout.flush()

    @property
    def console(self) -> Console:
        return self._console(stderr=False)

    @property
    def side(self) -> Console:
        """Standard error's."""
        return self._console(stderr=True)

    def _console(self, *, stderr: bool) -> Console:
        if stderr not in self._consoles:
            self._consoles[stderr] = _made(sys.stderr if stderr else sys.stdout)
        return self._consoles[stderr]


def _made(stream: TextIO) -> Console:
    """rich itself knows NO_COLOR, FORCE_COLOR and TERM."""
    from rich.console import Console

    width = None if stream.isatty() else WIDTH
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def harmless(text: str) -> str:
    """Without signs that a terminal obeys, or that turn its lines round."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else _spelled(one) for one in text)


def _spelled(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")


def one_line(text: str) -> str:
    """The first line that says something, for lists."""
    return next((harmless(line).strip() for line in text.splitlines() if line.strip()), "")
