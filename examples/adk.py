"""Tools of any server in an agent of Google ADK, and their progress in the agent's own events."""

import asyncio

from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from toolkeep import Runtime
from toolkeep.adapters import adk
from toolkeep.testing import ScriptedServer

COUNTED = types.GenerateContentResponseUsageMetadata(prompt_token_count=1)


class Model(BaseLlm):  # stands in for yours: it calls one tool, and then is done
    async def generate_content_async(self, llm_request, stream=False):
        say = types.Part.from_function_call(name="notes__steps", args={"count": 2})
        if len(llm_request.contents) > 1:
            say = types.Part(text="Done.")
        yield LlmResponse(content=types.ModelContent(say), usage_metadata=COUNTED)


async def main() -> None:
    kit = ScriptedServer.local(encoding="sse")
    async with kit, Runtime.open({"notes": kit.url}) as runtime:
        agent = LlmAgent(name="helper", model=Model(model="own"), tools=[adk.Toolset(runtime)])
        async with InMemoryRunner(agent=agent) as runner:
            for event in await runner.run_debug("Take two steps.", user_id="ada", quiet=True):
                for progress in (event.custom_metadata or {}).values():
                    print(progress["tool"], "says:", progress["message"])
                for answer in event.get_function_responses():
                    print(answer.name, "brought:", (answer.response or {})["result"])


asyncio.run(main())
