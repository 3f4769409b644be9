"""`mcp.Client` of the official SDK.

Not its default: `read_timeout_seconds` is the time granted.
"""

from mcp import Client


class Adapter:
    name = "mcp.Client"
    packages = ("mcp",)

    async def open(self, url, timeout):
        self.client = Client(url, read_timeout_seconds=timeout)
        await self.client.__aenter__()

    async def list_tools(self):
        names, seen = [], [None]
        while True:
            page = await self.client.list_tools(cursor=seen[-1])
            names += [tool.name for tool in page.tools]
            if page.next_cursor is None:
                return names
            if page.next_cursor in seen:
                raise NotImplementedError("following pages is its caller's business")
            seen.append(page.next_cursor)

    async def call(self, name, arguments, *, headers, on_progress):
        if headers:
            raise NotImplementedError("a call has no headers of its own")
        result = await self.client.call_tool(name, arguments, progress_callback=on_progress)
        return "".join(part.text for part in result.content), result.is_error

    async def close(self):
        await self.client.__aexit__(None, None, None)
