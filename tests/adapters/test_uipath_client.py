"""UiPath's `McpClient`: its options, its life, and how the platform's gateway is spoken to."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from uipath.platform.common import UiPathConfig

from tests.adapters._langchain import BOUND, every_era, model_of
from tests.adapters._servers import ASKING, NOTES, says_notes
from tests.adapters._uipath import ADD, FOLDER, TOKEN, Platform, platform, resource, settle
from tests.engine.certificates import Authority
from toolkeep import CallTimedOut, ConfigError, ServerUnavailable, ToolkeepError
from toolkeep.adapters.langchain import sampling
from toolkeep.adapters.uipath import McpClient
from toolkeep.state import MemoryStore
from toolkeep.testing import Behaviour, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("A1")

SUM = {"a": 2, "b": 3}
SESSION = "mcp-session-id"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    with platform() as played:
        settle(played, monkeypatch)
        yield played


# -- its life -----------------------------------------------------------------------------------


@every_era
async def test_a_client_calls_a_tool_by_its_own_name_and_can_be_used_again_after_closing(
    home: Platform, era: Any
) -> None:
    async with ScriptedServer.local(era=era, api_key=TOKEN) as kit:
        home.servers["kit"] = kit.url
        client = McpClient(resource())
        assert (client.is_client_initialized, client.session_id) == (False, None)
        sent: list[str] = []
        for _ in range(2):
            assert (await client.call_tool("add", SUM)).data == {"sum": 5}
            assert client.is_client_initialized
            sent = [one.headers[SESSION] for one in await kit.requests("tools/call")]
            assert sent[-1] == client.session_id == await client.get_session_id()
            await client.close()
            assert (client.is_client_initialized, client.session_id) == (False, None)
        assert len(set(sent)) == 2  # each opening has a session of its own
    assert [name for name, _ in home.looked_up] == ["The kit"] * 2


async def test_a_client_that_did_not_reach_its_server_is_not_initialized(home: Platform) -> None:
    home.servers["kit"] = "http://127.0.0.1:9/mcp"
    async with McpClient(resource()) as client:
        with pytest.raises(ServerUnavailable):
            await client.list_tools()
        assert not client.is_client_initialized


async def test_a_client_that_is_closed_while_it_opens_ends_the_calls_that_wait(
    home: Platform,
) -> None:
    async with ScriptedServer.local() as kit:
        home.servers["kit"] = kit.url
        await kit.script(Rule(method="server/discover", do=Behaviour(hang=True), times=1))
        client = McpClient(resource())
        calls = [asyncio.create_task(client.call_tool("add", SUM)) for _ in range(3)]
        await kit.requests(at_least=1)
        calls[0].cancel()  # the others still wait
        async with asyncio.timeout(BOUND):
            with pytest.raises(asyncio.CancelledError):
                await calls[0]
            await client.close()
            for call in calls[1:]:
                with pytest.raises(ServerUnavailable, match="closed while it opened"):
                    await call
        assert (await client.call_tool("add", SUM)).data == {"sum": 5}
        await client.close()
        assert len(home.looked_up) == 2


async def test_listed_tools_are_kept_until_they_are_asked_for_again(home: Platform) -> None:
    async with ScriptedServer.local() as kit:
        home.servers["kit"] = kit.url
        async with McpClient(resource(), listen=False) as client:
            first = await client.list_tools()
            assert await client.list_tools() == first
            assert len(await kit.requests("tools/list")) == 1
            await kit.set_tools([{**ADD, "name": "new"}])
            again = await client.list_tools(force_refresh=True)
            assert len(await kit.requests("tools/list")) == 2
    assert {tool.tool for tool in again} - {tool.tool for tool in first} == {"new"}


# -- what the server says to models, and asks of them -------------------------------------------


@every_era
async def test_the_instructions_of_the_server_are_there_for_a_system_prompt(
    home: Platform, era: Any
) -> None:
    async with ScriptedServer.local(era=era) as kit:
        home.servers["kit"] = kit.url
        await kit.script(says_notes(era))
        async with McpClient(resource()) as client:
            found = await client.instructions()
    assert found.endswith(NOTES)
    assert "'kit'" in found


@every_era
async def test_a_chat_model_answers_the_server_s_sampling_request(home: Platform, era: Any) -> None:
    async with ScriptedServer.local(era=era) as kit:
        home.servers["kit"] = kit.url
        async with McpClient(resource(), sampling=sampling(model_of(AIMessage("Tea.")))) as client:
            result = await client.call_tool("ask", ASKING)
    assert result.data["answers"][0]["who"]["content"] == {"type": "text", "text": "Tea."}


# -- options ------------------------------------------------------------------------------------


async def test_a_call_may_take_ten_minutes_unless_the_client_says_otherwise(home: Platform) -> None:
    async with ScriptedServer.local() as kit:
        home.servers["kit"] = kit.url
        async with McpClient(resource()) as client:
            [spec] = (await client.connect()).configuration.servers
            assert (spec.timeouts.call, spec.timeouts.connect) == (600, 600)
        async with McpClient(resource(), timeout=0.3) as client:
            with pytest.raises(CallTimedOut):
                await client.call_tool("slow", {"seconds": 30})


@pytest.mark.parametrize(("given", "attempts"), [({}, 2), ({"max_retries": 0}, 1)])
async def test_retries_are_those_of_the_client(
    home: Platform, given: dict[str, Any], attempts: int
) -> None:
    async with ScriptedServer.local(era="legacy") as kit:
        home.servers["kit"] = kit.url
        async with McpClient(resource(), **given) as client:
            await client.list_tools()
            broken = Behaviour(drop="after_body")
            await kit.script(Rule(tool="record_read_only", do=broken, times=1))
            try:
                assert (await client.call_tool("record_read_only")).text == "recorded"
            except ToolkeepError:
                assert attempts == 1
        assert len(await kit.requests("tools/call")) == attempts


@pytest.mark.parametrize(("mode", "era"), [("legacy", "legacy"), ("auto", "modern")])
async def test_headers_and_mode_are_given_through(home: Platform, mode: Any, era: str) -> None:
    async with ScriptedServer.local(era="both", api_key=TOKEN) as kit:
        home.servers["kit"] = kit.url
        async with McpClient(resource(), mode=mode, headers={"x-team": "one"}) as client:
            found = (await client.call_tool("headers")).data
            [server] = (await client.connect()).servers
        assert (found["x-team"], found["authorization"]) == ("one", f"Bearer {TOKEN}")
        assert server.era == era


async def test_an_option_that_does_not_exist_is_refused_at_once() -> None:
    wrong: Any = {"retries": 1}
    with pytest.raises(ConfigError):
        McpClient(resource(), **wrong)


@pytest.mark.parametrize("how", ["environment", "option", "nothing"])
async def test_certificates_are_checked_unless_uipath_s_variable_or_the_client_says_otherwise(
    home: Platform, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    options: dict[str, Any] = {"tls": {"verify": False}} if how == "option" else {"timeout": 5}
    if how == "environment":
        monkeypatch.setenv("UIPATH_DISABLE_SSL_VERIFY", "true")
    pair = Authority(tmp_path).issue("127.0.0.1")
    async with ScriptedServer.local(tls=pair.both) as kit:
        home.servers["kit"] = kit.url
        async with McpClient(resource(), **options) as client:
            if how == "nothing":
                with pytest.raises(ServerUnavailable):
                    await client.call_tool("add", SUM)
                assert await kit.requests() == []
            else:
                with pytest.warns(match="certificates are not verified"):
                    assert (await client.call_tool("add", SUM)).data == {"sum": 5}


# -- the platform -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({}, "f-1"),
        ({"UIPATH_FOLDER_PATH": "Shared/Elsewhere"}, "f-2"),
        ({"UIPATH_FOLDER_KEY": "f-3"}, "f-3"),
        ({"UIPATH_FOLDER_PATH": "Shared/Elsewhere", "UIPATH_FOLDER_KEY": "f-3"}, "f-2"),
    ],
)
async def test_a_server_is_found_by_its_name_in_the_folder_where_the_agent_runs(
    home: Platform, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    async with ScriptedServer.local() as kit:
        home.servers["kit"] = kit.url
        config = resource()
        assert config.folder_path == FOLDER
        async with McpClient(config) as client:
            await client.call_tool("add", SUM)
    assert home.looked_up == [("The kit", folder)]


async def test_the_licensing_header_goes_out_with_the_token(
    home: Platform, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = {"runtime": {"internalArguments": {"licensingContext": "robots"}}}
    (tmp_path / "uipath.json").write_text(json.dumps(settings))
    monkeypatch.chdir(tmp_path)
    UiPathConfig.reset()
    try:
        async with ScriptedServer.local(api_key=TOKEN) as kit:
            home.servers["kit"] = kit.url
            async with McpClient(resource()) as client:
                await client.call_tool("add", SUM)
            for one in await kit.requests():
                assert one.headers["x-uipath-licensing-context"] == "robots"
    finally:
        UiPathConfig.reset()


# -- sessions that outlive a client -------------------------------------------------------------


@pytest.mark.parametrize("owner", ["robot", None])
async def test_another_client_goes_on_with_the_session_if_its_owner_is_named(
    home: Platform, monkeypatch: pytest.MonkeyPatch, owner: str | None
) -> None:
    store = MemoryStore()
    async with ScriptedServer.local(era="legacy") as kit:
        home.servers["kit"] = kit.url
        for token in (TOKEN, "renewed"):
            monkeypatch.setenv("UIPATH_ACCESS_TOKEN", token)
            async with McpClient(resource(), state=store, session_owner=owner) as client:
                await client.call_tool("add", SUM)
        methods = [one.rpc_method or one.http_method for one in await kit.requests()]
        sent = {one.headers[SESSION] for one in await kit.requests("tools/call")}
    times = 1 if owner else 2
    assert (methods.count("initialize"), len(sent)) == (times, times)
    assert ("DELETE" in methods) is (owner is None)


# -- the id that gateways route by --------------------------------------------------------------


@pytest.mark.parametrize("given", [None, "run-42"])
async def test_a_modern_server_s_gateway_gets_one_id_with_every_request_and_no_delete(
    home: Platform, given: str | None
) -> None:
    async with ScriptedServer.local(era="modern") as kit:
        home.servers["kit"] = kit.url
        async with McpClient(resource(), routing_id=given) as client:
            await client.call_tool("add", SUM)
            routed = client.session_id
        requests = await kit.requests()
    assert routed
    assert given in (None, routed)
    assert {one.headers.get(SESSION) for one in requests} == {routed}
    assert "DELETE" not in {one.http_method for one in requests}
    assert requests[0].rpc_method == "server/discover"


async def test_a_legacy_server_s_own_session_replaces_the_id_of_the_probe(home: Platform) -> None:
    async with ScriptedServer.local(era="legacy") as kit:
        home.servers["kit"] = kit.url
        async with McpClient(resource(), routing_id="run-42") as client:
            await client.call_tool("add", SUM)
            session = client.session_id
        sent = {one.rpc_method: one.headers.get(SESSION) for one in await kit.requests()}
    assert (sent["server/discover"], sent["initialize"]) == ("run-42", None)
    assert sent["tools/call"] == session != "run-42"
