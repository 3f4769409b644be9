"""What a dialect makes of a document: servers in our words, each value with its place.

Pure, and without judgement about values: `settle` expands and checks them. Mistakes are collected,
so that the first one in the file can be told, with the number of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkeep.config.configuration import Origin
from toolkeep.errors import ConfigError

Steps = tuple[str | int, ...]
"""The way to a value: keys and indices, from the outermost."""


@dataclass(frozen=True, slots=True)
class Document:
    """One source, parsed."""

    value: Any = field(repr=False)
    file: str | None = None
    """As it is shown to people."""
    lines: Mapping[Steps, int] = field(default_factory=dict[Steps, int], repr=False)
    folder: Path = Path()
    """What the products' `${workspaceFolder}` means."""
    path: Path | None = None
    found: bool = False
    """Whether nobody named it."""

    def origin(self, steps: Steps, how: str = "") -> Origin:
        """Of the value there, or of the nearest thing around it whose line is known."""
        around = (steps[:end] for end in range(len(steps), -1, -1))
        line = next((self.lines[near] for near in around if near in self.lines), None)
        return Origin(self.file, line, how)


def same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of a server."""

    key: str
    """In our words, dotted: `timeouts.call`."""
    value: Any = field(repr=False)
    written: str
    """In the words of whoever wrote it."""
    origin: Origin
    steps: Steps = ()
    convert: Callable[[Any], Any] = same
    """From the dialect's unit or vocabulary; applied when variables are expanded."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One server, as written."""

    name: str | None
    settings: tuple[Setting, ...]
    origin: Origin
    spell: Callable[[str], str] = same
    """How this dialect would write a key that is missing."""
    fine: bool = True
    """Whether all of its keys are understood. Otherwise it is checked, and not used."""


@dataclass(frozen=True, slots=True)
class Input:
    """A value that the file leaves to whoever loads it, as in VS Code's `inputs`."""

    id: str
    description: str = ""
    password: bool = False
    default: str | None = field(default=None, repr=False)
    options: tuple[str, ...] = ()


MOST = 1000
"""Mistakes that are counted. A file with more is no configuration."""


@dataclass(slots=True)
class Mistakes:
    """Lives while one source is read."""

    found: list[tuple[int, ConfigError]] = field(default_factory=list[tuple[int, ConfigError]])
    whole: bool = False
    """Whether one of them is no single server's: nothing of the source can be used then."""
    _told: set[str] = field(default_factory=set[str])
    """A default that is wrong is wrong for every server, and told once."""

    def add(
        self,
        problem: str,
        *,
        remedy: str,
        origin: Origin,
        server: str | None = None,
        key: str | None = None,
        of_one_server: bool = False,
    ) -> None:
        """`of_one_server`: other servers can do without it, even if it has no name to tell."""
        self.whole = self.whole or not (of_one_server or server)
        if len(self.found) >= MOST:
            return
        error = ConfigError(
            problem, remedy=remedy, server=server, key=key, file=origin.place or None
        )
        if str(error) not in self._told:
            self._told.add(str(error))
            self.found.append((origin.line or 0, error))

    def check(self) -> None:
        """Raises the first in the order of the file, if there is one."""
        if self.found:
            raise _first_of([error for _, error in self.in_order])

    @property
    def in_order(self) -> list[tuple[int, ConfigError]]:
        return sorted(self.found, key=lambda one: one[0])

    def by_server(self) -> tuple[ConfigError, ...]:
        """One for each server that cannot be used."""
        servers: dict[object, list[ConfigError]] = {}
        for number, (_, error) in enumerate(self.in_order):
            servers.setdefault(error.server or number, []).append(error)
        return tuple(_first_of(errors) for errors in servers.values())


def _first_of(errors: list[ConfigError]) -> ConfigError:
    first, more = errors[0], len(errors) - 1
    said = f"{first.problem} (and {more} more)" if more else first.problem
    return ConfigError(
        said, remedy=first.remedy, server=first.server, key=first.key, file=first.file
    )


@dataclass(slots=True)
class Draft:
    """What one dialect made of one document."""

    document: Document
    entries: list[Entry] = field(default_factory=list[Entry])
    defaults: list[Setting] = field(default_factory=list[Setting])
    inputs: dict[str, Input] = field(default_factory=dict[str, Input])
    of_an_editor: bool = False
    """Whether it may say `${workspaceFolder}` and the like."""
    warnings: list[str] = field(default_factory=list[str])
    mistakes: Mistakes = field(default_factory=Mistakes)
    off: str = ""
    """Why nothing of it is to be opened."""

    def warn(self, text: str, origin: Origin, server: str | None = None) -> None:
        place = [str(origin) if origin != Origin() else "", f"server {server!r}" if server else ""]
        where = ", ".join(part for part in place if part)
        self.warnings.append(f"{where}: {text}" if where else text)
