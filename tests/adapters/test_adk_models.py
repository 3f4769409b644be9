"""Instructions from servers and sampling, with models of ADK."""

from typing import Any

import pytest
from google.adk.models.llm_request import LlmRequest
from google.adk.models.registry import LLMRegistry

from tests.adapters._adk import ScriptedModel, conversation, house
from tests.adapters._servers import ASKING, NOTES, eras, instructed
from toolkeep.adapters.adk import Toolset, sampling, tools

pytestmark = pytest.mark.requirement("A2")


async def told(*given: Any) -> str:
    """The instructions that the model of an agent with these tools gets."""
    model = ScriptedModel.saying("Done.")
    async with conversation(model, given) as talk:
        await talk.say()
    return model.told[0]


@eras
@pytest.mark.parametrize("live", [True, False])
async def test_the_model_gets_the_instructions_of_the_servers_of_its_tools_once(
    era: str, live: bool
) -> None:
    async with instructed(era) as runtime:
        said = await told(*([Toolset(runtime)] if live else await tools(runtime)))
    assert said.count(NOTES) == 1
    assert "'plain'" not in said


async def test_the_model_gets_no_other_instructions() -> None:
    async with instructed("modern") as runtime:
        for toolset in (Toolset(runtime, ["plain.add"]), Toolset(runtime, instructions=False)):
            assert NOTES not in await told(toolset)


async def test_a_model_may_be_named() -> None:
    class Named(ScriptedModel):
        @classmethod
        def supported_models(cls) -> list[str]:
            return ["toolkeep-tests-.*"]

        def model_post_init(self, context: Any) -> None:
            super().model_post_init(context)
            self.then("A teapot.")

    LLMRegistry.register(Named)
    async with house(sampling=sampling("toolkeep-tests-1")) as (_, runtime):
        result = await runtime.call("kit.ask", ASKING)
    assert result.data["answers"][0]["who"]["model"] == "toolkeep-tests-1"


@eras
async def test_a_model_of_adk_answers_a_server_s_sampling_request(era: Any) -> None:
    model = ScriptedModel.saying("A teapot.")
    async with house({"era": era}, sampling=sampling(model)) as (_, runtime):
        result = await runtime.call("kit.ask", ASKING)
    answer = result.data["answers"][0]["who"]
    assert (answer["content"], answer["model"]) == (
        {"type": "text", "text": "A teapot."},
        "scripted",
    )
    [asked] = requests_of(model)
    assert [(one.role, [part.text for part in one.parts or []]) for one in asked.contents] == [
        ("user", ["Ready?"]),
        ("model", ["Ask."]),
        ("user", ["What is it?", None]),
    ]
    config = asked.config
    assert (config.system_instruction, config.stop_sequences) == ("Be brief.", ["END"])
    assert (config.max_output_tokens, config.temperature) == (17, 0.5)


def requests_of(model: ScriptedModel) -> list[LlmRequest]:
    return model._requests
