"""Building, opening, staying open, and telling the truth about it."""

import asyncio
import operator
from contextlib import aclosing
from typing import Any, cast

import pytest
from pydantic import ValidationError

from tests.engine.support import (
    PATIENCE,
    client_for,
    encodings,
    eras,
    failure_of,
    methods,
    talking,
    together,
)
from toolkeep import Client, RemoteProtocolError, ServerUnavailable, ToolkeepError
from toolkeep.testing import Behaviour, Rule, ScriptedServer

HANDSHAKE = ["initialize", "notifications/initialized"]


def nothing(event: object) -> None:
    """An observer that only is there."""


def quick(client: Client, key: str = "quick") -> Any:
    return client.call_tool("record", {"key": key})


# -- building ---------------------------------------------------------------------------------


@pytest.mark.requirement("S1")
async def test_a_client_that_is_only_built_never_connects():
    async with ScriptedServer.local() as server:
        client = client_for(server.url, {"listen": True})
        client.observe(nothing)
        assert (client.is_initialized, client.session_id, client.era) == (False, None, None)
        await client.aclose()
        assert await server.connections() == 0


@pytest.mark.requirement("S1")
async def test_the_configuration_is_frozen_once_the_client_is_built():
    given: dict[str, Any] = {
        "name": "kit",
        "url": "http://127.0.0.1:9/mcp",
        "headers": {"x-a": "1"},
    }
    client = Client(given)
    given["headers"]["x-a"] = "2"
    given["url"] = "http://127.0.0.1:10/mcp"
    assert client.spec.url == "http://127.0.0.1:9/mcp"
    assert client.spec.headers == {"x-a": "1"}
    with pytest.raises(TypeError):
        operator.setitem(cast("dict[str, str]", client.spec.headers), "x-a", "3")
    for model, key in ((client.spec, "url"), (client.spec.timeouts, "call")):
        with pytest.raises(ValidationError):
            setattr(model, key, "http://127.0.0.1:11/mcp")


# -- opening ----------------------------------------------------------------------------------


@pytest.mark.requirement("S2")
@pytest.mark.parametrize(
    ("era", "mode", "opening"),
    [
        ("legacy", "auto", ["server/discover", *HANDSHAKE]),
        ("legacy", "legacy", HANDSHAKE),
        ("modern", "auto", ["server/discover"]),
        ("modern", "modern", ["server/discover"]),
        ("both", "auto", ["server/discover"]),
        ("both", "legacy", HANDSHAKE),
    ],
)
@encodings
async def test_the_first_call_opens_in_the_order_of_the_protocol(
    era: Any, mode: str, opening: list[str], encoding: Any
):
    async with talking({"mode": mode}, era=era, encoding=encoding) as (server, client):
        await quick(client)
        assert methods(await server.requests()) == [*opening, "tools/call"]
        assert await server.connections() == 1


@pytest.mark.requirement("S2")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_concurrent_first_calls_share_one_opening(era: Any):
    async with talking(era=era, initialize_delay=0.05) as (server, client):
        results = await together(*(quick(client, f"call {n}") for n in range(50)))
        assert [result.text for result in results] == ["recorded"] * 50
        asked = methods(await server.requests())
        assert asked.count("server/discover") == 1
        shakes = 1 if era == "legacy" else 0
        assert [asked.count(method) for method in HANDSHAKE] == [shakes, shakes]
        assert set((await server.ledger()).values()) == {1}


@pytest.mark.requirement("S2")
@pytest.mark.parametrize(
    "taken",
    [
        Behaviour(status=200),
        Behaviour(status=202),
        Behaviour(status=204),
        Behaviour(status=200, body='{"jsonrpc":"2.0"}'),
        Behaviour(status=200, body="ok", content_type="text/plain"),
    ],
    ids=lambda taken: f"{taken.status} {taken.body}",
)
async def test_any_2xx_to_initialized_is_fine(taken: Behaviour):
    async with talking(era="legacy") as (server, client):
        await server.script(Rule(method="notifications/initialized", do=taken))
        assert (await quick(client)).text == "recorded"
        assert await server.connections() == 1


@pytest.mark.requirement("S2")
@eras
async def test_the_client_introduces_itself_as_it_is_told_to(era: Any):
    async with ScriptedServer.local(era=era) as server:
        info = {"name": "harbour", "version": "7.1"}
        async with aclosing(client_for(server.url, client_info=info)) as client:
            await quick(client)
        hello = (await server.requests("initialize" if era == "legacy" else "tools/call"))[0]
        params = hello.body["params"]
        said = params.get("clientInfo") or params["_meta"]["io.modelcontextprotocol/clientInfo"]
        assert {key: said[key] for key in info} == info


@pytest.mark.requirement("S2")
async def test_nobody_who_listens_means_no_get_stream():
    async with talking(era="legacy") as (server, client):
        client.observe(nothing, listen=False)
        await quick(client)
        await client.list_tools()
        await client.aclose()
        assert "GET" not in methods(await server.requests())


@pytest.mark.requirement("S2")
@pytest.mark.parametrize("who", ["observer before", "observer after", "configuration"])
async def test_the_get_stream_is_opened_once_for_those_who_listen(who: str):
    async with talking({"listen": who == "configuration"}, era="legacy") as (server, client):
        if who == "observer before":
            client.observe(nothing)
        await quick(client)
        if who == "observer after":
            client.observe(nothing)
            client.observe(nothing)
        told = await server.notify("notifications/tools/list_changed", listeners=1)
        assert told == 1
        assert methods(await server.requests()).count("GET") == 1


# -- staying open -----------------------------------------------------------------------------


@pytest.mark.requirement("S3")
@eras
@encodings
async def test_later_calls_cost_one_request_each_on_the_one_connection(era: Any, encoding: Any):
    async with talking(era=era, encoding=encoding) as (server, client):
        await client.connect()
        await server.clear()
        for _ in range(40):
            await quick(client)
        assert methods(await server.requests()) == ["tools/call"] * 40
        assert await server.connections() == 1


@pytest.mark.requirement("S3")
@eras
async def test_a_stream_that_ends_a_moment_after_its_answer_keeps_its_connection(era: Any):
    async with talking(era=era, encoding="sse") as (server, client):
        await server.script(Rule(method="tools/call", do=Behaviour(sse_linger=0.02)))
        for _ in range(10):
            await quick(client)
        # Without waiting for the end, each call has its own. On a busy machine an end may be late.
        assert await server.connections() <= 3


@pytest.mark.requirement("S3")
@eras
async def test_one_slow_end_of_a_stream_costs_no_later_call_its_connection(era: Any):
    async with talking(era=era, encoding="sse") as (server, client):
        late = Rule(method="tools/call", times=1, do=Behaviour(sse_linger=1.0))
        await server.script(late, Rule(method="tools/call", do=Behaviour(sse_linger=0.02)))
        for _ in range(10):
            await quick(client)
        assert await server.connections() <= 4


@pytest.mark.requirement("S3")
@eras
async def test_answers_are_not_held_up_by_a_server_that_leaves_its_streams_open(era: Any):
    async with talking(era=era, encoding="sse") as (server, client):
        await server.script(Rule(method="tools/call", do=Behaviour(sse_linger=30.0)))
        async with asyncio.timeout(3.0):
            for _ in range(10):
                await quick(client)
        assert await server.executions("quick") == 10


# -- telling the truth ------------------------------------------------------------------------


@pytest.mark.requirement("S8")
@pytest.mark.parametrize("sessions", [True, False])
async def test_session_id_is_the_one_the_server_gave(sessions: bool):
    async with talking(era="legacy", sessions=sessions) as (server, client):
        await quick(client)
        (call,) = await server.requests("tools/call")
        assert client.is_initialized
        assert client.session_id == call.session_id
        assert (client.session_id is not None) == sessions


@pytest.mark.requirement("S8")
async def test_a_modern_client_is_initialized_without_a_session():
    async with talking(era="modern") as (_, client):
        await quick(client)
        assert (client.is_initialized, client.session_id, client.era) == (True, None, "modern")


@pytest.mark.requirement("S8")
async def test_a_client_is_not_initialized_while_the_handshake_is_under_way():
    async with talking({"mode": "legacy"}, era="legacy") as (server, client):
        slow = Behaviour(delay=0.3)
        await server.script(Rule(method="notifications/initialized", do=slow))
        call = asyncio.create_task(quick(client))
        await server.requests("notifications/initialized", at_least=1)
        assert (client.is_initialized, client.session_id) == (False, None)
        async with asyncio.timeout(PATIENCE):
            await call
        assert client.is_initialized


@pytest.mark.requirement("S8")
@pytest.mark.parametrize(
    ("step", "answer", "kind"),
    [
        ("initialize", Behaviour(status=500, run=False), ServerUnavailable),
        *((step, Behaviour(drop="after_body"), ServerUnavailable) for step in HANDSHAKE),
        *((step, Behaviour(status=403), ToolkeepError) for step in HANDSHAKE),
    ],
)
async def test_after_a_failed_handshake_there_is_no_session(
    step: str, answer: Behaviour, kind: type[ToolkeepError]
):
    settings = {"mode": "legacy", "max_retries": 0}
    async with talking(settings, era="legacy") as (server, client):
        await server.script(Rule(method=step, times=1, do=answer))
        assert isinstance(await failure_of(quick(client)), kind)
        assert (client.is_initialized, client.session_id, client.era) == (False, None, None)
        await quick(client)
        assert client.is_initialized
        assert client.session_id is not None
        assert await server.executions("quick") == 1


@pytest.mark.requirement("S8")
async def test_an_answer_that_is_no_handshake_opens_nothing():
    async with talking({"mode": "legacy"}, era="legacy") as (server, client):
        await server.script(Rule(method="initialize", do=Behaviour(result={"tools": []})))
        assert isinstance(await failure_of(client.connect()), RemoteProtocolError)
        assert (client.is_initialized, client.session_id) == (False, None)
        assert len(await server.requests("initialize")) == 1


@pytest.mark.requirement("S8")
@eras
async def test_a_closed_client_has_no_session_until_it_is_used_again(era: Any):
    async with talking(era=era) as (_, client):
        await quick(client)
        first = client.session_id
        await client.aclose()
        assert (client.is_initialized, client.session_id, client.era) == (False, None, None)
        await quick(client)
        assert client.is_initialized
        assert client.session_id is None or client.session_id != first
