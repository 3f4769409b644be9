"""OpenAI Agents: tools that survive, with their progress in the SDK's own stream."""

import asyncio

from agents import Agent, Runner, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from toolkeep import CallContext, Runtime
from toolkeep.adapters.openai_agents import ProgressFeed, RuntimeServer, ToolProgress
from toolkeep.testing import ScriptedServer

set_tracing_disabled(True)
ADA = CallContext(principal="ada", headers={"authorization": "Bearer hers"})
MODEL = ScriptedModel(  # in place of a real one, so that this runs without a network
    [
        [function_call("team__steps", {"count": 2}, call_id="1")],
        [function_call("team__headers", {}, call_id="2")],
        [assistant_message("Done.")],
    ]
)


async def main() -> None:
    async with ScriptedServer.local(encoding="sse") as server:
        async with Runtime.open({"team": server.spec}) as runtime:
            tools = RuntimeServer(runtime, ["steps", "headers"], require_approval="never")
            agent = Agent(name="helper", model=MODEL, mcp_servers=[tools])
            with ProgressFeed() as feed:
                run = Runner.run_streamed(agent, "Analyze the data.", context=ADA)
            async for event in feed.events(run):
                if isinstance(event, ToolProgress):
                    print(event.tool_name, event.message)
            print(run.final_output)
        (call,) = await server.requests(tool="headers")
        print("called with", call.headers["authorization"])


asyncio.run(main())
