"""An agent of the OpenAI Agents SDK with the tools of an MCP server."""

import asyncio

from agents import Agent, Runner, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from toolkeep import Runtime
from toolkeep.adapters.openai_agents import RuntimeServer
from toolkeep.testing import ScriptedServer

set_tracing_disabled(True)
MODEL = ScriptedModel(  # stands in for your model: it adds, and then is done
    [
        [function_call("math__add", {"a": 2, "b": 3}, call_id="1")],
        [assistant_message("It is 5.")],
    ]
)


async def main() -> None:
    async with ScriptedServer.local() as server, Runtime.open({"math": server.url}) as runtime:
        agent = Agent(name="helper", model=MODEL, mcp_servers=[RuntimeServer(runtime)])
        result = await Runner.run(agent, "What is 2 + 3?")
        print("The tool said:", result.new_items[1].output["text"])
        print("The agent says:", result.final_output)


asyncio.run(main())
