"""Code mode in LangChain: the model calls a tool twice in one program."""

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall

from toolkeep import Runtime
from toolkeep.adapters.langchain import tools
from toolkeep.code_mode import code_tools

PROGRAM = """lamp = await builtin__price(of="lamp")
lamp["result"] + (await builtin__price(of="desk"))["result"]"""
RUN = ToolCall(name="toolkeep__run_code", args={"code": PROGRAM}, id="1")
SAID = [AIMessage("", tool_calls=[RUN]), AIMessage("Done.")]


class Model(GenericFakeChatModel):  # stands in for yours
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


def price(of: str) -> float:
    return {"lamp": 9.5, "desk": 120.0}[of]


async def main() -> None:
    async with Runtime({}, functions=[price]) as runtime:
        found = await tools(code_tools(runtime, allow=["price"]))
        agent: Any = create_agent(Model(messages=iter(SAID)), found)
        print((await agent.ainvoke({"messages": "How much are both?"}))["messages"][-2].text)


asyncio.run(main())
