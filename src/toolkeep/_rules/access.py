"""Which tools a principal may see and call, and the patterns that name tools.

A pattern is a case-sensitive glob. `server.tool` matches both parts of a full name, a pattern
without a dot matches the tool's own name at any server, `#tag` matches the user's tags, and `!`
before any of these denies. A denial always wins. A principal has what all matching entries
give; without a matching entry it may see and call nothing. Anything malformed is a
`ConfigError` that names the entry; this module never guesses.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from typing import Any, Literal, cast

from toolkeep._rules.names import split_full_name
from toolkeep.errors import ConfigError

Action = Literal["see", "call"]

EVERYONE, ANONYMOUS = "*", ""
"""Entries for all principals, and for callers without a name."""

WILDCARD = re.compile(r"[*?\[]")

MAX_SHOWN_PATTERN = 80
"""Characters of a bad pattern that an error quotes."""

CACHED_PRINCIPALS = 1024
"""Principals whose compiled rights are cached. Compiling takes some microseconds."""


@lru_cache(maxsize=4096)
def compile_glob(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


@dataclass(frozen=True, slots=True)
class PatternSet:
    """Several patterns without their `!`, compiled once and matched often.

    Names without a wildcard cost one look-up, however many there are.
    """

    full_names: frozenset[str] = frozenset()
    """Full names (`server.tool`) without a wildcard."""
    tool_names: frozenset[str] = frozenset()
    """Tool names without a wildcard; they match at any server."""
    full_globs: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = ()
    tool_globs: tuple[re.Pattern[str], ...] = ()
    tag_globs: tuple[re.Pattern[str], ...] = ()

    @classmethod
    def of(cls, patterns: Iterable[str]) -> PatternSet:
        given = set(patterns)
        tags = {one for one in given if one.startswith("#")}
        plain = {one for one in given - tags if not WILDCARD.search(one)}
        wild = sorted(given - tags - plain)
        pairs = [pair for pair in map(split_full_name, wild) if pair is not None]
        return cls(
            full_names=frozenset(one for one in plain if "." in one),
            tool_names=frozenset(one for one in plain if "." not in one),
            full_globs=tuple((compile_glob(server), compile_glob(tool)) for server, tool in pairs),
            tool_globs=tuple(compile_glob(one) for one in wild if "." not in one),
            tag_globs=tuple(compile_glob(one[1:]) for one in sorted(tags)),
        )

    def match(self, server: str, tool: str, tags: Set[str] = frozenset()) -> bool:
        return (
            tool in self.tool_names
            or f"{server}.{tool}" in self.full_names
            or any(one.match(tool) for one in self.tool_globs)
            or any(one.match(server) and other.match(tool) for one, other in self.full_globs)
            or any(one.match(tag) for one in self.tag_globs for tag in tags)
        )


@dataclass(frozen=True, slots=True)
class ToolSelection:
    """Which tools of one server are used, by globs over their own names.

    A dot in a pattern is part of the name, and tags are not allowed. An empty `include` means all
    tools. `exclude` wins over `include`.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls, include: Any = (), exclude: Any = (), *, server: str | None = None
    ) -> ToolSelection:
        """Check both lists; a `ConfigError` names the key. `!name` in `include` excludes."""
        included, negated = split_patterns(include, "include_tools", server)
        excluded, twice_negated = split_patterns(exclude, "exclude_tools", server)
        if twice_negated:
            raise pattern_error(
                f"!{twice_negated[0]}", "exclude_tools", server, "negates an exclusion"
            )
        for key, patterns in (
            ("include_tools", included + negated),
            ("exclude_tools", excluded),
        ):
            for tag in (one for one in patterns if one.startswith("#")):
                raise pattern_error(tag, key, server, "is a tag; only tool names are allowed here")
        return cls(included, negated + excluded)

    def includes(self, tool: str) -> bool:
        if any(compile_glob(one).match(tool) for one in self.exclude):
            return False
        return not self.include or any(compile_glob(one).match(tool) for one in self.include)


def split_patterns(
    patterns: Any, key: str, server: str | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a list of patterns into allowed and denied ones, the latter without their `!`.

    Raises `ConfigError` for anything that is not a list of valid patterns.
    """
    if isinstance(patterns, str) or not isinstance(patterns, Collection):
        kind = type(patterns).__name__
        raise ConfigError(
            f"patterns must be a list, not {kind}",
            remedy='Write a list, as in ["search", "pay.*", "!*.delete"]',
            server=server,
            key=key,
        )
    allowed: list[str] = []
    denied: list[str] = []
    for pattern in cast("Collection[Any]", patterns):
        checked = check_pattern(pattern, key, server)
        (denied if checked.startswith("!") else allowed).append(checked.removeprefix("!"))
    return tuple(allowed), tuple(denied)


def check_pattern(pattern: Any, key: str, server: str | None) -> str:
    if not isinstance(pattern, str):
        raise pattern_error(pattern, key, server, "is not a string")
    bare = pattern.removeprefix("!").removeprefix("#")
    if not bare:
        raise pattern_error(pattern, key, server, "is empty")
    if bare != bare.strip():
        raise pattern_error(pattern, key, server, "begins or ends with white space")
    if pattern.startswith("!!"):
        raise pattern_error(pattern, key, server, "begins with two `!`")
    return pattern


def pattern_error(pattern: Any, key: str, server: str | None, why: str) -> ConfigError:
    return ConfigError(
        f"the pattern {str(pattern)[:MAX_SHOWN_PATTERN]!r} {why}",
        remedy="Write a tool's name or a glob (`search`, `pay.*`), a tag (`#billing`), or one of "
        "these after `!` to deny it",
        server=server,
        key=key,
    )


@dataclass(frozen=True, slots=True)
class PermissionEntry:
    """One entry of the user's permissions, as patterns without their `!`."""

    principals: str
    see: tuple[str, ...] = ()
    call: tuple[str, ...] = ()
    deny_see: tuple[str, ...] = ()
    deny_call: tuple[str, ...] = ()

    def matches(self, principal: str) -> bool:
        if self.principals == EVERYONE or self.principals == principal:
            return True
        return principal != ANONYMOUS and compile_glob(self.principals).match(principal) is not None


@dataclass(frozen=True, slots=True)
class Rights:
    """What one principal may see and call: all matching entries together."""

    see: PatternSet
    call: PatternSet
    deny_see: PatternSet
    deny_call: PatternSet

    @classmethod
    def of(cls, entries: list[PermissionEntry]) -> Rights:
        return cls(
            see=PatternSet.of(one for entry in entries for one in entry.see),
            call=PatternSet.of(one for entry in entries for one in entry.call),
            deny_see=PatternSet.of(one for entry in entries for one in entry.deny_see),
            deny_call=PatternSet.of(one for entry in entries for one in entry.deny_call),
        )

    def allow(self, action: Action, server: str, tool: str, tags: Set[str]) -> bool:
        if self.deny_see.match(server, tool, tags):
            return False
        if action == "see" and self.see.match(server, tool, tags):
            return True
        called = self.call.match(server, tool, tags)
        return called and not self.deny_call.match(server, tool, tags)


class Permissions:
    """All entries. Immutable; `allows` is called for every tool shown and for every call."""

    def __init__(self, entries: tuple[PermissionEntry, ...]) -> None:
        self.entries = entries
        self._rights = lru_cache(maxsize=CACHED_PRINCIPALS)(self._build_rights)

    @classmethod
    def parse(cls, given: Any) -> Permissions:
        """Parse what the user wrote. Raises `ConfigError` if it is malformed."""
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"permissions must be a mapping, not {type(given).__name__}",
                remedy='Write principals and their tools, as in {"*": ["weather.*"]}',
                key="permissions",
            )
        entries = cast("Mapping[Any, Any]", given)
        return cls(tuple(parse_entry(principals, tools) for principals, tools in entries.items()))

    def allows(
        self, principal: str | None, action: Action, name: str, tags: Set[str] = frozenset()
    ) -> bool:
        """Whether the principal may see or call the tool with this full name."""
        pair = split_full_name(name)
        return pair is not None and self._rights(principal or ANONYMOUS).allow(action, *pair, tags)

    def _build_rights(self, principal: str) -> Rights:
        return Rights.of([entry for entry in self.entries if entry.matches(principal)])


def parse_entry(principals: Any, tools: Any) -> PermissionEntry:
    if not isinstance(principals, str) or principals != principals.strip():
        raise ConfigError(
            f"{str(principals)[:80]!r} is not a principal's name",
            remedy='Write a name or a glob: "*" for everyone, "" for callers without a name',
            key="permissions",
        )
    key = f"permissions.{principals[:80]}"
    if not isinstance(tools, Mapping):
        allowed, denied = split_patterns(tools, key)
        return PermissionEntry(principals, call=allowed, deny_see=denied)
    actions = cast("Mapping[Any, Any]", tools)
    for action in actions:
        if action not in ("see", "call"):
            raise ConfigError(
                f"unknown action {str(action)[:80]!r}",
                remedy="Write `see`, `call`, or both",
                key=key,
            )
    see, deny_see = split_patterns(actions.get("see", ()), f"{key}.see")
    call, deny_call = split_patterns(actions.get("call", ()), f"{key}.call")
    return PermissionEntry(principals, see, call, deny_see, deny_call)
