"""Code mode in OpenAI Agents: the model calls a tool twice in one program."""

import asyncio

from agents import Agent, Runner, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from toolkeep import Runtime
from toolkeep.adapters.openai_agents import tools
from toolkeep.code_mode import code_tools

set_tracing_disabled(True)
PROGRAM = """lamp = await builtin__price(of="lamp")
lamp["result"] + (await builtin__price(of="desk"))["result"]"""
MODEL = ScriptedModel(  # in place of a real one, so that this runs without a network
    [
        [function_call("toolkeep__run_code", {"code": PROGRAM}, call_id="1")],
        [assistant_message("Done.")],
    ]
)


def price(of: str) -> float:
    return {"lamp": 9.5, "desk": 120.0}[of]


async def main() -> None:
    async with Runtime({}, functions=[price]) as runtime:
        found = await tools(code_tools(runtime, allow=["price"]))
        agent = Agent(name="helper", model=MODEL, tools=[*found])
        result = await Runner.run(agent, "How much are both?")
        print(result.new_items[1].output, result.final_output)


asyncio.run(main())
