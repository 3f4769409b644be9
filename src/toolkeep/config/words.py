"""The words of all dialects for the same things. Data, and two functions that read it.

A dialect is a `Vocabulary`: what its own words mean here, which of them mean nothing to us, and
whether a word that nobody knows is a mistake (in our own files) or a warning (in other products').
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkeep.config.draft import Draft, Setting, Steps, same
from toolkeep.config.model import nearest, unknown_key
from toolkeep.config.spec import ServerSpec
from toolkeep.config.tools import as_number as as_number
from toolkeep.config.transports import TYPES

OURS: Mapping[str, str] = {
    **{key: key for key in ServerSpec.model_fields if key != "server"},
    "endpoint": "url",
    "type": "type",
    "timeout": "timeouts.call",
    "enabled": "enabled",
    "env_file": "env_file",
    "retry_attempts": "max_replays",
    "connection_pool_size": "max_in_flight",
    "health_check_interval": "health_interval",
}
"""Accepted everywhere, the last three under the names that other people chose."""

OF_OTHERS: Mapping[str, str] = {
    "includeTools": "include_tools",  # Gemini CLI
    "excludeTools": "exclude_tools",
    "allowedTools": "include_tools",  # Deep Agents
    "disabledTools": "exclude_tools",  # Roo, Windsurf, Deep Agents
    "enabled_tools": "include_tools",  # Codex
    "disabled_tools": "exclude_tools",
    "allowed_tools": "include_tools",  # OpenAI's API
    "allowed_tool_names": "include_tools",  # OpenAI Agents
    "blocked_tool_names": "exclude_tools",
}
"""What other products call the tools that are offered and those that are not. Understood wherever
their entries may turn up: everywhere but in our own file."""

OF_ONE_SERVER = frozenset(
    {
        *("name", "url", "urls", "endpoint", "command", "args", "server", "type", "transport"),
        *("api_key", "enabled", "env_file", "prompts_file"),
    }
)
"""What no default can say."""

_REACHED_BY = ("url", "urls", "command", "server", "spec")

LOCAL = "program"
REMOTE = "remote"
WAYS: Mapping[str, str] = {**TYPES, "local": LOCAL, "remote": REMOTE}
"""What `type` and `transport` can say. `local` is a program, or a Python file to run; `remote` is
an address, and leaves open how to speak to it."""

_SWITCHES = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def switch(value: object) -> bool | None:
    """Whether it says on or off; None if it says neither."""
    if isinstance(value, bool):
        return value
    return _SWITCHES.get(value.strip().lower()) if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    words: Mapping[str, str] = field(default_factory=lambda: OURS)
    """Their key, and ours."""
    silent: frozenset[str] = frozenset()
    """Theirs, and nothing is lost when we pass it over."""
    strict: bool = False
    convert: Mapping[str, Callable[[Mapping[str, Any]], Callable[[Any], Any]]] = field(
        default_factory=dict[str, Callable[[Mapping[str, Any]], Callable[[Any], Any]]]
    )
    """For a key of ours: from a server's entry to the conversion of its value."""


def settings_of(
    given: Mapping[str, Any],
    words: Vocabulary,
    draft: Draft,
    steps: Steps,
    server: str | None,
    *,
    of_one_server: bool = True,
) -> Iterator[Setting]:
    """Those that are understood; the others are told. A misspelt key of another product's is a
    mistake where nothing else says how the server is reached."""
    unreachable = not any(words.words.get(key) in _REACHED_BY for key in given)
    for key, value in given.items():
        origin = draft.document.origin((*steps, key))
        ours = words.words.get(key)
        if ours is not None:
            conversion = words.convert.get(ours)
            convert = conversion(given) if conversion else same
            yield Setting(ours, value, key, origin, (*steps, key), convert)
        elif words.strict or (
            unreachable and words.words.get(nearest(key, words.words) or "") in _REACHED_BY
        ):
            problem, remedy = unknown_key(key, words.words)
            draft.mistakes.add(
                problem,
                remedy=remedy,
                origin=origin,
                server=server,
                key=key,
                of_one_server=of_one_server,
            )
        elif key not in words.silent:
            meant = nearest(key, words.words)
            hint = f", did you mean {meant!r}?" if meant else ""
            draft.warn(f"the key {key[:80]!r} means nothing to toolkeep{hint}", origin, server)
