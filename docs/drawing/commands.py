"""The command line, drawn from the commands themselves: what they say to `--help` is what is here.

What several commands share is described once. The exit codes are the table in `cli/errors.py`, and
drawing fails when that table and the codes in it differ.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from textwrap import fill
from typing import Any

import typer
from typer.main import get_command

from toolkeep.cli import errors
from toolkeep.cli.app import app

WIDTH = 120
HEADING = "<!-- Written by docs/generate.py from the code. Change the code, then run it again. -->"
SHARED = 3
"""Commands that have to have an option before it is described once for all of them."""
CODES = (errors.OK, errors.FAILED, errors.USAGE, errors.UNKNOWN, errors.INTERRUPTED)

INTRO = (
    "The extra `cli` installs the command `toolkeep`; `python -m toolkeep` is the same. Every"
    " command has `--help`. Results go to standard output, notes and errors to standard error."
    " Where standard output is not a terminal, nothing is coloured, cut or wrapped. `--json` is for"
    ' programs; a command that fails prints `{"error": {…}}`.'
)

Described = tuple[str, str]
"""An argument or an option, and what it means."""


class Command:
    """One command, as it would be typed."""

    def __init__(self, name: str, command: Any) -> None:
        self.name = name
        self._command = command
        self._context = typer.Context(command, info_name=name)

    @property
    def usage(self) -> str:
        return " ".join((self.name, *self._command.collect_usage_pieces(self._context)))

    @property
    def paragraphs(self) -> list[str]:
        """Of what it says of itself; examples stand in a block of their own."""
        parts = (self._command.help or "").split("\n\n")
        return [block(one[2:]) if one.startswith("\b\n") else prose(one) for one in parts]

    @property
    def first(self) -> str:
        return " ".join(self.paragraphs[0].split())

    def arguments(self) -> list[Described]:
        return list(self._described("argument"))

    def options(self) -> list[Described]:
        return list(self._described("option"))

    def _described(self, kind: str) -> Iterator[Described]:
        for param in self._command.params:
            record = param.get_help_record(self._context)
            if param.param_type_name == kind and record is not None:
                name = re.sub(r" <.*>$", "", record[0]) if kind == "argument" else record[0]
                yield name, plainly(" ".join(record[1].split()))


def every(command: Any, name: str) -> Iterator[Command]:
    """This one and all below it, in the order of `--help`."""
    yield Command(name, command)
    for word, inner in getattr(command, "commands", {}).items():
        yield from every(inner, f"{name} {word}")


def page() -> str:
    whole, *commands = every(get_command(app), "toolkeep")
    counted = Counter(option for one in commands for option in one.options())
    shared = {option: None for option, times in counted.items() if times >= SHARED}
    parts = [
        "# The command line",
        HEADING,
        wrapped(INTRO),
        block(whole.usage),
        "\n".join(f"- [`{one.name}`](#{anchor(one)}): {one.first}" for one in commands),
        "## Exit codes",
        exit_codes(),
        "## Options of several commands",
        "Each command below names those that it has.",
        table("option", list(shared)),
        "## Options of `toolkeep` itself",
        table("option", whole.options()),
        *(part for one in commands for part in section(one, list(shared))),
    ]
    return "\n\n".join(parts) + "\n"


def section(one: Command, shared: list[Described]) -> Iterator[str]:
    yield f"## {one.name}"
    yield block(one.usage)
    yield from one.paragraphs
    if arguments := one.arguments():
        yield table("argument", arguments)
    own = [option for option in one.options() if option not in shared]
    if own:
        yield table("option", own)
    if also := [option for option in one.options() if option in shared]:
        names = ", ".join(f"`{longest(names)}`" for names, _ in also)
        yield wrapped(f"Also: {names}.")


def exit_codes() -> str:
    """The table of the module that ends every command."""
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", inspect.getdoc(errors) or "", re.MULTILINE)
    if tuple(int(code) for code, _ in rows) != CODES:
        raise ValueError("the table of exit codes in cli/errors.py is not that of its codes")
    return table("code", rows)


def table(head: str, rows: list[Described]) -> str:
    lines = (f"| `{in_cell(name)}` | {in_cell(escaped(said))} |" for name, said in rows)
    return "\n".join((f"| {head} | |", "|---|---|", *lines))


def prose(text: str) -> str:
    return wrapped(escaped(" ".join(text.split())))


def block(text: str) -> str:
    return f"```text\n{text.strip()}\n```"


def wrapped(text: str) -> str:
    return fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def longest(names: str) -> str:
    """`-c, --config FILE` is known as `--config`."""
    return next(word for word in re.split(r"[ ,]+", names) if word.startswith("--"))


def plainly(text: str) -> str:
    """`[default: 10; x>=1]` in words."""
    said, bracket, rest = text.rpartition(" [")
    if not bracket or not rest.endswith("]"):
        return text
    return f"{said} ({rest[:-1].replace('x>=', 'at least ')})"


def anchor(one: Command) -> str:
    return one.name.replace(" ", "-")


def escaped(text: str) -> str:
    """What Markdown would take for its own. What is in backticks is left alone."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*_<\[\]$])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def in_cell(text: str) -> str:
    return text.replace("|", "\\|")


PAGES = {"reference/command-line.md": page}
