"""Where ADK runs tools otherwise than in a runner's plain loop, and what it asks them besides."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.flows.llm_flows.tools._error_handler import detect_error_type_for_telemetry
from google.adk.runners import InMemoryRunner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import FunctionNode, Workflow
from google.genai import types

from tests.adapters._adk import (
    BOUND,
    ScriptedModel,
    conversation,
    house,
    progress,
    responses,
)
from toolkeep.adapters import adk
from toolkeep.events import InputNeeded
from toolkeep.testing import Behaviour, Rule

pytestmark = pytest.mark.requirement("A2")


async def without_a_runner() -> ToolContext:
    service = InMemorySessionService()
    session = await service.create_session(app_name="tests", user_id="ada")
    agent = LlmAgent(name="helper", model=ScriptedModel())
    running = InvocationContext(
        session_service=service, invocation_id="1", agent=agent, session=session
    )
    return ToolContext(running, function_call_id="call")


async def test_a_tool_can_be_run_without_a_runner():
    async with house() as (_, runtime):
        (add,) = await adk.tools(runtime, ["add"])
        async with asyncio.timeout(BOUND):
            answer = await add.run_async(
                args={"a": 1, "b": 2}, tool_context=await without_a_runner()
            )
    assert answer["result"] == {"sum": 3}


async def test_what_must_be_confirmed_does_not_run_even_where_nobody_asks():
    async with house() as (kit, runtime):
        (record,) = await adk.tools(runtime, ["record"], require_confirmation=True)
        async with asyncio.timeout(BOUND):
            answer = await record.run_async(args={}, tool_context=await without_a_runner())
        assert answer["status"] == "error"
        assert await kit.ledger() == {}


async def test_a_run_that_is_aborted_cancels_its_call():
    async with house({"encoding": "sse"}) as (kit, runtime):
        model, abort = ScriptedModel.saying([("kit__slow", {"seconds": 30})]), asyncio.Event()

        async def abort_once_it_runs() -> None:
            await kit.requests(tool="slow", at_least=1)
            abort.set()

        async with conversation(model, [adk.Toolset(runtime)]) as talk:
            aborting = asyncio.create_task(abort_once_it_runs())
            await talk.say(abort_signal=abort)
            await aborting
            await kit.cancelled(at_least=1)
            answers = [one.response or {} for one in responses(await talk.kept())]
            assert not any("tool_name" in answer for answer in answers)


async def test_an_agent_in_a_workflow_shows_progress_of_calls_at_the_same_time():
    async with house({"encoding": "sse"}) as (_, runtime):
        both = [("kit__steps", {"count": 2}), ("kit__steps", {"count": 3})]
        model = ScriptedModel.saying(both, "Done.")
        agent = LlmAgent(name="helper", model=model, tools=[adk.Toolset(runtime)])
        events = await all_of(Workflow(name="flow", edges=[("START", agent)]))
    assert [answer["result"] for answer in model.answers] == ["2 steps", "3 steps"]
    shown: dict[str, list[float]] = {}
    for one in progress(events):
        shown.setdefault(one["function_call_id"], []).append(one["progress"])
    assert sorted(shown.values()) == [[1, 2], [1, 2, 3]]


@pytest.mark.parametrize(("rerun", "shown"), [(True, [1, 2]), (False, [])])
async def test_a_node_of_a_workflow_can_run_a_tool_whatever_adk_lets_it_show(
    rerun: bool, shown: list[float]
):
    async with house({"encoding": "sse"}) as (_, runtime):
        (steps,) = await adk.tools(runtime, ["steps"])

        async def call_it(ctx: ToolContext) -> dict[str, Any]:
            ctx.function_call_id = "7"  # some providers number their calls
            return await steps.run_async(args={"count": 2}, tool_context=ctx)

        node = FunctionNode(func=call_it, rerun_on_resume=rerun)
        events = await all_of(Workflow(name="flow", edges=[("START", node)]))
    (answer,) = [event.output for event in events if event.output is not None]
    assert answer["result"] == "2 steps"
    assert [one["progress"] for one in progress(events)] == shown


async def all_of(workflow: Workflow) -> list[Event]:
    runner = InMemoryRunner(node=workflow, app_name="tests")
    session = await runner.session_service.create_session(app_name="tests", user_id="ada")
    message = types.Content(role="user", parts=[types.Part(text="Go on.")])
    running = runner.run_async(user_id="ada", session_id=session.id, new_message=message)
    try:
        async with asyncio.timeout(BOUND):
            return [event async for event in running]
    finally:
        await runner.close()


async def test_an_image_that_is_none_is_said_to_be_one():
    image = {"type": "image", "mimeType": "image/png", "data": "not base64"}
    async with house({"era": "legacy"}) as (kit, runtime):
        await kit.script(Rule(tool="content", do=Behaviour(result={"content": [image]})))
        model = ScriptedModel.saying([("kit__content", {})], "Seen.")
        async with conversation(model, await adk.tools(runtime, ["content"])) as talk:
            await talk.say()
    (answer,) = model.answers
    assert answer["status"] == "success"
    assert [type(one) for one in answer["media"]] == [str]


@pytest.mark.parametrize(("status", "kind"), [("success", None), ("error", "TOOL_ERROR")])
async def test_adks_telemetry_finds_out_what_failed(status: str, kind: str | None):
    answer: dict[str, Any] = {"status": status, "tool_name": "add"}
    if status == "error":
        answer["error"] = "no such row"
    async with house() as (_, runtime):
        (add,) = await adk.tools(runtime, ["add"])
        found = detect_error_type_for_telemetry(add, await without_a_runner(), answer)
    assert found == kind


# -- questions ------------------------------------------------------------------------------------

WHO = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Who?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
}
ADA = {"action": "accept", "content": {"name": "Ada"}}


async def as_ada(needed: InputNeeded) -> Any:
    return ADA


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(
    ("elicitation", "answer"), [(as_ada, ADA), ("caller", {"action": "decline"})]
)
async def test_a_question_is_answered_by_the_runtime_s_function_or_declined_at_once(
    era: str, elicitation: Any, answer: Any
):
    """Nobody who watches a call in ADK answers: the function must not be forestalled."""
    spec = {"timeouts": {"input": 10 * BOUND}}
    async with house({"era": era, "encoding": "sse"}, spec, elicitation=elicitation) as (
        kit,
        runtime,
    ):
        asking = ("kit__ask", {"requests": {"name": WHO}, "rounds": 1, "key": "k"})
        model = ScriptedModel.saying([asking], "Well.")
        async with conversation(model, [adk.Toolset(runtime)]) as talk:
            await talk.say()
        (told,) = model.answers
        assert told["result"] == {"answers": [{"name": answer}]}
        assert await kit.executions("k") == 1


def test_without_adk_its_adapter_says_what_to_install():
    program = (
        "import sys; sys.modules['google.adk'] = None\n"
        "from toolkeep import ConfigError\n"
        "try: import toolkeep.adapters.adk\n"
        "except ConfigError as error: print(error.remedy)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert "`adk`" in done.stdout
