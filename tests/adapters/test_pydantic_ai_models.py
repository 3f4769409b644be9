"""Instructions from servers and sampling, with models of Pydantic AI."""

from typing import Any

import pytest
from pydantic_ai import ModelMessage, ModelRequest, ModelResponse, TextPart
from pydantic_ai.messages import BinaryContent
from pydantic_ai.models.function import AgentInfo, FunctionModel

from tests.adapters._pydantic_ai import Script, run
from tests.adapters._servers import ASKING, NOTES, eras, house, instructed
from toolkeep.adapters.pydantic_ai import RuntimeToolset, sampling

pytestmark = pytest.mark.requirement("A4")


async def told(toolset: Any) -> str:
    """The instructions that the model of an agent with this toolset gets."""
    script = Script("done")
    await run(script, toolset)
    [request] = script.messages
    assert isinstance(request, ModelRequest)
    return request.instructions or ""


@eras
async def test_the_model_gets_the_instructions_of_the_servers_of_its_tools(era: str) -> None:
    async with instructed(era) as runtime:
        said = await told(RuntimeToolset(runtime))
    assert said.count(NOTES) == 1
    assert "'plain'" not in said


async def test_the_model_gets_no_other_instructions() -> None:
    async with instructed("modern") as runtime:
        some, none = (
            RuntimeToolset[Any](runtime, ["plain.add"]),
            RuntimeToolset[Any](runtime, instructions=False),
        )
        assert await told(some) == await told(none) == ""


async def test_a_model_may_be_named() -> None:
    async with house(sampling=sampling("test")) as (_, runtime):
        result = await runtime.call("kit.ask", ASKING)
    assert result.data["answers"][0]["who"]["model"] == "test"


@eras
async def test_a_model_of_pydantic_ai_answers_a_server_s_sampling_request(era: str) -> None:
    asked: list[tuple[list[ModelMessage], Any]] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append((messages, info.model_settings))
        return ModelResponse(parts=[TextPart("A teapot.")])

    model = FunctionModel(answer, model_name="scripted")
    async with house(era, sampling=sampling(model)) as (_, runtime):
        result = await runtime.call("kit.ask", ASKING)
    said = result.data["answers"][0]["who"]
    assert (said["content"], said["model"]) == ({"type": "text", "text": "A teapot."}, "scripted")
    [(messages, settings)] = asked
    parts = [part for message in messages for part in message.parts]
    contents: list[Any] = [getattr(part, "content", None) for part in parts]
    assert contents[:3] == ["Be brief.", ["Ready?"], "Ask."]
    text, image = contents[3]
    assert text == "What is it?"
    assert isinstance(image, BinaryContent)
    assert dict(settings) == {"max_tokens": 17, "temperature": 0.5, "stop_sequences": ["END"]}
