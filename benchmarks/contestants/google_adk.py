"""google-adk: a tool of its `McpToolset`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams

from benchmarks.contestants.adk_context import tool_context
from benchmarks.contestants.common import ARGUMENTS, Send


@asynccontextmanager
async def calls(url: str, era: str) -> AsyncIterator[Send]:
    toolset = McpToolset(connection_params=StreamableHTTPConnectionParams(url=url))
    try:
        (tool,) = await toolset.get_tools()
        context = await tool_context()
        yield lambda: tool.run_async(args=ARGUMENTS, tool_context=context)
    finally:
        await toolset.close()
