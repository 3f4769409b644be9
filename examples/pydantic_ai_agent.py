"""An agent of Pydantic AI with the tools of an MCP server."""

import asyncio

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from toolkeep import Runtime
from toolkeep.adapters.pydantic_ai import RuntimeToolset
from toolkeep.testing import ScriptedServer


def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Stands in for your model: it adds, and then is done."""
    last = messages[-1].parts[-1]
    if last.part_kind == "tool-return":
        return ModelResponse(parts=[TextPart(f"The tool says: {last.content}")])
    return ModelResponse(parts=[ToolCallPart("math__add", {"a": 2, "b": 3})])


async def main() -> None:
    async with ScriptedServer.local() as server, Runtime.open({"math": server.url}) as runtime:
        agent = Agent(FunctionModel(think), toolsets=[RuntimeToolset(runtime)])
        print((await agent.run("What is 2 + 3?")).output)


asyncio.run(main())
