"""`MCPClient` of mcp-use: its session.

Not its defaults: `timeout`, `sse_read_timeout` and `read_timeout_seconds` are the time granted; its
telemetry is off.
"""

import os
from datetime import timedelta

os.environ["MCP_USE_ANONYMIZED_TELEMETRY"] = "false"

from mcp_use import MCPClient


class Adapter:
    name = "mcp-use"
    packages = ("mcp-use", "mcp")

    async def open(self, url, timeout):
        self.timeout = timedelta(seconds=timeout)
        where = {"url": url, "timeout": timeout, "sse_read_timeout": timeout}
        self.client = MCPClient.from_dict({"mcpServers": {"kit": where}})
        self.session = await self.client.create_session("kit")

    async def list_tools(self):
        return [tool.name for tool in await self.session.list_tools()]

    async def call(self, name, arguments, *, headers, on_progress):
        if headers:
            raise NotImplementedError("headers are a setting of the server, not of a call")
        if on_progress:
            raise NotImplementedError("progress is not handed on")
        result = await self.session.call_tool(name, arguments, read_timeout_seconds=self.timeout)
        return "".join(part.text for part in result.content), result.isError

    async def close(self):
        await self.client.close_all_sessions()
