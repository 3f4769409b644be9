"""On what terms an OpenAI agent has its tools: strictness, names, prompts, a lifetime."""

import json
import subprocess
import sys
from typing import Any

import pytest
from agents.mcp import MCPServerManager, ToolFilterContext

from tests.adapters._openai_agents import (
    Offer,
    as_functions,
    as_server,
    offered_to,
    outputs,
    run,
    scripted,
    surfaces,
)
from tests.adapters._servers import ADA, eras, house
from toolkeep import CallContext, ConfigError, NotPermitted, Runtime, ServerUnavailable, UnknownTool
from toolkeep.adapters.openai_agents import RuntimeServer, tools
from toolkeep.testing import ScriptedServer

pytestmark = pytest.mark.requirement("A3")

# -- schemas and names ----------------------------------------------------------------------------

FIND = {
    "name": "find",
    "inputSchema": {
        "type": "object",
        "properties": {"what": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["what"],
        "additionalProperties": False,
    },
}
PARTLY = {
    "name": "partly",
    "inputSchema": {
        "type": "object",
        "properties": {"free": {"type": "object"}, "limit": {"type": "integer"}},
        "required": ["free"],
    },
}
"""An object that is free in its properties cannot be said in strict mode."""


def nested(levels: int) -> dict[str, Any]:
    inner = nested(levels - 1) if levels else {"type": "string"}
    about = {"type": "object", "required": ["a"], "additionalProperties": False}
    return {**about, "properties": {"a": inner}}


async def strictly(offer: Offer, runtime: Runtime) -> dict[str, Any]:
    if offer is as_functions:
        return await offer(runtime)
    return {**await offer(runtime), "mcp_config": {"convert_schemas_to_strict": True}}


@surfaces
async def test_schemas_are_strict_where_they_can_be_and_their_nulls_are_not_sent(offer: Offer):
    async with house() as (kit, runtime):
        await kit.set_tools([FIND, PARTLY], built_in=False)
        await runtime.refresh("kit")
        model = scripted([("kit__find", {"what": "a", "limit": None})], "Done.")
        await run(model, await strictly(offer, runtime))
        shown = offered_to(model)
        assert shown["kit__find"].strict_json_schema
        assert shown["kit__find"].params_json_schema["required"] == ["what", "limit"]
        assert not shown["kit__partly"].strict_json_schema
        assert shown["kit__partly"].params_json_schema == PARTLY["inputSchema"]
        assert json.loads(outputs(model)["1"]) == {"what": "a"}
        assert runtime.catalogue.tool("kit.find").input_schema == FIND["inputSchema"]


async def test_what_the_sdk_takes_for_strict_and_a_provider_would_not_is_not_strict():
    async with house() as (kit, runtime):
        deep = [{"name": name, "inputSchema": nested(n)} for name, n in (("deep", 12), ("flat", 2))]
        await kit.set_tools(deep, built_in=False)
        await runtime.refresh("kit")
        made = {tool.name: tool.strict_json_schema for tool in await tools(runtime)}
        assert made == {"kit__deep": False, "kit__flat": True}


async def test_what_is_done_to_what_was_listed_does_not_reach_the_catalogue():
    async with house() as (_, runtime):
        server = RuntimeServer(runtime)

        async def described() -> list[tuple[str, str | None]]:
            listed = (
                *await server.list_tools(),
                *(await server.list_prompts()).prompts,
                *(await server.list_resources()).resources,
                *(await server.list_resource_templates()).resource_templates,
            )
            return [(one.name, one.description) for one in listed]

        before = await described()
        for tool in await server.list_tools():
            tool.input_schema.clear()
            tool.description = "altered"
        for prompt in (await server.list_prompts()).prompts:
            prompt.description = "altered"
            (prompt.arguments or []).clear()
        for resource in (await server.list_resources()).resources:
            resource.description = "altered"
        for template in (await server.list_resource_templates()).resource_templates:
            template.description = "altered"
        assert await described() == before
        assert all(tool.input_schema for tool in runtime.catalogue.tools)
        assert all(prompt.definition.arguments for prompt in runtime.catalogue.prompts)


async def test_a_filter_may_alter_the_tool_that_it_is_shown():
    def alter(about: ToolFilterContext, tool: Any) -> bool:
        tool.description = "altered"
        tool.input_schema["required"] = []
        return True

    async with house() as (_, runtime):
        whole, model = RuntimeServer(runtime), scripted("Done.")
        await run(model, {"mcp_servers": [RuntimeServer(runtime, tool_filter=alter)]})
        shown = {name: tool.description for name, tool in offered_to(model).items()}
        assert shown == {tool.name: tool.description or "" for tool in await whole.list_tools()}


async def test_names_are_prefixed_so_that_two_servers_can_offer_the_same():
    async with ScriptedServer.local() as one, ScriptedServer.local() as two:
        async with Runtime({"mcpServers": {"one": one.spec, "two": two.spec}}) as runtime:
            model = scripted([("one__record", {}), ("two__echo", {"text": "a"})], "Done.")
            await run(model, await as_server(runtime))
        assert (await one.ledger(), await two.ledger()) == ({"record": 1}, {"echo": 1})


@eras
async def test_what_comes_and_goes_is_seen_at_the_next_turn(era: str):
    async with house(era) as (kit, runtime):

        async def change() -> None:
            await kit.set_tools([FIND], built_in=False)
            await runtime.refresh("kit")

        model = scripted(
            [("kit__echo", {"text": "a"})], change, [("kit__echo", {"text": "b"})], "Done."
        )
        server = RuntimeServer(runtime)
        await run(model, {"mcp_servers": [server]})
        assert "kit__echo" in offered_to(model, 0)
        assert list(offered_to(model)) == ["kit__find"]
        assert outputs(model)["2"] == "kit__echo was not called: there is no such tool."


async def test_each_block_of_a_result_reaches_the_model():
    async with house() as (_, runtime):
        model = scripted([("kit__content", {})], "Done.")
        await run(model, await as_server(runtime))
        kinds = [block["type"] for block in outputs(model)["1"]]
        assert kinds == ["input_text", "input_image", "input_text", "input_text", "input_text"]


async def test_meta_of_the_user_s_own_is_sent_and_custom_data_is_kept():
    async with house() as (kit, runtime):
        server = RuntimeServer(
            runtime,
            tool_meta_resolver=lambda about: {"tests/tool": about.tool_name},
            custom_data_extractor=lambda about: {"meta": dict(about.result_meta or {})},
        )
        result = await run(scripted([("kit__content", {})], "Done."), {"mcp_servers": [server]})
        (call,) = await kit.requests("tools/call")
        assert call.body["params"]["_meta"]["tests/tool"] == "kit__content"
        (output,) = [one for one in result.new_items if one.type == "tool_call_output_item"]
        assert output.custom_data == {"meta": {"kit/whole": True}}


# -- prompts and resources ------------------------------------------------------------------------


@eras
async def test_prompts_and_resources_are_those_of_all_servers(era: str):
    async with house(era) as (_, runtime):
        server = RuntimeServer(runtime, context=ADA)
        view = await runtime.catalogue_for(ADA)
        prompts = (await server.list_prompts()).prompts
        assert [prompt.name for prompt in prompts] == [prompt.name for prompt in view.prompts]
        resources = (await server.list_resources()).resources
        assert [one.uri for one in resources] == [one.uri for one in view.resources]
        templates = (await server.list_resource_templates()).resource_templates
        assert [one.uri_template for one in templates] == [
            one.uri_template for one in view.templates
        ]
        assert prompts
        assert resources
        got = await server.get_prompt(prompts[0].name, needed(prompts[0]))
        assert got.messages
        assert (await server.read_resource(str(resources[0].uri))).contents


def needed(prompt: Any) -> dict[str, Any]:
    return {argument.name: "a" for argument in prompt.arguments or []}


async def test_without_a_run_nobody_speaks_where_a_run_should_say_who():
    async with house() as (kit, runtime):
        server = RuntimeServer(runtime, context=lambda run: CallContext(principal=run.context))
        for work in (
            server.list_tools(),
            server.call_tool("kit__record", {}),
            server.list_prompts(),
            server.read_resource("kit://notes"),
        ):
            with pytest.raises(NotPermitted):
                await work
        assert await kit.requests("tools/call") == []


async def test_tools_alone_have_neither_prompts_nor_resources_nor_names_to_choose_from():
    async with house() as (_, runtime):
        resolved = await runtime.resolve(["echo"])
        server = RuntimeServer(resolved)
        assert [tool.name for tool in await server.list_tools()] == ["kit__echo"]
        for work in (server.list_prompts(), server.list_resources(), server.get_prompt("a")):
            with pytest.raises(ConfigError):
                await work
        with pytest.raises(UnknownTool):
            await server.call_tool("kit__record", {})
        with pytest.raises(ConfigError):
            RuntimeServer(resolved, ["echo"])
        with pytest.raises(ConfigError):
            RuntimeServer(runtime.catalogue.tools)  # nobody could call them
        with pytest.raises(ConfigError):
            await tools(runtime, context="ada")  # pyright: ignore[reportArgumentType]


# -- a lifetime -----------------------------------------------------------------------------------


async def test_the_sdk_s_manager_opens_the_runtime_and_closes_what_is_owned():
    async with ScriptedServer.local() as kit:
        for owned in (True, False):
            runtime = Runtime({"mcpServers": {"kit": kit.spec}})
            server = RuntimeServer(runtime, owned=owned)
            async with MCPServerManager([server]) as manager:
                model = scripted([("kit__echo", {"text": "a"})], "Done.")
                await run(model, {"mcp_servers": manager.active_servers})
                assert outputs(model) == {"1": "a"}
            if owned:
                with pytest.raises(ServerUnavailable):
                    await runtime.call("kit.echo", {"text": "b"})
            else:
                assert (await runtime.call("kit.echo", {"text": "b"})).text == "b"
            await runtime.aclose()


async def test_it_is_a_context_manager():
    async with ScriptedServer.local() as kit:
        runtime = Runtime({"mcpServers": {"kit": kit.spec}})
        async with RuntimeServer(runtime, name="all", owned=True) as server:
            assert server.name == "all"
            assert "kit__echo" in {tool.name for tool in await server.list_tools()}
        with pytest.raises(ServerUnavailable):
            await server.list_tools()


def test_without_the_sdk_the_error_names_the_extra():
    program = (
        "import sys; sys.modules['agents'] = None\n"
        "from toolkeep import ConfigError\n"
        "try: import toolkeep.adapters.openai_agents\n"
        "except ConfigError as error: print(error.remedy)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "`openai-agents`" in done.stdout
