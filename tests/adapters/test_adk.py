"""ADK's own kinds of tools and toolsets: what the model is shown and what it gets."""

import asyncio
import copy
import logging
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool

from tests.adapters._adk import BOUND, ScriptedModel, conversation, house, responses
from toolkeep import ConfigError, Runtime, UnknownTool
from toolkeep.adapters import adk
from toolkeep.events import CatalogueChanged
from toolkeep.testing import ScriptedServer

pytestmark = pytest.mark.requirement("A2")

NESTED: dict[str, Any] = {
    "name": "nested",
    "description": "Takes a tree.",
    "inputSchema": {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/node"}},
        "required": ["tree"],
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    },
}


def local_time(city: str) -> dict[str, str]:
    """A tool of the agent's own."""
    return {"time": f"noon in {city}"}


# -- what the model is shown ----------------------------------------------------------------------


async def test_a_tool_is_declared_as_its_server_describes_it():
    async with house({"tools": [NESTED]}) as (_, runtime):
        model = ScriptedModel.saying("Hello.")
        async with conversation(model, await adk.tools(runtime)) as talk:
            await talk.say()
        (offered,) = model.offered
        assert set(offered) == {tool.model_name for tool in runtime.catalogue}
        assert offered["kit__nested"].parameters_json_schema == NESTED["inputSchema"]
        assert offered["kit__nested"].description == NESTED["description"]


async def test_what_is_done_to_a_declaration_does_not_reach_the_catalogue():
    async with house({"tools": [NESTED]}) as (_, runtime):
        before = copy.deepcopy(runtime.catalogue.tool("kit.nested").input_schema)
        (tool,) = await adk.tools(runtime, ["nested"])
        declaration = tool._get_declaration()
        schema: Any = declaration.parameters_json_schema
        schema["properties"].clear()
        assert runtime.catalogue.tool("kit.nested").input_schema == before


async def test_a_log_line_names_the_tools_that_were_converted(caplog: pytest.LogCaptureFixture):
    async with house() as (_, runtime):
        with caplog.at_level(logging.INFO, "toolkeep.adapters"):
            await adk.tools(runtime, ["add", "echo"])
    assert "2 tools converted for ADK: kit.add, kit.echo" in caplog.messages


async def test_every_tool_has_its_own_identity_and_calls_its_own_server():
    async with ScriptedServer.local() as one, ScriptedServer.local() as two:
        servers = {"one": one.spec, "two": two.spec}
        async with Runtime({"mcpServers": servers}) as runtime:
            made = await adk.tools(runtime, ["one.record", "two.record"])
            calls = [(tool.name, {"key": tool.tool.server}) for tool in made]
            model = ScriptedModel.saying([*calls], "Done.")
            async with conversation(model, made) as talk:
                await talk.say()
        assert len({tool.name for tool in made}) == 2
        assert [answer["namespace"] for answer in model.answers] == ["one", "two"]
        assert (await one.ledger(), await two.ledger()) == ({"one": 1}, {"two": 1})


async def test_names_that_are_missing_are_all_named_before_there_is_an_agent():
    async with house() as (_, runtime):
        with pytest.raises(UnknownTool) as missing:
            await adk.tools(runtime, ["echo", "nothing", "nobody"])
    assert "nothing" in str(missing.value)
    assert "nobody" in str(missing.value)


# -- what the model gets --------------------------------------------------------------------------


async def test_every_kind_of_content_reaches_the_model():
    async with house() as (_, runtime):
        model = ScriptedModel.saying([("kit__content", {})], "Seen.")
        async with conversation(model, await adk.tools(runtime, ["content"])) as talk:
            (response,) = responses(await talk.say())
    answer, media = response.response or {}, response.parts or []
    assert answer["result"] == "some text"
    assert answer["resources"] == [
        {"uri": "kit://notes", "name": "notes"},
        {"uri": "kit://notes", "mimeType": "text/plain", "text": "a note"},
    ]
    kinds = [part.inline_data.mime_type for part in media if part.inline_data]
    assert kinds == ["image/png", "audio/wav"]
    assert set(answer) == {
        *("status", "result", "resources", "tool_name", "namespace", "execution_time")
    }


# -- swapping -------------------------------------------------------------------------------------


async def test_update_tools_swaps_ours_and_leaves_the_agents_own():
    async with house() as (_, runtime):
        model = ScriptedModel.saying("One.", "Two.")
        made = await adk.tools(runtime, ["echo"], require_confirmation=True)
        agent = LlmAgent(name="helper", model=model, tools=[local_time, *made])
        async with conversation(agent) as talk:
            await talk.say()
            await adk.update_tools(agent, runtime, ["add", "record"])
            await talk.say()
    first, second = map(set, model.offered)
    assert first == {"local_time", "kit__echo"}
    assert second == {"local_time", "kit__add", "kit__record"}
    ours = [tool for tool in agent.tools if isinstance(tool, adk.ADKTool)]
    assert all(tool.options.require_confirmation for tool in ours)


async def test_an_update_that_fails_leaves_the_agent_as_it_was():
    async with house() as (_, runtime):
        agent = LlmAgent(name="helper", tools=[*await adk.tools(runtime, ["echo"])])
        before = list(agent.tools)
        with pytest.raises(UnknownTool):
            await adk.update_tools(agent, runtime, ["nothing"])
        assert agent.tools == before


async def test_resolved_tools_can_be_given_as_they_are():
    async with house() as (_, runtime):
        resolved = await runtime.resolve(["add", "echo"])
        assert [tool.tool for tool in await adk.tools(resolved)] == resolved
        with pytest.raises(ConfigError):
            await adk.tools(resolved, ["add"])


# -- the toolset ----------------------------------------------------------------------------------


async def test_a_toolset_follows_the_catalogue_between_two_turns_of_one_run():
    async with house() as (kit, runtime):
        changed = asyncio.Event()
        runtime.observe(lambda event: changed.set() if is_change(event) else None)
        model = ScriptedModel.saying([("kit__echo", {"text": "hello"})], "Done.")
        async with conversation(model, [adk.Toolset(runtime)]) as talk, asyncio.timeout(BOUND):
            async for event in talk.events():
                if event.get_function_responses():
                    await kit.set_tools([NESTED])
                    await kit.notify("notifications/tools/list_changed")
                    await changed.wait()
    first, second = map(set, model.offered)
    assert second - first == {"kit__nested"}


def is_change(event: object) -> bool:
    return isinstance(event, CatalogueChanged) and bool(event.changes)


def short(tool: BaseTool, readonly_context: ReadonlyContext | None = None) -> bool:
    return len(tool.name) < 9


@pytest.mark.parametrize(
    ("options", "offered"),
    [
        ({"names": ["add", "kit.echo"]}, {"kit__add", "kit__echo"}),
        ({"tool_filter": ["kit__add"]}, {"kit__add"}),
        ({"tool_filter": short}, {"kit__add", "kit__big", "kit__ask"}),
        ({"names": ["add"], "tool_name_prefix": "my"}, {"my_kit__add"}),
    ],
)
async def test_names_filter_and_prefix_choose_what_is_offered(
    options: dict[str, Any], offered: set[str]
):
    async with house() as (_, runtime):
        (name, *_) = sorted(offered)
        model = ScriptedModel.saying([(name, {"a": 1, "b": 2, "text": ""})], "Done.")
        async with conversation(model, [adk.Toolset(runtime, **options)]) as talk:
            await talk.say()
    assert set(model.offered[0]) == offered
    assert model.answers[0]["tool_name"].replace(".", "__") in name


async def test_what_is_missing_is_told_to_the_model_and_the_rest_is_offered():
    async with house() as (_, runtime):
        model = ScriptedModel.saying("Hello.")
        async with conversation(model, [adk.Toolset(runtime, ["add", "nothing"])]) as talk:
            await talk.say()
    assert [set(offered) for offered in model.offered] == [{"kit__add"}]
    assert "nothing" in model.told[0]


async def test_what_is_missing_fails_the_run_of_who_asks_for_errors():
    async with house() as (_, runtime):
        toolset = adk.Toolset(runtime, ["add", "nothing"], errors="raise")
        async with conversation(ScriptedModel.saying("Hello."), [toolset]) as talk:
            with pytest.raises(UnknownTool):
                await talk.say()


async def test_a_runtime_that_is_not_open_is_told_too():
    model = ScriptedModel.saying("Hello.")
    async with conversation(model, [adk.Toolset(Runtime({"mcpServers": {}}))]) as talk:
        await talk.say()
    assert "not available now" in model.told[0]


@pytest.mark.parametrize("owned", [True, False])
async def test_closing_a_toolset_closes_the_runtime_only_if_it_is_its_own(owned: bool):
    async with ScriptedServer.local() as kit:
        runtime = Runtime({"mcpServers": {"kit": kit.spec}})
        if not owned:
            await runtime.connect()
        model = ScriptedModel.saying([("kit__echo", {"text": "hello"})], "Done.")
        async with conversation(model, [adk.Toolset(runtime, owned=owned)]) as talk:
            await talk.say()
        assert model.answers[0]["result"] == "hello"
        assert ("not open" in repr(runtime)) is owned
        await runtime.aclose()


@pytest.mark.parametrize(
    "options",
    [
        {"require_confirmation": "maybe"},
        {"require_confirmation": 1},
        {"errors": "hide"},
        {"context": {"user": 1}},
    ],
)
def test_an_option_that_means_nothing_is_refused(options: dict[str, Any]):
    with pytest.raises(ConfigError):
        adk.Toolset(Runtime({}), **options)
