"""A LangChain agent with the tools of an MCP server."""

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall

from toolkeep import Runtime
from toolkeep.adapters.langchain import tools
from toolkeep.testing import ScriptedServer


class Model(GenericFakeChatModel):  # stands in for your chat model: it adds, and then is done
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


ADD = ToolCall(name="math__add", args={"a": 2, "b": 3}, id="1")
MODEL = Model(messages=iter([AIMessage("", tool_calls=[ADD]), AIMessage("It is 5.")]))


async def main() -> None:
    async with ScriptedServer.local() as server, Runtime.open({"math": server.url}) as runtime:
        agent: Any = create_agent(MODEL, await tools(runtime))
        state = await agent.ainvoke({"messages": "What is 2 + 3?"})
        for message in state["messages"][-2:]:
            print(f"{message.type}: {message.text}")


asyncio.run(main())
