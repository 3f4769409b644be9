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
    create_mcp_tools_from_agent,
    create_mcp_tools_from_metadata_for_mcp_server,
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


async def test_a_closed_client_calls_nobody(home: Platform) -> None:
    [tool], clients = await create_mcp_tools_from_agent(agent(resource()))
    await close(clients)
    assert (await tool.ainvoke(call(tool, a=1, b=2))).status == "error"
    assert home.asked == []


# -- names, and what is listed now --------------------------------------------------------------


async def test_tools_that_share_a_name_are_told_apart(home: Platform) -> None:
    odd = {**ADD, "name": "sum.up (fast)"}
    definition = agent(resource("one", ADD, odd), resource("two", ADD), resource("two", ADD))
    tools, clients = await create_mcp_tools_from_agent(definition)
    assert [tool.name for tool in tools] == ["one__add", "sum_up_fast_", "two__add", "two__add_2"]
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


# -- as a context manager -----------------------------------------------------------------------


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.requirement("A1")
async def test_tools_can_be_had_for_a_block(home: Platform, alone: bool) -> None:
    async with ScriptedServer.local(api_key=TOKEN) as kit:
        home.servers["kit"] = kit.url
        config = resource("kit", ADD)
        async with create_mcp_tools(config if alone else [config], live=False) as tools:
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
