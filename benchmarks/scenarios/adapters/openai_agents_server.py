"""`MCPServerStreamableHttp` of the OpenAI Agents SDK, as an agent calls it.

Not its default: `client_session_timeout_seconds` is the time granted.
"""

from agents.mcp import MCPServerStreamableHttp


class Adapter:
    name = "OpenAI Agents"
    packages = ("openai-agents", "mcp")

    async def open(self, url, timeout):
        self.server = MCPServerStreamableHttp({"url": url}, client_session_timeout_seconds=timeout)
        await self.server.connect()

    async def list_tools(self):
        return [tool.name for tool in await self.server.list_tools()]

    async def call(self, name, arguments, *, headers, on_progress):
        if headers:
            raise NotImplementedError("headers are a setting of the server, not of a call")
        if on_progress:
            raise NotImplementedError("progress is not handed on")
        result = await self.server.call_tool(name, arguments)
        return "".join(part.text for part in result.content), result.is_error

    async def close(self):
        await self.server.cleanup()
