"""Code mode in Pydantic AI: the model calls a tool twice in one program."""

import asyncio

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from toolkeep import Runtime
from toolkeep.adapters.pydantic_ai import RuntimeToolset
from toolkeep.code_mode import code_tools

PROGRAM = """lamp = await builtin__price(of="lamp")
lamp["result"] + (await builtin__price(of="desk"))["result"]"""


def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """In place of a real model, so that this runs without a network."""
    last = messages[-1].parts[-1]
    if last.part_kind == "tool-return":
        return ModelResponse(parts=[TextPart(f"I was told: {last.content}")])
    return ModelResponse(parts=[ToolCallPart("toolkeep__run_code", {"code": PROGRAM})])


def price(of: str) -> float:
    return {"lamp": 9.5, "desk": 120.0}[of]


async def main() -> None:
    async with Runtime({}, functions=[price]) as runtime:
        toolset = RuntimeToolset(code_tools(runtime, allow=["price"]))
        agent = Agent(FunctionModel(think), toolsets=[toolset])
        print((await agent.run("How much are both?")).output)


asyncio.run(main())
