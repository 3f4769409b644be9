"""`MultiServerMCPClient` of langchain-mcp-adapters: its tools, as an agent invokes them.

Not its defaults: `timeout` and `sse_read_timeout` are the time granted; `handle_tool_errors` is
off, so that a tool's failure is told from its answer; `callbacks` and `tool_interceptors` are set,
its ways to watch and to bring headers.
"""

from contextvars import ContextVar

from langchain_core.tools import ToolException
from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient

own_headers = ContextVar("own_headers", default=None)


async def with_headers(request, go_on):
    return await go_on(request.override(headers=own_headers.get()))


class Adapter:
    name = "langchain-mcp-adapters"
    packages = ("langchain-mcp-adapters", "mcp")
    on_progress = None

    async def open(self, url, timeout):
        where = {
            "transport": "streamable_http",
            "url": url,
            "timeout": timeout,
            "sse_read_timeout": timeout,
        }
        self.client = MultiServerMCPClient(
            {"kit": where},
            callbacks=Callbacks(on_progress=self.progressed),
            tool_interceptors=[with_headers],
            handle_tool_errors=False,
        )
        self.tools = {}

    async def progressed(self, progress, total, message, context):
        if self.on_progress is not None:
            await self.on_progress(progress, total, message)

    async def list_tools(self):
        self.tools = {tool.name: tool for tool in await self.client.get_tools()}
        return list(self.tools)

    async def call(self, name, arguments, *, headers, on_progress):
        self.on_progress = on_progress or self.on_progress
        own_headers.set(headers)
        if name not in self.tools:
            await self.list_tools()
        try:
            parts = await self.tools[name].ainvoke(arguments)
        except ToolException as error:
            return str(error), True
        return "".join(part["text"] for part in parts), False

    async def close(self):
        pass  # it keeps nothing open
