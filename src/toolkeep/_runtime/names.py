"""How a caller names a tool."""

from __future__ import annotations

from typing import cast

from toolkeep._catalogue.tool import Tool
from toolkeep.errors import InvalidArguments

ToolName = str | Tool
"""`server.tool`, a name that is unique without its server, a name for models, or a `Tool`."""


def named(name: object) -> str:
    """What a call is called before its tool is found."""
    if type(name) is str:
        return name
    return name.name if isinstance(name, Tool) else str(name)


def parts(name: ToolName) -> tuple[str, str]:
    if isinstance(name, str):
        server, dot, tool = name.partition(".")
        return (server, tool) if dot else ("", name)
    if not isinstance(cast("object", name), Tool):
        text = f"a tool is named by a text or a Tool, not by {type(name).__name__}"
        raise InvalidArguments(text, server="", tool="")
    return name.key
