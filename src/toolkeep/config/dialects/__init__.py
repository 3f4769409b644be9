"""Which dialect a document is written in: told by its shape, never by its name.

| shape | dialect |
|---|---|
| `{"mcpServers": {…}}` | `products`: Claude, Cursor, Cline, Windsurf, Gemini CLI |
| `{"servers": {…}, "inputs": […]}` | `vscode`; also under `mcp`, as in its settings |
| `[servers.name]` in TOML; `{"servers": {…}, "defaults": {…}}` | `own` |
| `{"tool_service": {"mcp_servers": […]}}` | `service` |
| a list of servers; one server; names and servers | `plain` |
| `MCP_SERVERS`, `MCP_SERVER_<NAME>_URL` | `environment` |

Each is a pure function from a document to a draft. A dialect of another product never fails for a
word that we do not know; our own does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from toolkeep.config.dialects import own, plain, products, service, vscode
from toolkeep.config.dialects.service import obey_switch
from toolkeep.config.draft import Document, Draft
from toolkeep.config.model import nearest, unknown_key

__all__ = ["read"]


SWITCHES = ("enable_mcp", "enable_mcp_tools")
"""Whether anything is to be opened; understood at the top of every document, and in a service's."""
FRAMES = ("mcpServers", "servers", "mcp_servers", "tool_service")


def read(document: Document, *, toml: bool = False) -> Draft:
    """What the document says, in our words."""
    draft, value = Draft(document), cast("object", document.value)
    if not isinstance(value, Mapping):
        plain.read(draft)
        return draft
    given = _without_switches(draft, cast("Mapping[Any, object]", value))
    if "mcpServers" in given:
        products.read(draft)
    elif "tool_service" in given or "mcp_servers" in given:
        service.read(draft)
    elif toml or {"servers", "defaults"} <= given.keys():
        own.read(draft)
    elif isinstance(given.get("servers"), Mapping | list) or vscode.has_settings(given):
        vscode.read(draft)
    elif not _is_misspelt(draft, given):
        plain.read(draft)
    return draft


def _without_switches(draft: Draft, given: Mapping[Any, object]) -> Mapping[Any, object]:
    """The rest of the document, once its switches are obeyed."""
    found = {
        key: value
        for key, value in given.items()
        if isinstance(key, str) and key.lower() in SWITCHES and not isinstance(value, Mapping)
    }
    for key, value in found.items():
        obey_switch(draft, value, (key,))
    rest = {key: value for key, value in given.items() if key not in found} if found else given
    draft.document = replace(draft.document, value=rest)
    return rest


def _is_misspelt(draft: Draft, given: Mapping[Any, object]) -> bool:
    """Whether a key that holds servers is nearly one that is known: `mcpservers`."""
    for key, value in given.items():
        meant = nearest(key, FRAMES) if isinstance(key, str) and _holds_servers(value) else None
        if meant is not None:
            problem, remedy = unknown_key(str(key), FRAMES)
            origin = draft.document.origin((str(key),))
            draft.mistakes.add(problem, remedy=remedy, origin=origin, key=str(key))
            return True
    return False


def _holds_servers(value: object) -> bool:
    inner: Any = value
    if isinstance(value, Mapping):
        inner = list(cast("Mapping[Any, object]", value).values())
    return isinstance(inner, list) and all(
        isinstance(one, Mapping) for one in cast("list[object]", inner)
    )
