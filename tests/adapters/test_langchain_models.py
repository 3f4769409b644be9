"""Instructions from servers and sampling, with chat models of LangChain."""

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from pydantic import Field

from tests.adapters._langchain import HELLO, ScriptedModel, every_era, house, model_of, thread
from tests.adapters._servers import ASKING, NOTES, QUESTION, instructed
from toolkeep.adapters.langchain import instructions, live_tools, sampling

pytestmark = pytest.mark.requirement("A1")


async def system_of(**options: Any) -> SystemMessage | None:
    """The system message that the model of an agent with these live tools gets."""
    async with instructed("modern") as runtime:
        model = model_of()
        live = live_tools(runtime, **options)
        agent: Any = create_agent(model, system_prompt="Help.", middleware=[live])
        await agent.ainvoke(HELLO, thread())
    first = model.seen[0][0]
    return first if isinstance(first, SystemMessage) else None


@every_era
async def test_instructions_are_made_for_the_system_prompt_of_an_agent(era: str) -> None:
    async with instructed(era) as runtime:
        found = await instructions(runtime)
        assert await instructions(runtime, ["plain.add"]) == ""
        assert await instructions(runtime, ["kit.add", "kit.echo"]) == found
    assert NOTES in found
    assert "'kit'" in found
    assert "'plain'" not in found


async def test_live_tools_add_the_instructions_of_their_servers_to_the_system_prompt() -> None:
    system = await system_of()
    assert system is not None
    assert str(system.text).startswith("Help.")
    assert NOTES in str(system.text)


@pytest.mark.parametrize("options", [{"instructions": False}, {"names": ["plain.add"]}])
async def test_live_tools_add_no_other_instructions(options: dict[str, Any]) -> None:
    system = await system_of(**options)
    assert system is not None
    assert str(system.text) == "Help."


@every_era
async def test_a_chat_model_answers_a_server_s_sampling_request(era: str) -> None:
    class Chat(ScriptedModel):
        limits: dict[str, Any] = Field(default_factory=dict[str, Any])

        def _generate(self, messages: Any, stop: Any = None, *args: Any, **limits: Any) -> Any:
            self.limits = {"stop": stop, **limits}
            return super()._generate(messages)

    model = Chat(steps=[AIMessage("A teapot.")])
    async with house(f"http {era}", sampling=sampling(model)) as (_, runtime):
        result = await runtime.call("kit.ask", ASKING)
    assert result.data["answers"][0]["who"]["content"] == {"type": "text", "text": "A teapot."}
    [asked] = model.seen
    assert [type(message) for message in asked] == [
        SystemMessage,
        HumanMessage,
        AIMessage,
        HumanMessage,
    ]
    assert [str(message.text) for message in asked] == [
        "Be brief.",
        "Ready?",
        "Ask.",
        "What is it?",
    ]
    assert asked[-1].content_blocks[1]["type"] == "image"
    limits = {key: model.limits[key] for key in ("max_tokens", "temperature", "stop")}
    assert limits == {"max_tokens": 17, "temperature": 0.5, "stop": ["END"]}


async def test_a_request_with_tools_is_declined_and_the_model_is_not_asked() -> None:
    model = model_of()
    tool = {"name": "x", "inputSchema": {"type": "object"}}
    question = {**QUESTION, "params": {**QUESTION["params"], "tools": [tool]}}
    async with house("http legacy", sampling=sampling(model)) as (_, runtime):
        result = await runtime.call("kit.ask", {**ASKING, "requests": {"who": question}})
    assert "error" in result.data["answers"][0]["who"]
    assert model.seen == []
