"""What the SDK's own servers take, and what a RuntimeServer makes of it."""

import asyncio
from typing import Any

import pytest
from agents import Agent, RunContextWrapper
from agents.exceptions import AgentsException
from agents.mcp import ToolFilterContext, create_static_tool_filter
from agents.testing import ScriptedModel, assistant_message

from tests.adapters._openai_agents import offered_to, outputs, run, scripted
from tests.adapters._servers import ADA, ASKING, NOTES, breaks_off, eras, house, instructed
from toolkeep import CallContext, CallOutcomeUnknown, ConfigError, NotPermitted, Runtime
from toolkeep.adapters.openai_agents import RuntimeServer, describe_failure, sampling, tools
from toolkeep.testing import Behaviour, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("A3")

NEW = {"name": "new", "inputSchema": {"type": "object"}}

# -- failures -----------------------------------------------------------------------------------


def apologize(run: RunContextWrapper[Any], error: Exception) -> str:
    return f"agent: {type(error).__name__}"


async def failing_run(config: dict[str, Any], **options: Any) -> dict[str, Any]:
    async with house() as (kit, runtime):
        await breaks_off(kit, "record")
        model = scripted([("kit__record", {})], "Sorry.")
        server = RuntimeServer(runtime, **options)
        await run(model, {"mcp_servers": [server], "mcp_config": config})
        return outputs(model)


async def test_the_failure_function_of_the_agent_is_obeyed_and_gets_our_error():
    config = {"failure_error_function": apologize}
    assert await failing_run(config) == {"1": "agent: CallOutcomeUnknown"}


async def test_an_agent_whose_failure_function_is_none_raises():
    with pytest.raises(AgentsException) as raised:
        await failing_run({"failure_error_function": None})
    assert isinstance(raised.value.__cause__, CallOutcomeUnknown)


async def test_what_the_server_says_counts_before_what_the_agent_says():
    own = {"failure_error_function": lambda run, error: "server"}
    assert await failing_run({"failure_error_function": None}, **own) == {"1": "server"}
    config = {"failure_error_function": apologize}
    told = await failing_run(config, failure_error_function=describe_failure)
    assert "Whether kit__record ran is not known" in told["1"]
    with pytest.raises(AgentsException):
        await failing_run(config, failure_error_function=None)


async def test_where_nobody_says_it_the_model_is_told_our_sentence():
    told = await failing_run({})
    assert "Whether kit__record ran is not known" in told["1"]


# -- filters ------------------------------------------------------------------------------------


@eras
@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (create_static_tool_filter(allowed_tool_names=["echo", "kit.add"]), {"echo", "add"}),
        (create_static_tool_filter(["kit__echo", "add"], ["kit.add"]), {"echo"}),
        (create_static_tool_filter(allowed_tool_names=[]), set()),
    ],
)
async def test_two_lists_of_names_filter_what_is_offered(era: str, given: Any, seen: set[str]):
    async with house(era) as (_, runtime):
        model = scripted("Done.")
        await run(model, {"mcp_servers": [RuntimeServer(runtime, tool_filter=given)]})
        assert set(offered_to(model)) == {f"kit__{name}" for name in seen}
        blocked = RuntimeServer(runtime, tool_filter={"blocked_tool_names": ["echo"]})
        everything = {tool.name for tool in await RuntimeServer(runtime).list_tools()}
        left = {tool.name for tool in await blocked.list_tools()}
        assert everything - left == {"kit__echo"}


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_filter_function_gets_the_run_and_the_agent_and_may_fail(is_async: bool):
    seen: list[ToolFilterContext] = []

    def judge(context: ToolFilterContext, tool: Any) -> bool:
        seen.append(context)
        tool.input_schema.clear()
        if tool.name == "kit__add":
            raise ValueError("no opinion")
        return tool.name in ("kit__echo", "kit__add")

    async def judge_later(context: ToolFilterContext, tool: Any) -> bool:
        await asyncio.sleep(0)
        return judge(context, tool)

    async with house() as (_, runtime):
        chosen: Any = judge_later if is_async else judge
        server = RuntimeServer(runtime, name="all", tool_filter=chosen)
        model = scripted("Done.")
        await run(model, {"mcp_servers": [server]}, context="me")
        assert list(offered_to(model)) == ["kit__echo"]
        assert offered_to(model)["kit__echo"].params_json_schema["properties"]
        assert {(one.run_context.context, one.agent.name, one.server_name) for one in seen} == {
            ("me", "helper", "all")
        }
        with pytest.raises(NotPermitted, match="tool filter"):
            await server.list_tools()


async def test_a_filter_that_is_set_later_counts_from_the_next_listing_on():
    async with house() as (_, runtime):
        server = RuntimeServer(runtime, tool_filter={"blocked_tool_names": ["echo"]})
        server.tool_filter = only_add = create_static_tool_filter(allowed_tool_names=["add"])
        model = scripted("Done.")
        await run(model, {"mcp_servers": [server]})
        assert list(offered_to(model)) == ["kit__add"]
        wrong: Any = ["echo"]
        with pytest.raises(ConfigError):
            server.tool_filter = wrong
        assert server.tool_filter == only_add
        assert [tool.name for tool in await server.list_tools()] == ["kit__add"]


# -- the list -----------------------------------------------------------------------------------


async def quietly_changed(kit: ScriptedServer) -> None:
    """Other tools, of which the server says nothing."""
    answer = {"tools": [NEW], "resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
    await kit.script(Rule(method="tools/list", do=Behaviour(result=answer)))


@eras
async def test_the_list_can_be_invalidated_or_fetched_at_each_turn(era: str):
    async with house(era) as (kit, runtime):
        kept, fresh = (RuntimeServer(runtime, cache_tools_list=one) for one in (True, False))
        before = [tool.name for tool in await kept.list_tools()]
        await quietly_changed(kit)
        asked = len(await kit.requests("tools/list"))
        assert [tool.name for tool in await kept.list_tools()] == before
        assert len(await kit.requests("tools/list")) == asked
        kept.invalidate_tools_cache()
        assert [tool.name for tool in await kept.list_tools()] == ["kit__new"]
        await kept.list_tools()
        assert len(await kit.requests("tools/list")) == asked + 1
        await kit.clear()
        assert [tool.name for tool in await fresh.list_tools()] == before
        await fresh.list_tools()
        assert len(await kit.requests("tools/list")) == 2  # clearing emptied the journal, too


async def test_a_listing_that_fails_leaves_the_last_one():
    async with house() as (kit, runtime):
        server = RuntimeServer(runtime, cache_tools_list=False)
        before = [tool.name for tool in await server.list_tools()]
        await kit.script(Rule(method="tools/list", do=Behaviour(error={"code": -1, "message": ""})))
        assert [tool.name for tool in await server.list_tools()] == before


# -- timeouts and what belongs to the configuration ---------------------------------------------


@pytest.mark.parametrize("as_functions", [True, False])
async def test_the_timeout_of_the_session_is_that_of_each_call(as_functions: bool):
    async with house() as (_, runtime):
        limit: Any = {"client_session_timeout_seconds": 0.2}
        model = scripted([("kit__slow", {"seconds": 30})], "Well.")
        if as_functions:
            offered: dict[str, Any] = {"tools": await tools(runtime, **limit)}
        else:
            offered = {"mcp_servers": [RuntimeServer(runtime, **limit)]}
        await run(model, offered)
        assert "Whether kit__slow ran is not known" in outputs(model)["1"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("client_session_timeout_seconds", None),
        ("client_session_timeout_seconds", 0),
        ("max_retry_attempts", 3),
        ("retry_backoff_seconds_base", 1.0),
        ("retry_backoff_seconds_max", 1.0),
        ("message_handler", print),
        ("max_list_pages", 5),
        ("params", {"url": "http://127.0.0.1:9/mcp"}),
        ("tool_filter", ["echo"]),
        ("tool_filter", {"allowed": ["echo"]}),
    ],
)
async def test_what_has_no_meaning_here_is_refused_with_what_to_write_instead(
    option: str, value: Any
):
    runtime = Runtime({})
    given: Any = {option: value}
    with pytest.raises(ConfigError) as refused:
        RuntimeServer(runtime, **given)
    assert (refused.value.key, bool(refused.value.remedy)) == (option, True)


async def test_tools_that_were_resolved_are_not_listed_again():
    async with house() as (_, runtime):
        resolved = await runtime.resolve(["echo"])
        with pytest.raises(ConfigError):
            RuntimeServer(resolved, cache_tools_list=False)
        server = RuntimeServer(resolved, cache_tools_list=True)
        server.invalidate_tools_cache()
        assert [tool.name for tool in await server.list_tools()] == ["kit__echo"]


# -- outside of a run ---------------------------------------------------------------------------


@eras
async def test_prompts_and_resources_can_be_had_outside_of_a_run(era: str):
    async with house(era) as (kit, runtime):
        server = RuntimeServer(
            runtime,
            context=lambda run: CallContext(
                principal=run.context, headers={"authorization": f"Bearer {run.context}"}
            ),
        )
        whose: Any
        for whose in (ADA, RunContextWrapper("ada")):
            (prompt, *_) = (await server.list_prompts(context=whose)).prompts
            got: Any = await server.get_prompt(prompt.name, {"name": "Ada"}, context=whose)
            assert got.messages[0].content.text == "Greet Ada."
            (resource, *_) = (await server.list_resources(context=whose)).resources
            assert (await server.list_resource_templates(context=whose)).resource_templates
            assert (await server.read_resource(str(resource.uri), context=whose)).contents
        sent = [one.headers.get("authorization") for one in await kit.requests("prompts/get")]
        assert sent == ["Bearer ada", "Bearer ada"]


# -- models -------------------------------------------------------------------------------------


@eras
async def test_an_agent_can_be_given_the_instructions_of_the_servers_of_its_tools(era: str):
    async with instructed(era) as runtime:
        for names, wanted in ((None, 1), (["plain.add"], 0)):
            server = RuntimeServer(runtime, names)
            model = scripted("Done.")
            instructions = server.instructions("You are brief.")
            await run(model, {"mcp_servers": [server], "instructions": instructions})
            assert model.last_call is not None
            told = model.last_call.system_instructions or ""
            assert told.startswith("You are brief.")
            assert told.count(NOTES) == wanted


async def test_the_instructions_of_a_server_whose_tools_are_filtered_out_are_not_given():
    async with instructed("modern") as runtime:
        server = RuntimeServer(runtime, tool_filter=lambda about, tool: "plain" in tool.name)
        instructions = server.instructions()
        assert await instructions(RunContextWrapper(None), Agent(name="helper")) == ""


@eras
async def test_a_model_of_the_sdk_answers_a_server_s_sampling_request(era: str):
    model = ScriptedModel([[assistant_message("A teapot.")]])
    async with house(era, sampling=sampling(model)) as (_, runtime):
        result = await runtime.call("kit.ask", ASKING)
    said = result.data["answers"][0]["who"]
    assert said["content"] == {"type": "text", "text": "A teapot."}
    call = model.last_call
    assert call is not None
    assert call.system_instructions == "Be brief."
    assert (call.model_settings.max_tokens, call.model_settings.temperature) == (17, 0.5)
    first, second, third = call.input
    assert [first["role"], second["role"], third["role"]] == ["user", "assistant", "user"]
    assert [part["type"] for part in third["content"]] == ["input_text", "input_image"]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}},
        {
            "role": "assistant",
            "content": {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        },
    ],
)
async def test_what_a_model_of_the_sdk_cannot_be_told_is_declined(message: Any):
    question = {"messages": [message], "maxTokens": 9}
    request = {"method": "sampling/createMessage", "params": question}
    model = ScriptedModel([[assistant_message("never")]])
    async with house(sampling=sampling(model)) as (_, runtime):
        result = await runtime.call("kit.ask", {"requests": {"who": request}})
    assert "content" not in result.data["answers"][0]["who"]
    assert model.remaining_steps == 1
