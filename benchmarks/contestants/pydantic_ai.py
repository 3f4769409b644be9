"""pydantic-ai: its `MCPToolset`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai import RunContext, RunUsage
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import AbstractToolset

from benchmarks.contestants.common import ARGUMENTS, Send


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    async with MCPToolset(url) as toolset:
        yield await calling(toolset)


async def calling(toolset: AbstractToolset[Any]) -> Send:
    """A call as a run makes it, of the one tool there is."""
    context = RunContext(deps=None, model=TestModel(), usage=RunUsage())
    ((name, tool),) = (await toolset.get_tools(context)).items()
    return lambda: toolset.call_tool(name, dict(ARGUMENTS), context, tool)
