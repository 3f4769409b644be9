"""`McpToolset` of Google ADK: its tools, each run as an agent runs it.

Not its defaults: `timeout` and `sse_read_timeout` are the time granted; `header_provider` and
`progress_callback` are set, its ways to bring headers and to watch.
"""

from google.adk.agents import LlmAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.sessions import InMemorySessionService
from google.adk.tools import ToolContext
from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams


class Adapter:
    name = "Google ADK"
    packages = ("google-adk", "mcp")
    on_progress = None

    async def open(self, url, timeout):
        where = StreamableHTTPConnectionParams(url=url, timeout=timeout, sse_read_timeout=timeout)
        self.toolset = McpToolset(
            connection_params=where,
            header_provider=lambda context: context.state.get("headers") or {},
            progress_callback=self.progressed,
        )
        self.tools, self.agent, self.sessions = {}, LlmAgent(name="a"), InMemorySessionService()

    async def progressed(self, progress, total, message):
        if self.on_progress is not None:
            await self.on_progress(progress, total, message)

    async def list_tools(self):
        self.tools = {tool.name: tool for tool in await self.toolset.get_tools()}
        return list(self.tools)

    async def call(self, name, arguments, *, headers, on_progress):
        self.on_progress = on_progress or self.on_progress
        if name not in self.tools:
            await self.list_tools()
        session = await self.sessions.create_session(
            app_name="kit", user_id="user", state={"headers": headers}
        )
        invocation = InvocationContext(
            invocation_id="1", agent=self.agent, session=session, session_service=self.sessions
        )
        said = await self.tools[name].run_async(
            args=arguments, tool_context=ToolContext(invocation)
        )
        failed = bool(said.get("isError")) or "error" in said
        return said.get("error") or "".join(part["text"] for part in said["content"]), failed

    async def close(self):
        await self.toolset.close()
