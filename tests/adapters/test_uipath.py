"""The MCP servers of a UiPath agent: found by the platform, called as LangChain tools."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent

from tests.adapters._langchain import HELLO, calling, model_of, thread, told
from tests.adapters._uipath import (
    ADD,
    FOLDER,
    RECORD,
    TOKEN,
    Platform,
    agent,
    dynamic,
    platform,
    resource,
    settle,
)
from toolkeep import ConfigError
from toolkeep.adapters.uipath import (
    McpClient,
    create_mcp_tools,
    create_mcp_tools_and_clients,
    create_mcp_tools_from_agent,
    create_mcp_tools_from_metadata_for_mcp_server,
    open_mcp_tools,
)
from toolkeep.testing import Behaviour, Rule, ScriptedServer


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    with platform() as played:
        settle(played, monkeypatch)
        yield played


def call(tool: Any, **arguments: Any) -> dict[str, Any]:
    return {"name": tool.name, "args": arguments, "id": "x", "type": "tool_call"}


async def close(clients: list[McpClient]) -> None:
    for client in clients:
        await client.aclose()


# -- from a definition --------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.requirement("A1")
async def test_an_agent_s_tools_are_those_of_its_definition(home: Platform, era: Any) -> None:
    async with ScriptedServer.local(era=era, api_key=TOKEN) as kit:
        home.servers["kit"] = kit.url
        tools, clients = await create_mcp_tools_from_agent(agent(resource("kit", ADD, RECORD)))
        try:
            assert home.asked == []  # nobody is asked before the first call
            assert [tool.name for tool in tools] == ["add", "record"]
            assert tools[0].description == ADD["description"]
            assert tools[0].metadata is not None
            assert tools[0].metadata.items() >= {
                ("tool_type", "mcp"),
                ("display_name", "add"),
                ("folder_path", FOLDER),
                ("slug", "kit"),
            }
            model = model_of(calling(("add", {"a": 2, "b": 3}), ("record", {"key": "k"})))
            runs: Any = create_agent(model, tools)
            state = await runs.ainvoke(HELLO, thread())
        finally:
            await close(clients)
        first, second = told(state)
        assert (first.artifact, second.content) == ({"sum": 5}, "recorded")
        assert len(clients) == 1
        assert home.tokens == {f"Bearer {TOKEN}"}
        assert await kit.executions("k") == 1


@pytest.mark.requirement("A1")
async def test_what_is_disabled_gives_nothing(home: Platform) -> None:
    off = resource(isEnabled=False)
    assert await create_mcp_tools_from_agent(agent(off)) == ([], [])
    assert await create_mcp_tools_from_metadata_for_mcp_server(off, McpClient(off)) == []
    async with create_mcp_tools([off]) as tools:
        assert tools == []
    assert home.asked == []


@pytest.mark.requirement("A1")
async def test_a_server_without_a_url_raises(home: Platform) -> None:
    home.servers["kit"] = None
    [tool], clients = await create_mcp_tools_from_agent(agent(resource()))
    with pytest.raises(ConfigError):
        await tool.ainvoke(call(tool, a=1, b=2))
    await close(clients)


@pytest.mark.parametrize("missing", ["UIPATH_URL", "UIPATH_ACCESS_TOKEN"])
@pytest.mark.requirement("A1")
async def test_credentials_that_are_missing_raise_at_the_first_call(
    home: Platform, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.delenv(missing)
    [tool], clients = await create_mcp_tools_from_agent(agent(resource()))
    with pytest.raises(ConfigError):
        await tool.ainvoke(call(tool, a=1, b=2))
    await close(clients)
    assert home.asked == []


@pytest.mark.parametrize("status", [401, 404, 500])
async def test_a_platform_that_does_not_know_is_told_to_the_model(
    home: Platform, status: int
) -> None:
    home.status = status
    [tool], clients = await create_mcp_tools_from_agent(agent(resource()))
    answer = await tool.ainvoke(call(tool, a=1, b=2))
    await close(clients)
    assert answer.status == "error"


@pytest.mark.requirement("A1")
async def test_a_token_that_was_renewed_is_sent(
    home: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedServer.local(api_key="new") as kit:
        home.servers["kit"] = kit.url
        monkeypatch.setenv("UIPATH_ACCESS_TOKEN", "old")
        [tool], clients = await create_mcp_tools_from_agent(agent(resource("kit", RECORD)))
        refused = await tool.ainvoke(call(tool, key="k"))
        monkeypatch.setenv("UIPATH_ACCESS_TOKEN", "new")
        answer = await tool.ainvoke(call(tool, key="k"))
        await close(clients)
        assert (refused.status, answer.status) == ("error", "success")
        assert await kit.executions("k") == 1


@pytest.mark.requirement("A1", "A5")
async def test_an_unknown_outcome_is_told_and_the_tool_ran_once(home: Platform) -> None:
    async with ScriptedServer.local() as kit:
        home.servers["kit"] = kit.url
        await kit.script(Rule(tool="record", do=Behaviour(drop="after_run")))
        [tool], clients = await create_mcp_tools_from_agent(agent(resource("kit", RECORD)))
        answer = await tool.ainvoke(call(tool, key="k"))
        await close(clients)
        assert "Do not call it again" in str(answer.content)
        assert await kit.executions("k") == 1


# -- names, and what is listed now --------------------------------------------------------------


async def test_tools_that_share_a_name_are_told_apart(home: Platform) -> None:
    odd = {**ADD, "name": "sum.up (fast)"}
    two, like_two = resource("two", ADD), resource("three", {**ADD, "name": "two__add_2"})
    definition = agent(resource("one", ADD, odd), two, two, like_two)
    tools, clients = await create_mcp_tools_from_agent(definition)
    names = ["one__add", "sumup_fast", "two__add", "two__add_2", "two__add_2_2"]
    assert [tool.name for tool in tools] == names
    await close(clients)


@pytest.mark.parametrize("allow_all", [True, False])
@pytest.mark.requirement("A1")
async def test_a_resource_may_have_what_its_server_lists_now(
    home: Platform, allow_all: bool
) -> None:
    async with ScriptedServer.local() as kit:
        home.servers["kit"] = kit.url
        gone = {**ADD, "name": "gone"}
        config = resource("kit", ADD, gone, **dynamic(allow_all=allow_all))
        async with McpClient(config) as client:
            tools = await create_mcp_tools_from_metadata_for_mcp_server(config, client)
        names = {tool.name for tool in tools}
        assert "gone" not in names
        assert ("echo" in names, "add" in names) == (allow_all, True)
        [add] = [tool for tool in tools if tool.name == "add"]
        assert add.description == "Add two numbers."


LONG_NAME = "The aggregated table data of all regions"


async def test_with_today_s_factories_tools_have_today_s_names(home: Platform) -> None:
    """The names that uipath-langchain 0.18 gives them, so that a run can go on under either."""
    long = {**ADD, "name": "aggregate_table_data_monthly"}
    shared = [resource("one", ADD), resource("two", {**ADD, "name": "Sum up @ once"})]
    tools, clients = await create_mcp_tools_and_clients(
        [*shared, resource("three", long, name=LONG_NAME), resource(isEnabled=False)]
    )
    assert [tool.name for tool in tools] == [
        "mcp-the_one-tool-add",
        "mcp-the_two-tool-sum_up__once",
        "mcp-the_aggregated_ta-tool-aggregate_table_data_monthly-e2de4330",
    ]
    about = [(tool.metadata or {}) for tool in tools]
    assert [one["resource_name"] for one in about] == ["The one", "The two", LONG_NAME]
    assert [client.server_slug for client in clients] == ["one", "two", "three"]
    assert home.asked == []
    await close(clients)


async def test_tools_of_a_block_are_looked_up_at_their_first_call_and_closed_at_its_end(
    home: Platform,
) -> None:
    async with ScriptedServer.local(era="legacy") as kit:
        home.servers["kit"] = kit.url
        async with open_mcp_tools([resource("kit", ADD)]) as [tool]:
            assert home.asked == []
            answer = await tool.ainvoke(call(tool, a=2, b=3))
        assert answer.artifact == {"sum": 5}
        assert "DELETE" in {one.http_method for one in await kit.requests()}


async def test_what_the_server_no_longer_has_is_logged(
    home: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedServer.local() as kit:
        home.servers["kit"] = kit.url
        config = resource("kit", ADD, {**ADD, "name": "gone"}, **dynamic(allow_all=False))
        async with McpClient(config) as client:
            [tool] = await create_mcp_tools(config, client)
            assert await client.instructions() == ""
    assert tool.name == "mcp-the_kit-tool-add"
    assert "kit: the server does not have the tool 'gone'" in caplog.messages


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_call_is_checked_against_what_the_server_lists_now(
    home: Platform, era: Any
) -> None:
    """Also where the definition says `refreshSchemaBeforeCall: false`."""
    now = {"type": "object", "properties": {"sum_of": {}}, "required": ["sum_of"]}
    mode = {"type": "cached", "refreshSchemaBeforeCall": False}
    cached = {"toolsConfiguration": {"discoveryMode": mode}}
    async with ScriptedServer.local(era=era) as kit:
        await kit.set_tools([{**RECORD, "name": "total", "inputSchema": now}], built_in=False)
        home.servers["kit"] = kit.url
        before = [{**ADD, "name": "total"}, {**ADD, "name": "gone"}]
        async with open_mcp_tools([resource("kit", *before, **cached)]) as [total, removed]:
            refused = await total.ainvoke(call(total, a=2, b=3))
            unknown = await removed.ainvoke(call(removed, a=2, b=3))
            assert await kit.requests("tools/call") == []
            answer = await total.ainvoke(call(total, sum_of=[2, 3]))
    assert answer.content == '{"sum_of": [2, 3]}'
    assert '"sum_of" is a required property' in refused.content
    assert unknown.content.endswith("was not called: there is no such tool.")


# -- as a context manager -----------------------------------------------------------------------


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.requirement("A1")
async def test_tools_can_be_had_for_a_block(home: Platform, alone: bool) -> None:
    async with ScriptedServer.local(api_key=TOKEN) as kit:
        home.servers["kit"] = kit.url
        config = resource("kit", ADD)
        async with create_mcp_tools(config if alone else [config], listen=False) as tools:
            [tool] = tools
            answer = await tool.ainvoke(call(tool, a=2, b=3))
        assert answer.artifact == {"sum": 5}
        assert set(home.asked) == {"/agenthub_/mcp/Shared/Team%20One/kit"}


@pytest.mark.requirement("A1")
async def test_a_block_without_an_address_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UIPATH_URL", raising=False)
    with pytest.raises(ConfigError):
        async with create_mcp_tools(resource()):
            pass


@pytest.mark.requirement("A1")
async def test_importing_the_adapter_loads_no_sdk() -> None:
    code = "import sys, toolkeep.adapters.uipath; sys.exit('uipath.platform' in sys.modules)"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stderr=subprocess.DEVNULL
    )
    assert await process.wait() == 0


# -- evaluations --------------------------------------------------------------------------------


class Evaluated:
    """What an evaluation runs: a call of each tool."""

    def __init__(self, *calls: tuple[Any, dict[str, Any]]) -> None:
        self.calls, self.said = calls, list[str]()

    async def execute(self, given: Any = None, options: Any = None) -> Any:
        for tool, arguments in self.calls:
            message = await tool.ainvoke(call(tool, **arguments))
            self.said.append(str(message.content))


async def test_a_tool_that_an_evaluation_simulates_is_not_called(home: Platform) -> None:
    from uipath.eval.mocks import MockingContext, UiPathMockRuntime

    dream = {"function": "record", "then": [{"type": "return", "value": {"seen": "in a dream"}}]}
    strategy = {"type": "mockito", "behaviors": [dream]}
    context = MockingContext.model_validate({"strategy": strategy, "inputs": {}})
    async with ScriptedServer.local(api_key=TOKEN) as kit:
        home.servers["kit"] = kit.url
        tools, clients = await create_mcp_tools_from_agent(agent(resource("kit", ADD, RECORD)))
        try:
            run = Evaluated((tools[1], {}), (tools[0], {"a": 2, "b": 3}))
            evaluation: Any = run
            await UiPathMockRuntime(evaluation, context).execute({})
            simulated, real = run.said
            assert "in a dream" in simulated
            assert "5" in real
            assert await kit.requests(tool="record") == []
            await tools[1].ainvoke(call(tools[1]))
            assert len(await kit.requests(tool="record")) == 1
        finally:
            await close(clients)
