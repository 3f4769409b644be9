"""`MCPToolset` of Pydantic AI.

Not its defaults: `init_timeout` and `read_timeout` are the time granted; `tool_error_behavior` is
"error", so that a tool's failure is read as one, where a model would be asked to try again;
`progress_handler` is set, its way to watch.
"""

from fastmcp.exceptions import ToolError
from pydantic_ai.mcp import MCPToolset


class Adapter:
    name = "Pydantic AI"
    packages = ("pydantic-ai-slim", "fastmcp", "mcp")
    on_progress = None

    async def open(self, url, timeout):
        self.toolset = MCPToolset(
            url,
            init_timeout=timeout,
            read_timeout=timeout,
            tool_error_behavior="error",
            progress_handler=self.progressed,
        )
        await self.toolset.__aenter__()

    async def progressed(self, progress, total, message):
        if self.on_progress is not None:
            await self.on_progress(progress, total, message)

    async def list_tools(self):
        return [tool.name for tool in await self.toolset.list_tools()]

    async def call(self, name, arguments, *, headers, on_progress):
        if headers:
            raise NotImplementedError("headers are settled for a run of an agent, not for a call")
        self.on_progress = on_progress or self.on_progress
        try:
            return str(await self.toolset.direct_call_tool(name, arguments)), False
        except ToolError as error:
            return str(error), True

    async def close(self):
        await self.toolset.__aexit__(None, None, None)
