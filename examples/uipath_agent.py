"""The MCP server of a UiPath agent's definition, as LangChain tools."""

import asyncio

from uipath.agent.models.agent import AgentMcpResourceConfig

from toolkeep.adapters.uipath import open_mcp_tools
from toolkeep.auth import StaticKey
from toolkeep.testing import ScriptedServer

NUMBER = {"type": "number"}
ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "inputSchema": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}},
    "argumentProperties": {"$['b']": {"variant": "static", "value": 3, "isSensitive": False}},
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
    async with ScriptedServer.local(api_key="token") as server:
        # In UiPath leave `url` and `auth` out: the platform knows both.
        options = {"url": server.url, "auth": StaticKey("token")}
        async with open_mcp_tools([config], **options) as [add]:
            print(add.name, add.args)
            print(await add.ainvoke({"a": 2}))


asyncio.run(main())
