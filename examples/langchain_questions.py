"""A LangChain agent that asks its user: a question of the server interrupts the graph."""

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from toolkeep import Runtime
from toolkeep.adapters.langchain import tools
from toolkeep.testing import ScriptedServer

NAME = {"type": "object", "properties": {"name": {"type": "string"}}}
FORM = {"mode": "form", "message": "Your name?", "requestedSchema": NAME}
ASK = {"requests": {"who": {"method": "elicitation/create", "params": FORM}}}
SAID = [AIMessage("", tool_calls=[ToolCall(name="kit__ask", args=ASK, id="1")]), AIMessage("Hi!")]


class Model(GenericFakeChatModel):  # stands in for yours
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


async def main(kit: ScriptedServer) -> None:
    async with kit, Runtime.open({"kit": kit.spec}, elicitation="caller") as runtime:
        found = await tools(runtime, interrupts=True)
        agent: Any = create_agent(Model(messages=iter(SAID)), found, checkpointer=InMemorySaver())
        run = {"configurable": {"thread_id": "1", "principal": "ada"}}
        [stop] = (await agent.ainvoke({"messages": "Hello"}, run))["__interrupt__"]
        print(stop.value["questions"]["who"]["params"]["message"])
        answer = Command(resume={"action": "accept", "content": {"name": "Ada"}})
        print((await agent.ainvoke(answer, run))["messages"][-2].artifact)


asyncio.run(main(ScriptedServer.local()))
