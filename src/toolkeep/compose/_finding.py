"""The tools of a plan, as the runtime resolves them for one context.

Each name is looked for as a call would look for it: at its server, if it says which. So a server
that the plan does not need holds nothing up, and none that cannot be asked is passed over.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkeep._catalogue.tool import Tool
from toolkeep.compose._parts import Plan, Step, named
from toolkeep.context import CallContext
from toolkeep.errors import CallNotSentInTime, Delivery, UnknownTool

if TYPE_CHECKING:
    from toolkeep.runtime import Runtime

__all__ = ["Found", "found"]


@dataclass(frozen=True, slots=True)
class Found:
    """What a catalogue of these names alone would say."""

    tools: dict[str, Tool | UnknownTool]

    def tool(self, name: str) -> Tool:
        found = self.tools[name]
        if isinstance(found, UnknownTool):
            raise found
        return found


async def found(
    runtime: Runtime, plan: Plan, context: CallContext | None, timeout: float | None
) -> Found:
    """Raises what keeps a server from saying what it offers."""
    names = sorted({part.tool for part, _, _ in named(plan) if isinstance(part, Step)})

    async def look(name: str) -> Tool | UnknownTool:
        try:
            (tool,) = await runtime.resolve([name], context)
        except UnknownTool as unknown:
            return unknown
        return tool

    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            looks = await asyncio.gather(*map(look, names), return_exceptions=True)
    except TimeoutError:
        text = "the time was over before it was known what can be called. Nothing ran"
        raise CallNotSentInTime(text, server="", delivery=Delivery.NOT_SENT) from None
    tools: dict[str, Tool | UnknownTool] = {}
    for name, tool in zip(names, looks, strict=True):
        if isinstance(tool, BaseException) and not isinstance(tool, UnknownTool):
            raise tool
        tools[name] = tool
    return Found(tools)
