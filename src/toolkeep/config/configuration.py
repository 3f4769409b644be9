"""`Configuration`: what a user configured, as a whole, with where each value came from.

Frozen, and free of secrets in whatever is shown of it. Made by `loading`; compared here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from toolkeep.config.frozen import FrozenDict
from toolkeep.config.redact import HIDDEN, redact_args
from toolkeep.config.spec import ServerSpec
from toolkeep.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: `mcp.json:12`, `environment MCP_SERVER_X_URL`."""

    file: str | None = None
    line: int | None = None
    how: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.file and self.line else self.file or ""

    def __str__(self) -> str:
        if self.how.startswith("default of "):
            return self.how
        return " ".join(part for part in (self.place, self.how) if part) or "given in Python"


@dataclass(frozen=True, slots=True)
class Pending:
    """A program that nobody has approved yet."""

    spec: ServerSpec = field(repr=False)
    digest: str
    """Of the command, its arguments, its directory and its environment."""
    origin: Origin
    written: tuple[str, ...] = field(default=(), repr=False)
    """The command and its arguments as the file has them, with nothing expanded."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def shown(self) -> str:
        """The command line, for the person who decides, after the names of what is set for it.

        As written, so that no variable's value is in it. A literal that sounds secret is hidden,
        but never one that a shell could obey: `key=1; rm -rf ~` is no key. Whatever a terminal
        would obey, or turn round, is spelled out.
        """
        set_ = [f"{name}={HIDDEN}" for name in self.spec.env]
        hidden = zip(self.written, redact_args(self.written), strict=True)
        parts = [part if _SHELL & set(part) else shown for part, shown in hidden]
        return " ".join(_plainly(part) for part in (*set_, *parts))


_SHELL = frozenset("$;&|<>()`\\\n")


def _plainly(text: str) -> str:
    if not text.isprintable():
        return ascii(text)
    return text if text and " " not in text else repr(text)


Origins = Mapping[str, Mapping[str, Origin]]


@dataclass(frozen=True, slots=True)
class Configuration:
    """Who reads it may hold it for ever: another edit makes another one."""

    servers: tuple[ServerSpec, ...] = ()
    """Those that may be opened, in the order in which they were written."""
    disabled: Mapping[str, str] = field(default_factory=FrozenDict[str])
    """Names of the others, each with the reason."""
    needs_approval: tuple[Pending, ...] = ()
    """Programs of a file that was found, not named. They are not among `servers`."""
    set_aside: tuple[ConfigError, ...] = ()
    """Why the others that were written cannot be used: one error for each, which names it."""
    origins: Origins = field(default_factory=FrozenDict[Mapping[str, Origin]], repr=False)
    """For each server and each of its keys, in our words."""
    warnings: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    """All that was read, or looked for beside a server."""
    order: tuple[str, ...] = field(default=(), repr=False)
    """The names of all that was written, whatever became of it."""

    def __contains__(self, name: object) -> bool:
        return any(spec.name == name for spec in self.servers)

    def __getitem__(self, name: str) -> ServerSpec:
        for spec in self.servers:
            if spec.name == name:
                return spec
        raise KeyError(name)

    def in_order(self, specs: Iterable[ServerSpec]) -> tuple[ServerSpec, ...]:
        places = {name: place for place, name in enumerate(self.order)}
        return tuple(sorted(specs, key=lambda spec: places.get(spec.name, len(places))))


@dataclass(frozen=True, slots=True)
class Difference:
    """What a new configuration asks for, beside what is there. False if nothing."""

    configuration: Configuration
    """The new one."""
    added: tuple[ServerSpec, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[ServerSpec, ...] = ()
    """As they are now."""
    unchanged: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def difference(old: Configuration, new: Configuration) -> Difference:
    """Servers are the same if all that can be said about them is equal. One whose entry was set
    aside in the new configuration stays as it was in the old one."""
    new = _keeping(old, new)
    before = {spec.name: spec for spec in old.servers}
    after = {spec.name for spec in new.servers}
    return Difference(
        configuration=new,
        added=tuple(spec for spec in new.servers if spec.name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(s for s in new.servers if s.name in before and before[s.name] != s),
        unchanged=tuple(s.name for s in new.servers if before.get(s.name) == s),
    )


def _keeping(old: Configuration, new: Configuration) -> Configuration:
    aside = {error.server for error in new.set_aside}
    kept = tuple(spec for spec in old.servers if spec.name in aside and spec.name not in new)
    if not kept:
        return new
    order = (*new.order, *(spec.name for spec in kept if spec.name not in new.order))
    whole = replace(new, order=order)
    return replace(whole, servers=whole.in_order((*new.servers, *kept)))
