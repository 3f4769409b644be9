"""Code mode in UiPath: the tools of a server of an agent's definition, called in one program."""

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall
from uipath.agent.models.agent import AgentMcpResourceConfig

from toolkeep.adapters.langchain import tools
from toolkeep.adapters.uipath import McpClient
from toolkeep.auth import StaticKey
from toolkeep.code_mode import code_tools
from toolkeep.testing import ScriptedServer

ABOUT = {"name": "Calculator", "description": "Adds.", "folderPath": "Shared", "slug": "math"}
PROGRAM = "first = await math__add(a=2, b=3)\nawait math__add(a=first['sum'], b=10)"
RUN = ToolCall(name="toolkeep__run_code", args={"code": PROGRAM}, id="1")
SAID = [AIMessage("", tool_calls=[RUN]), AIMessage("Done.")]


class Model(GenericFakeChatModel):  # stands in for yours
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


async def main() -> None:
    resource = {"$resourceType": "mcp", "availableTools": [], **ABOUT}
    config = AgentMcpResourceConfig.model_validate(resource)
    server = ScriptedServer.local(api_key="token")
    async with server, McpClient(config, url=server.url, auth=StaticKey("token")) as client:
        found = await tools(code_tools(await client.connect(), allow=["add"]))
        agent: Any = create_agent(Model(messages=iter(SAID)), found)
        print((await agent.ainvoke({"messages": "2 + 3 + 10?"}))["messages"][-2].text)


asyncio.run(main())
