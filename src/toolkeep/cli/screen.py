"""Where a command says things: people's words and one JSON document on standard output, notes on
standard error.

What a server sent is shown, never obeyed: signs that a terminal would act on are spelled out.
Where standard output is no terminal there is no colour, no frame and no moving cursor.
"""

from __future__ import annotations

import json as json_
import os
import sys
import textwrap
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
            sys.stdout.write(document(value) + "\n")
            sys.stdout.flush()

    def note(self, text: str) -> None:
        """Beside the point, on standard error; also with `--json`."""
        sys.stdout.flush()
        beside(fit_for(sys.stderr, text))

    def tell(self, text: str) -> None:
        """A sentence of ours, for people: folded to a terminal's width."""
        self.say(fit_for(sys.stdout, text))

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

    @property
    def can_redraw(self) -> bool:
        """Whether standard error is a terminal on which a line can be written over."""
        return sys.stderr.isatty() and not self.side.is_dumb_terminal

    def _console(self, *, stderr: bool) -> Console:
        if stderr not in self._consoles:
            self._consoles[stderr] = _made(sys.stderr if stderr else sys.stdout)
        return self._consoles[stderr]


def beside(text: str) -> None:
    """On standard error. That nobody reads it changes nothing: a call goes on to its end."""
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        nobody_reads(sys.stderr)


def nobody_reads(stream: TextIO) -> None:
    """What is still to be written there goes nowhere, and complains to nobody."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _made(stream: TextIO) -> Console:
    """rich itself knows NO_COLOR, FORCE_COLOR and TERM."""
    from rich.console import Console

    width = None if stream.isatty() else WIDTH
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def document(value: Any) -> str:
    """As JSON for standard output; on a terminal, what it would obey is escaped as JSON does it."""
    text = json_.dumps(value, ensure_ascii=False, indent=2, default=str)
    if sys.stdout.isatty() and harmless(text) != text:
        return json_.dumps(value, indent=2, default=str)
    return text


def fit_for(stream: TextIO, text: str) -> str:
    """For a terminal: folded between words, and harmless. For anything else: as it is."""
    if not stream.isatty():
        return text
    try:
        width = os.get_terminal_size(stream.fileno()).columns or WIDTH
    except OSError:
        width = WIDTH
    return "\n".join(_folded(line, width) for line in harmless(text).split("\n"))


def _folded(line: str, width: int) -> str:
    """Its further lines stand two columns further in. What is no sentence is left as it is."""
    if len(line) <= width:
        return line
    inset = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(
        line,
        width,
        subsequent_indent=inset,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


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
