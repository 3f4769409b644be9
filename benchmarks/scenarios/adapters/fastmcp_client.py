"""FastMCP's client.

Not its defaults: `init_timeout` and `timeout` are the time granted; `raise_on_error` is off, so
that what a tool says of its failure is told from what the client raises.
"""

from fastmcp import Client


class Adapter:
    name = "FastMCP"
    packages = ("fastmcp", "mcp")

    async def open(self, url, timeout):
        self.client, self.timeout = Client(url, init_timeout=timeout), timeout
        await self.client.__aenter__()

    async def list_tools(self):
        return [tool.name for tool in await self.client.list_tools()]

    async def call(self, name, arguments, *, headers, on_progress):
        if headers:
            raise NotImplementedError("a call has no headers of its own")
        result = await self.client.call_tool(
            name,
            arguments,
            timeout=self.timeout,
            progress_handler=on_progress,
            raise_on_error=False,
        )
        return "".join(part.text for part in result.content), result.is_error

    async def close(self):
        await self.client.__aexit__(None, None, None)
