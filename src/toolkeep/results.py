"""What a tool call brought back.

A `CallResult` keeps the answer in the shape it had on the wire and offers views of it. Nothing is
copied, altered or dropped; content blocks become typed objects when first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from mcp_types import ContentBlock

__all__ = ["CallResult"]


@dataclass(frozen=True)
class CallResult:
    """The result of one call. A tool's own error (`is_error`) is a result too, not an exception."""

    raw: Mapping[str, Any]
    """The JSON-RPC result as the server sent it."""
    server: str
    tool: str
    attempts: int = 1
    duration: float = 0.0
    """Seconds from the call to its result, replays and waits included."""
    cached: bool = False
    """Whether it is what an equal call brought, and nothing was sent."""

    @property
    def is_error(self) -> bool:
        return bool(self.raw.get("isError", False))

    @property
    def needs_input(self) -> bool:
        """Whether this is not the end: the server asks something first. Only with
        `input="return"`."""
        return self.raw.get("resultType") == "input_required"

    @property
    def input_requests(self) -> Mapping[str, Any]:
        """What it asks, by key, in wire shape."""
        return cast("Mapping[str, Any]", self.raw.get("inputRequests") or {})

    @property
    def request_state(self) -> str | None:
        """To be handed back, as it is, with the answers."""
        return self.raw.get("requestState")

    @property
    def success(self) -> bool:
        return not self.is_error and not self.needs_input

    @cached_property
    def text(self) -> str:
        """The text blocks, joined by newlines."""
        blocks = cast("list[Mapping[str, Any]]", self.raw.get("content") or [])
        return "\n".join(block["text"] for block in blocks if block.get("type") == "text")

    @property
    def data(self) -> Any:
        """The structured content, or None."""
        return self.raw.get("structuredContent")

    @property
    def meta(self) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", self.raw.get("_meta") or {})

    @cached_property
    def content(self) -> list[ContentBlock]:
        """Every block, typed: text, image, audio, resource link, embedded resource."""
        from mcp_types import CallToolResult  # costs 0.3 s, so only when content is looked at

        return CallToolResult.model_validate(
            {"content": self.raw.get("content") or []}, by_name=False
        ).content
