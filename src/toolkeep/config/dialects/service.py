"""`{"tool_service": {"enable_mcp": …, "mcp_servers": […]}}`, also without its outer frame.

Written for tool services in Python, whose `endpoint` is our `url` and whose durations are seconds.
What the service says for all its servers is a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from toolkeep.config.dialects.plain import entries
from toolkeep.config.draft import Draft, Setting, Steps
from toolkeep.config.model import kind_of
from toolkeep.config.words import OF_ONE_SERVER, OF_OTHERS, OURS, Vocabulary, switch

WORDS = Vocabulary({**OURS, **OF_OTHERS, "disabled": "disabled"}, silent=frozenset({"description"}))


def read(draft: Draft) -> None:
    whole = cast("Mapping[str, Any]", draft.document.value)
    steps: Steps = ("tool_service",) if "tool_service" in whole else ()
    inner = whole["tool_service"] if steps else whole
    if not isinstance(inner, Mapping):
        problem = f"tool_service is a mapping, not {kind_of(inner)}"
        remedy = 'Write {"tool_service": {"mcp_servers": […]}}'
        origin = draft.document.origin(steps)
        draft.mistakes.add(problem, remedy=remedy, origin=origin, key="tool_service")
        return
    given = cast("Mapping[str, Any]", inner)
    for key, value in given.items():
        _read_key(draft, key, value, (*steps, key))
    entries(draft, given.get("mcp_servers", []), WORDS, (*steps, "mcp_servers"))


def obey_switch(draft: Draft, value: object, steps: Steps) -> None:
    """A switch for all servers of the document."""
    on = switch(value)
    if on is None:
        origin, key = draft.document.origin(steps), ".".join(map(str, steps))
        remedy = "Write true or false"
        draft.mistakes.add("neither true nor false", remedy=remedy, origin=origin, key=key)
    elif not on:
        draft.off = f"{steps[-1]} is false"


def _read_key(draft: Draft, key: str, value: object, steps: Steps) -> None:
    origin = draft.document.origin(steps)
    if key in ("enable_mcp", "enable_mcp_tools"):
        obey_switch(draft, value, steps)
    elif key in OURS and key not in OF_ONE_SERVER:
        draft.defaults.append(Setting(OURS[key], value, key, origin, steps))
    elif key != "mcp_servers":
        draft.warn(f"the key {str(key)[:80]!r} means nothing to toolkeep", origin)
