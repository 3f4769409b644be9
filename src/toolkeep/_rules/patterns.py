"""Patterns that name tools: one rule for permissions and for every list of tools.

A pattern is a glob, case-sensitive, with `*`, `?` and `[…]` as in `fnmatch`.

- With a dot it has two parts, divided at the first: `server.tool`. Each is matched against its own
  part of the tool's full name. So `pay.*` is all of `pay`, and `*.read` is each server's `read`,
  but never the `x.read` of anybody; dots of a tool's own name are written out: `pay.x.read`.
- Without a dot it is matched against the tool's own name, at any server: `read_*`, or `*` for all.
- With `#` before it, it is matched against the user's tags of a tool: `#billing`.
- With `!` before all that it denies, and a denial always wins, wherever it stands in a list.

A tool whose own name begins with `!` or `#` is meant by `*.!name`, `*.#name`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from typing import Any, cast

from toolkeep._rules.naming import parted
from toolkeep.errors import ConfigError

__all__ = ["Patterns", "Selection", "glob", "sorted_out"]

WILD = re.compile(r"[*?\[]")

SHOWN = 80
"""Characters of a bad pattern that an error quotes."""


@lru_cache(maxsize=4096)
def glob(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


@dataclass(frozen=True, slots=True)
class Patterns:
    """Several patterns without their `!`, ready for many questions. Plain names cost one look-up
    however many they are."""

    names: frozenset[str] = frozenset()
    """Full names, without a wildcard."""
    own: frozenset[str] = frozenset()
    """Tools' own names, likewise."""
    pairs: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = ()
    globs: tuple[re.Pattern[str], ...] = ()
    tags: tuple[re.Pattern[str], ...] = ()

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Patterns:
        given = set(patterns)
        tags = {one for one in given if one.startswith("#")}
        plain = {one for one in given - tags if not WILD.search(one)}
        wild = sorted(given - tags - plain)
        pairs = [pair for pair in map(parted, wild) if pair is not None]
        return cls(
            names=frozenset(one for one in plain if "." in one),
            own=frozenset(one for one in plain if "." not in one),
            pairs=tuple((glob(server), glob(tool)) for server, tool in pairs),
            globs=tuple(glob(one) for one in wild if "." not in one),
            tags=tuple(glob(one[1:]) for one in sorted(tags)),
        )

    def match(self, server: str, tool: str, tags: Set[str] = frozenset()) -> bool:
        return (
            tool in self.own
            or f"{server}.{tool}" in self.names
            or any(one.match(tool) for one in self.globs)
            or any(one.match(server) and other.match(tool) for one, other in self.pairs)
            or any(one.match(tag) for one in self.tags for tag in tags)
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of one server's tools are used, by their own names: a dot in a pattern is a dot of the
    name, and there are no tags. Nothing included means all; what is excluded stays out."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @classmethod
    def of(cls, include: Any = (), exclude: Any = (), *, server: str | None = None) -> Selection:
        """Checked: a `ConfigError` names the key. `!name` among the included excludes."""
        wanted, unwanted = sorted_out(include, "include_tools", server)
        left_out, strange = sorted_out(exclude, "exclude_tools", server)
        if strange:
            raise bad(f"!{strange[0]}", "exclude_tools", server, "excludes what is excluded")
        for key, patterns in (
            ("include_tools", wanted + unwanted),
            ("exclude_tools", left_out),
        ):
            for tagged in (one for one in patterns if one.startswith("#")):
                raise bad(tagged, key, server, "is a tag, and here are names only")
        return cls(wanted, unwanted + left_out)

    def keeps(self, tool: str) -> bool:
        if any(glob(one).match(tool) for one in self.exclude):
            return False
        return not self.include or any(glob(one).match(tool) for one in self.include)


def sorted_out(
    patterns: Any, key: str, server: str | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a list of patterns allows, and what it denies, without the `!`. Or a `ConfigError`."""
    if isinstance(patterns, str) or not isinstance(patterns, Collection):
        kind = type(patterns).__name__
        raise ConfigError(
            f"it is not a list of patterns but a {kind}",
            remedy='Write a list, as in ["search", "pay.*", "!*.delete"]',
            server=server,
            key=key,
        )
    allowed: list[str] = []
    denied: list[str] = []
    for pattern in cast("Collection[Any]", patterns):
        checked = check(pattern, key, server)
        (denied if checked.startswith("!") else allowed).append(checked.removeprefix("!"))
    return tuple(allowed), tuple(denied)


def check(pattern: Any, key: str, server: str | None) -> str:
    if not isinstance(pattern, str):
        raise bad(pattern, key, server, "is not a string")
    bare = pattern.removeprefix("!").removeprefix("#")
    if not bare:
        raise bad(pattern, key, server, "names nothing")
    if bare != bare.strip():
        raise bad(pattern, key, server, "begins or ends with a blank")
    if pattern.startswith("!!"):
        raise bad(pattern, key, server, "denies twice")
    return pattern


def bad(pattern: Any, key: str, server: str | None, why: str) -> ConfigError:
    return ConfigError(
        f"the pattern {str(pattern)[:SHOWN]!r} {why}",
        remedy="Write a tool's name or a glob (`search`, `pay.*`), a tag (`#billing`), or one of "
        "these after `!` to deny it",
        server=server,
        key=key,
    )
