"""Pydantic AI: a runtime as a toolset, and an outcome that nobody knows, told as it is."""

import asyncio

from pydantic_ai import Agent, ModelMessage, ModelResponse, RunContext, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from toolkeep import CallContext, Runtime
from toolkeep.adapters.pydantic_ai import RuntimeToolset
from toolkeep.testing import Behaviour, Rule, ScriptedServer


def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """In place of a real model, so that this runs without a network."""
    last = messages[-1].parts[-1]
    if last.part_kind == "tool-return":
        return ModelResponse(parts=[TextPart(f"I was told: {last.content}")])
    return ModelResponse(parts=[ToolCallPart("bank__record", {"key": "transfer"})])


def on_behalf_of(run: RunContext[str]) -> CallContext:
    return CallContext(principal=run.deps, headers={"authorization": f"Bearer of {run.deps}"})


async def main() -> None:
    async with ScriptedServer.local() as server:
        async with Runtime.open({"bank": server.spec}) as runtime:
            toolset = RuntimeToolset(runtime, ["bank.record"], context=on_behalf_of)
            agent = Agent(FunctionModel(think), deps_type=str, toolsets=[toolset])
            print((await agent.run("Transfer the money.", deps="ada")).output)
            await server.script(Rule(do=Behaviour(drop="after_run"), tool="record"))
            print((await agent.run("Transfer it again.", deps="ada")).output)
        calls = await server.requests(tool="record")
        print({call.headers["authorization"] for call in calls}, await server.ledger())


asyncio.run(main())
