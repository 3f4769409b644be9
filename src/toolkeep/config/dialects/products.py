"""`mcpServers`, as Claude, Cursor, Cline, Roo, Windsurf and Gemini CLI have it.

They share the frame and differ in words. Keys that only arrange a product's own screens and
questions are passed over; the others that we do not know are warnings, because one of them may
have kept a tool away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from toolkeep.config.dialects.plain import entries
from toolkeep.config.draft import Draft
from toolkeep.config.words import OF_OTHERS, OURS, Vocabulary, as_number

_ASKING = frozenset({"alwaysAllow", "autoApprove"})
_SECONDS_AT_MOST = 3600


def own_unit(entry: Mapping[str, Any]) -> Callable[[Any], Any]:
    """`timeout` in seconds.

    Milliseconds in Claude Code (code.claude.com/docs/en/mcp: a hard limit for a tool call; what is
    below 1000 is ignored), Gemini CLI and FastMCP's `MCPConfig`. Seconds in Cline and Roo, from 1
    to 3600 (docs.cline.bot/mcp/configuring-mcp-servers), whose entries show by `alwaysAllow` or
    `autoApprove`. So nobody means milliseconds by less than 1000.
    """
    longest = _SECONDS_AT_MOST if _ASKING & entry.keys() else 999

    def seconds(value: Any) -> Any:
        number = as_number(value)
        if number is None:
            return value
        return number if number <= longest else number / 1000

    return seconds


def as_texts(_entry: Mapping[str, Any]) -> Callable[[Any], Any]:
    """VS Code's `env` may hold numbers, and null for what the program shall not have. Ours has
    only what is named, so there is nothing to take away."""

    def texts(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = cast("dict[str, Any]", value)
        return {
            name: str(one) if isinstance(one, int | float) and not isinstance(one, bool) else one
            for name, one in given.items()
            if one is not None
        }

    return texts


WORDS = Vocabulary(
    words={
        **OURS,
        **OF_OTHERS,
        "envFile": "env_file",
        "disabled": "disabled",
        "serverUrl": "url",  # Windsurf
        "httpUrl": "url",  # Gemini CLI
        "transportType": "type",  # Cline, before its `type`
    },
    silent=frozenset(
        {*_ASKING, "description", "icon", "trust", "alwaysLoad", "$schema", "gallery", "version"}
    ),
    convert={"timeouts.call": own_unit, "env": as_texts},
)


def read(draft: Draft) -> None:
    given: Mapping[str, Any] = draft.document.value
    draft.of_an_editor = True
    for key in given:
        if key not in ("mcpServers", "$schema"):
            origin = draft.document.origin((key,))
            draft.warn(f"the key {str(key)[:80]!r} means nothing to toolkeep", origin)
    entries(draft, given["mcpServers"], WORDS, ("mcpServers",))
