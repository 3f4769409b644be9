"""Code mode in Google ADK: the model calls a tool twice in one program."""

import asyncio

from google.adk.agents.llm_agent import LlmAgent
from google.adk.models import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from toolkeep import Runtime
from toolkeep.adapters import adk
from toolkeep.code_mode import code_tools

PROGRAM = "sum([(await builtin__price(of=one))['result'] for one in ('lamp', 'desk')])"
RUN = types.Part.from_function_call(name="toolkeep__run_code", args={"code": PROGRAM})
COUNTED = types.GenerateContentResponseUsageMetadata(prompt_token_count=1)


class Model(BaseLlm):  # stands in for yours: it runs one program, and then is done
    async def generate_content_async(self, llm_request, stream=False):
        say = RUN if len(llm_request.contents) == 1 else types.Part(text="Done.")
        yield LlmResponse(content=types.ModelContent(say), usage_metadata=COUNTED)


def price(of: str) -> float:
    return {"lamp": 9.5, "desk": 120.0}[of]


async def main() -> None:
    async with Runtime({}, functions=[price]) as runtime:
        tools = await adk.tools(code_tools(runtime, allow=["price"]))
        agent = LlmAgent(name="helper", model=Model(model="own"), tools=[*tools])
        async with InMemoryRunner(agent=agent) as runner:
            events = await runner.run_debug("How much are both?", user_id="ada", quiet=True)
            print((events[1].get_function_responses()[0].response or {})["result"])


asyncio.run(main())
