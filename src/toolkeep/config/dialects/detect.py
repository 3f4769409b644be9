"""Detect the dialect of a configuration document by its shape and read it into a `Draft`.

| shape | dialect |
|---|---|
| `{"mcpServers": {…}}` | products: Claude, Cursor, Cline, Windsurf, Gemini CLI |
| `{"servers": {…}, "inputs": […]}` | VS Code; also under `mcp`, as in its settings |
| `[servers.name]` in TOML; `servers` beside `defaults` or `gateway` | our own |
| `{"tool_service": {"mcp_servers": […]}}` | service |
| a list of servers; one server; names and servers | plain |
| `MCP_SERVERS`, `MCP_SERVER_<NAME>_URL` | environment |

Readers are pure functions. An unknown key is an error in our own format and a warning in the
formats of other products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from toolkeep.config.dialects.draft import Draft
from toolkeep.config.dialects.mcp_json import (
    apply_enable_switch,
    is_vscode_settings,
    read_own,
    read_plain,
    read_products,
    read_service,
    read_vscode,
)
from toolkeep.config.fields import closest_match, describe_unknown_key
from toolkeep.config.formats import Document

__all__ = ["read_document"]


ENABLE_KEYS = ("enable_mcp", "enable_mcp_tools")
"""Switches for all servers; accepted at the top level of every document, and in `tool_service`."""
OWN_TABLES = frozenset({"defaults", "gateway"})
"""Keys that stand beside `servers` in our own format alone."""
TOP_LEVEL_KEYS = ("mcpServers", "servers", "mcp_servers", "tool_service")


def read_document(document: Document, *, toml: bool = False) -> Draft:
    """Read the document in the dialect that its shape shows. `toml`: our own format."""
    draft, value = Draft(document), cast("object", document.value)
    if not isinstance(value, Mapping):
        read_plain(draft)
        return draft
    given = _apply_enable_keys(draft, cast("Mapping[Any, object]", value))
    if "mcpServers" in given:
        read_products(draft)
    elif "tool_service" in given or "mcp_servers" in given:
        read_service(draft)
    elif toml or ("servers" in given and not OWN_TABLES.isdisjoint(given)):
        read_own(draft)
    elif isinstance(given.get("servers"), Mapping | list) or is_vscode_settings(given):
        read_vscode(draft)
    elif not _report_misspelled_key(draft, given):
        read_plain(draft)
    return draft


def _apply_enable_keys(draft: Draft, given: Mapping[Any, object]) -> Mapping[Any, object]:
    """Apply the enable keys, and return the rest of the document."""
    found = {
        key: value
        for key, value in given.items()
        if isinstance(key, str) and key.lower() in ENABLE_KEYS and not isinstance(value, Mapping)
    }
    for key, value in found.items():
        apply_enable_switch(draft, value, (key,))
    rest = {key: value for key, value in given.items() if key not in found} if found else given
    draft.document = replace(draft.document, value=rest)
    return rest


def _report_misspelled_key(draft: Draft, given: Mapping[Any, object]) -> bool:
    """Report a key that holds servers and is close to a known one, such as `mcpservers`."""
    for key, value in given.items():
        meant = (
            closest_match(key, TOP_LEVEL_KEYS)
            if isinstance(key, str) and _holds_servers(value)
            else None
        )
        if meant is not None:
            problem, remedy = describe_unknown_key(str(key), TOP_LEVEL_KEYS)
            origin = draft.document.origin((str(key),))
            draft.errors.add(problem, remedy=remedy, origin=origin, key=str(key))
            return True
    return False


def _holds_servers(value: object) -> bool:
    inner: Any = value
    if isinstance(value, Mapping):
        inner = list(cast("Mapping[Any, object]", value).values())
    return isinstance(inner, list) and all(
        isinstance(one, Mapping) for one in cast("list[object]", inner)
    )
