"""Who may see and call what.

Permissions go from principals to patterns of tools (`patterns`):

    {
        "*": ["weather.*"],                               # everyone, callers without a name too
        "": ["docs.search"],                              # only callers without a name
        "team-*": {"see": ["*"], "call": ["crm.*", "!*.delete"]},
        "team-intern": ["!crm.*"],
    }

- A principal has what all the entries give that match its name; names are globs, case-sensitive.
- What may be called may be seen. A plain list is about both.
- A denial in any matching entry wins. Under `call` it denies calling; elsewhere it denies both.
- Whoever matches no entry may see nothing and call nothing. Without entries that is everyone.

Anything else is a `ConfigError` that names the entry: a permission that is misread must not be
found out by its effects.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast

from toolkeep._rules.naming import parted
from toolkeep._rules.patterns import Patterns, glob, sorted_out
from toolkeep.errors import ConfigError

__all__ = ["Action", "Permissions"]

Action = Literal["see", "call"]

REMEMBERED = 1024
"""Principals whose entries are kept put together. One more costs some microseconds again."""

EVERYONE, NAMELESS = "*", ""


@dataclass(frozen=True, slots=True)
class Entry:
    """What one key says, as patterns without their `!`."""

    principals: str
    seen: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    uncalled: tuple[str, ...] = ()

    def matches(self, principal: str) -> bool:
        if self.principals == EVERYONE or self.principals == principal:
            return True
        return principal != NAMELESS and glob(self.principals).match(principal) is not None


@dataclass(frozen=True, slots=True)
class Rights:
    """All that one principal may."""

    seen: Patterns
    called: Patterns
    hidden: Patterns
    uncalled: Patterns

    @classmethod
    def of(cls, entries: list[Entry]) -> Rights:
        return cls(
            seen=Patterns.of(one for entry in entries for one in entry.seen),
            called=Patterns.of(one for entry in entries for one in entry.called),
            hidden=Patterns.of(one for entry in entries for one in entry.hidden),
            uncalled=Patterns.of(one for entry in entries for one in entry.uncalled),
        )

    def allow(self, action: Action, server: str, tool: str, tags: Set[str]) -> bool:
        if self.hidden.match(server, tool, tags):
            return False
        if action == "see" and self.seen.match(server, tool, tags):
            return True
        called = self.called.match(server, tool, tags)
        return called and not self.uncalled.match(server, tool, tags)


class Permissions:
    """Immutable; asked for every tool that is shown and for every call."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self.entries = entries
        self._rights = lru_cache(maxsize=REMEMBERED)(self._put_together)

    @classmethod
    def of(cls, given: Any) -> Permissions:
        """From what a user wrote, or a `ConfigError`."""
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"permissions are not a mapping but a {type(given).__name__}",
                remedy='Write principals and their tools, as in {"*": ["weather.*"]}',
                key="permissions",
            )
        held = cast("Mapping[Any, Any]", given)
        return cls(tuple(entry_of(principals, said) for principals, said in held.items()))

    def may(
        self, principal: str | None, action: Action, name: str, tags: Set[str] = frozenset()
    ) -> bool:
        """Whether the principal may do this with the tool of this full name."""
        pair = parted(name)
        return pair is not None and self._rights(principal or NAMELESS).allow(action, *pair, tags)

    def _put_together(self, principal: str) -> Rights:
        return Rights.of([entry for entry in self.entries if entry.matches(principal)])


def entry_of(principals: Any, said: Any) -> Entry:
    if not isinstance(principals, str) or principals != principals.strip():
        raise ConfigError(
            f"{str(principals)[:80]!r} is not the name of a principal",
            remedy='Write a name or a glob; "*" is everyone, "" callers without a name',
            key="permissions",
        )
    key = f"permissions.{principals[:80]}"
    if not isinstance(said, Mapping):
        allowed, denied = sorted_out(said, key)
        return Entry(principals, called=allowed, hidden=denied)
    actions = cast("Mapping[Any, Any]", said)
    for action in actions:
        if action not in ("see", "call"):
            raise ConfigError(
                f"there is no action {str(action)[:80]!r}",
                remedy="Write `see`, `call`, or both",
                key=key,
            )
    seen, hidden = sorted_out(actions.get("see", ()), f"{key}.see")
    called, uncalled = sorted_out(actions.get("call", ()), f"{key}.call")
    return Entry(principals, seen, called, hidden, uncalled)
