"""What the tests of the OpenAI Agents adapter share: a model that says what it is told, and a run.

Nothing here asserts anything. The model is the SDK's own for tests: no test needs a network.
"""

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from agents import Agent, FunctionTool, Runner, set_tracing_disabled
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

from tests.adapters._servers import Turn, wait_for
from toolkeep import Runtime
from toolkeep.adapters.openai_agents import RuntimeServer, tools

set_tracing_disabled(True)  # it would be sent to a server of the SDK's maker


def scripted(*turns: Turn) -> ScriptedModel:
    """Calls are numbered through: "1", "2", …"""
    numbers = itertools.count(1)
    script: list[Any] = []
    before: list[Callable[[], Awaitable[Any]]] = []
    for turn in turns:
        if isinstance(turn, str):
            step: list[Any] = [assistant_message(turn)]
        elif callable(turn):
            before.append(turn)
            continue
        else:
            step = [function_call(name, args, call_id=str(next(numbers))) for name, args in turn]
        script.append(after(before, step))
        before = []
    return ScriptedModel(script)


def after(happenings: list[Callable[[], Awaitable[Any]]], step: list[Any]) -> ModelStep:
    async def respond(_: Any) -> ModelStep:
        for happening in happenings:
            await happening()
        return ModelStep(output=step)

    return ModelStep.respond(respond)


async def as_server(runtime: Runtime, **options: Any) -> dict[str, Any]:
    return {"mcp_servers": [RuntimeServer(runtime, **options)]}


async def as_functions(runtime: Runtime, **options: Any) -> dict[str, Any]:
    return {"tools": await tools(runtime, **options)}


surfaces = pytest.mark.parametrize("offer", [as_server, as_functions])
"""The two ways in which an agent gets its tools."""
Offer = Callable[..., Awaitable[dict[str, Any]]]


def agent_of(model: ScriptedModel, **offered: Any) -> Agent[Any]:
    return Agent(name="helper", model=model, **offered)


async def run(model: ScriptedModel, offered: dict[str, Any], **options: Any) -> Any:
    return await wait_for(Runner.run(agent_of(model, **offered), "Go on.", **options))


def outputs(model: ScriptedModel) -> dict[str, Any]:
    """What tools answered, by the number of the call, as the model saw it last."""
    assert model.last_call is not None
    items = [item for item in model.last_call.input if isinstance(item, dict)]
    return {
        item["call_id"]: plain(item["output"])
        for item in items
        if item.get("type") == "function_call_output"
    }


def plain(output: Any) -> Any:
    """One block of text as that text."""
    match output:
        case [{"type": "input_text", "text": text}]:
            return text
        case _:
            return output


def offered_to(model: ScriptedModel, turn: int = -1) -> dict[str, FunctionTool]:
    """The tools that the model was shown at a turn, by name."""
    shown = model.calls[turn].tools
    return {tool.name: tool for tool in shown if isinstance(tool, FunctionTool)}
