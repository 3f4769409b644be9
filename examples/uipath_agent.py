"""The MCP servers of a UiPath agent's definition, as LangChain tools."""

import asyncio

from uipath.agent.models.agent import AgentMcpResourceConfig

from toolkeep.adapters.uipath import McpClient, create_mcp_tools_from_metadata_for_mcp_server
from toolkeep.auth import StaticKey
from toolkeep.testing import ScriptedServer

NUMBER = {"type": "number"}
ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "inputSchema": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}},
}
RESOURCE = {
    "$resourceType": "mcp",
    "name": "Calculator",
    "description": "Adds.",
    "folderPath": "Shared",
    "slug": "calculator",
    "availableTools": [ADD],
}


async def main() -> None:
    config = AgentMcpResourceConfig.model_validate(RESOURCE)
    async with (
        ScriptedServer.local(api_key="token") as server,
        # Without `url` and `auth`, UiPath's SDK is asked for both at the first call.
        McpClient(config, url=server.url, auth=StaticKey("token")) as client,
    ):
        [add] = await create_mcp_tools_from_metadata_for_mcp_server(config, client)
        print(add.name, add.metadata and add.metadata["folder_path"])
        print(await add.ainvoke({"a": 2, "b": 3}))


asyncio.run(main())
