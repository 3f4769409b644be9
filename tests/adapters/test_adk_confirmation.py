"""What needs a confirmation: ADK asks for it, and nothing runs before it was given."""

from collections.abc import Mapping
from typing import Any

import pytest
from google.adk.events.event import Event
from google.genai import types

from tests.adapters._adk import ScriptedModel, conversation, house
from toolkeep import Tool
from toolkeep.adapters import adk

pytestmark = pytest.mark.requirement("A2")

HARMLESS: dict[str, Any] = {
    "name": "harmless",
    "inputSchema": {"type": "object"},
    "annotations": {"destructiveHint": False},
}
ASKING = "adk_request_confirmation"
"""What ADK calls the question whether a tool may be called."""


async def only_drop(tool: Tool, args: Mapping[str, Any], context: Any) -> bool:
    return args.get("key") == "drop"


def asked(events: list[Event]) -> list[types.FunctionCall]:
    calls = [call for event in events for call in event.get_function_calls()]
    return [call for call in calls if call.name == ASKING]


def reply(question: types.FunctionCall, *, confirmed: bool) -> types.Content:
    answer = types.FunctionResponse(id=question.id, name=ASKING, response={"confirmed": confirmed})
    return types.Content(role="user", parts=[types.Part(function_response=answer)])


@pytest.mark.parametrize("rule", [True, "destructive", only_drop])
@pytest.mark.parametrize("confirmed", [True, False])
async def test_a_call_that_must_be_confirmed_runs_only_when_it_was(rule: Any, confirmed: bool):
    async with house() as (kit, runtime):
        model = ScriptedModel.saying([("kit__record", {"key": "drop"})], "Done.")
        toolset = adk.Toolset(runtime, require_confirmation=rule)
        async with conversation(model, [toolset]) as talk:
            (question,) = asked(await talk.say())
            assert await kit.requests("tools/call") == []
            await talk.say(reply(question, confirmed=confirmed))
        assert await kit.executions("drop") == int(confirmed)


@pytest.mark.parametrize(
    ("rule", "tool"),
    [
        (False, "record"),
        ("destructive", "record_read_only"),
        ("destructive", "harmless"),
        (only_drop, "record"),
    ],
)
async def test_what_need_not_be_confirmed_runs_at_once(rule: Any, tool: str):
    async with house({"tools": [HARMLESS]}) as (kit, runtime):
        model = ScriptedModel.saying([(f"kit__{tool}", {})], "Done.")
        toolset = adk.Toolset(runtime, require_confirmation=rule)
        async with conversation(model, [toolset]) as talk:
            assert asked(await talk.say()) == []
        assert len(await kit.requests("tools/call")) == 1


async def test_a_rule_that_fails_lets_nothing_through():
    def broken(tool: Tool, args: Mapping[str, Any], context: Any) -> bool:
        raise ZeroDivisionError

    async with house() as (kit, runtime):
        model = ScriptedModel.saying([("kit__record", {})])
        toolset = adk.Toolset(runtime, require_confirmation=broken)
        async with conversation(model, [toolset]) as talk:
            with pytest.raises(ZeroDivisionError):
                await talk.say()
        assert await kit.requests("tools/call") == []
