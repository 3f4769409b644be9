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
from typing import cast

from toolkeep.config.dialects import own, plain, products, service, vscode
from toolkeep.config.draft import Document, Draft

__all__ = ["read"]


def read(document: Document, *, toml: bool = False) -> Draft:
    """What the document says, in our words."""
    draft = Draft(document)
    value = document.value
    if not isinstance(value, Mapping):
        plain.read(draft)
        return draft
    given = cast("Mapping[str, object]", value)
    if "mcpServers" in given:
        products.read(draft)
    elif "tool_service" in given or "mcp_servers" in given:
        service.read(draft)
    elif toml or {"servers", "defaults"} <= given.keys():
        own.read(draft)
    elif isinstance(given.get("servers"), Mapping | list) or vscode.has_settings(given):
        vscode.read(draft)
    else:
        plain.read(draft)
    return draft
