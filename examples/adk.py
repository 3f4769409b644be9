"""An agent of Google ADK with the tools of an MCP server."""

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


class Model(BaseLlm):  # stands in for your model: it adds, and then is done
    async def generate_content_async(self, llm_request, stream=False):
        say = types.Part.from_function_call(name="math__add", args={"a": 2, "b": 3})
        if len(llm_request.contents) > 1:
            say = types.Part(text="It is 5.")
        yield LlmResponse(content=types.ModelContent(say), usage_metadata=COUNTED)


async def main() -> None:
    async with ScriptedServer.local() as server, Runtime.open({"math": server.url}) as runtime:
        agent = LlmAgent(name="helper", model=Model(model="own"), tools=[adk.Toolset(runtime)])
        async with InMemoryRunner(agent=agent) as runner:
            for event in await runner.run_debug("What is 2 + 3?", user_id="ada", quiet=True):
                for answer in event.get_function_responses():
                    print(answer.name, (answer.response or {})["result"])
                if event.is_final_response() and event.content:
                    print(event.content.parts[0].text if event.content.parts else "")


asyncio.run(main())
