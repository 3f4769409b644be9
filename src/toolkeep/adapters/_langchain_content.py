"""What a tool answered, in LangChain's words.

One text stays a text, for that is what every provider takes; anything else becomes a list of
LangChain's standard content blocks. Nothing is fetched, and nothing is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from toolkeep.results import CallResult

Block = dict[str, Any]
Content = str | list[Block]


def content_of(result: CallResult) -> Content:
    """What the model is shown of it."""
    said = cast("list[Mapping[str, Any]]", result.raw.get("content") or [])
    blocks = [_block(one) for one in said]
    if not blocks:
        return "" if result.data is None else json.dumps(result.data, ensure_ascii=False)
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        return cast("str", blocks[0]["text"])
    return blocks


def _block(said: Mapping[str, Any]) -> Block:
    match said.get("type"):
        case "text":
            return {"type": "text", "text": said.get("text", "")}
        case "image" | "audio":
            return _media(said, base64=said.get("data", ""))
        case "resource_link":
            named = {key: said[key] for key in ("name", "title", "description") if key in said}
            return {**_media(said, url=said.get("uri", "")), "extras": named}
        case "resource":
            return _embedded(cast("Mapping[str, Any]", said.get("resource") or {}))
        case _:
            return {"type": "text", "text": json.dumps(said, ensure_ascii=False)}


def _embedded(resource: Mapping[str, Any]) -> Block:
    about = {"extras": {"uri": resource.get("uri", "")}}
    if "blob" in resource:
        return {**_media(resource, base64=resource["blob"]), **about}
    return {"type": "text", "text": resource.get("text", ""), **about}


def _media(said: Mapping[str, Any], **where: str) -> Block:
    # Audio is a file here: a message with a block of the type "audio" is written out as JSON text,
    # sound and all, by `ToolNode` (langgraph-prebuilt 1.1.1) and by `BaseTool` (core 1.7.2).
    kind = said.get("mimeType") or ("image/*" if said.get("type") == "image" else None)
    block: Block = {"type": "image" if str(kind).startswith("image/") else "file", **where}
    if kind is not None or "base64" in where:
        block["mime_type"] = kind or "application/octet-stream"
    return block
