"""A URL alone: whether HTTP+SSE of 2024-11-05 answers there is found out, and remembered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.engine.helpers_tasks import closing, outcome, until
from tests.engine.support import methods
from toolkeep import AuthNeeded, Client, RemoteProtocolError, ServerUnavailable, ToolkeepError
from toolkeep.errors import Delivery
from toolkeep.testing import Behaviour, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("S13")

SHAKE = ["initialize", "notifications/initialized"]
OLDER = ["GET", *SHAKE]


@asynccontextmanager
async def older(
    *rules: Rule, api_key: str | None = None, **spec: Any
) -> AsyncIterator[tuple[ScriptedServer, Client]]:
    """A server of 2024-11-05, which answers 405 to a POST where its stream is; and a client that
    was told nothing but the URL."""
    async with ScriptedServer.local(era="legacy", transport="sse", api_key=api_key) as server:
        await server.script(*rules)
        key = {"api_key": api_key} if api_key else {}
        async with closing(Client({"name": "kit", "url": server.url, **key, **spec})) as client:
            yield server, client


def refusing(status: int, method: str = "initialize", **more: Any) -> Rule:
    return Rule(method=method, times=1, do=Behaviour(status=status, **more))


@pytest.mark.requirement("S2")
@pytest.mark.parametrize(
    ("mode", "asked"), [("auto", ["server/discover", "initialize"]), ("legacy", ["initialize"])]
)
async def test_a_url_is_enough(mode: Any, asked: list[str]):
    async with older(mode=mode) as (server, client):
        assert (await outcome(client.call_tool("echo", {"text": "x"}))).text == "x"
        assert methods(await server.requests()) == [*asked, *OLDER, "tools/call"]
        assert (client.era, client.is_initialized) == ("legacy", True)
        (call,) = await server.requests("tools/call")
        assert client.session_id == call.session_id is not None


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_whatever_an_older_server_says_to_a_post_it_is_found(status: int):
    async with older(refusing(status), mode="legacy") as (server, client):
        assert (await outcome(client.call_tool("record"))).attempts == 1
        assert methods(await server.requests()) == ["initialize", *OLDER, "tools/call"]
        assert await server.executions("record") == 1


@pytest.mark.requirement("S2")
async def test_many_first_calls_share_the_finding_out():
    async with older() as (server, client):
        calls = [asyncio.create_task(client.call_tool("record", {"key": f"{n}"})) for n in range(9)]
        assert {(await outcome(call)).text for call in calls} == {"recorded"}
        assert methods(await server.requests()).count("GET") == 1
        assert len(await server.requests("initialize")) == 2
        assert set((await server.ledger()).values()) == {1}


@pytest.mark.requirement("S6")
@pytest.mark.parametrize("loss", ["stream", "session"])
async def test_it_is_remembered_when_the_connection_is_replaced(loss: str):
    async with older() as (server, client):
        await client.connect()
        await server.clear()
        if loss == "stream":
            await server.break_streams(reset=True)
            await until(lambda: not client.is_initialized, "the loss")
            expected = [*OLDER, "tools/call"]
        else:
            await server.forget_sessions()
            expected = ["tools/call", *OLDER, "tools/call"]
        await client.call_tool("record")
        assert methods(await server.requests()) == expected
        assert await server.executions("record") == 1


async def test_credentials_go_with_the_older_way_too():
    async with older(api_key="secret", headers={"x-server": "s"}) as (server, client):
        await client.call_tool("record")
        for record in await server.requests():
            assert record.headers["authorization"] == "Bearer secret"
            assert record.headers["x-server"] == "s"


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        (refusing(401), AuthNeeded),
        (refusing(403), AuthNeeded),
        (refusing(500), ServerUnavailable),
        (refusing(502), ServerUnavailable),
        (refusing(503), ServerUnavailable),
        (refusing(429), ServerUnavailable),
        (refusing(400, error={"code": -32602, "message": "bad"}), ToolkeepError),
        (Rule(method="initialize", times=1, do=Behaviour(drop="after_body")), ServerUnavailable),
    ],
    ids=lambda value: str(value.do.status) if isinstance(value, Rule) else "",
)
async def test_an_outage_or_a_refusal_of_credentials_is_no_verdict(rule: Rule, kind: Any):
    async with older(rule, mode="legacy", max_retries=0) as (server, client):
        error = await outcome(client.call_tool("record"))
        assert isinstance(error, kind)
        assert error.delivery in (Delivery.NOT_SENT, Delivery.REFUSED, Delivery.ANSWERED)
        assert "GET" not in methods(await server.requests())
        # The next call finds out.
        assert (await outcome(client.call_tool("record"))).text == "recorded"
        assert await server.executions("record") == 1


@pytest.mark.parametrize(
    "spec", [{"mode": "modern"}, {"transport": "http"}], ids=["modern", "transport=http"]
)
async def test_who_has_said_what_he_wants_gets_nothing_else(spec: dict[str, Any]):
    async with older(**spec) as (server, client):
        error = await outcome(client.call_tool("record"))
        assert isinstance(error, ToolkeepError)
        assert error.status == 405 or isinstance(error, RemoteProtocolError)
        assert "GET" not in methods(await server.requests())
        assert not client.is_initialized


async def test_where_nothing_of_either_kind_answers_the_first_refusal_is_told():
    async with ScriptedServer.local(era="legacy", get_stream=False) as server:
        lost = Behaviour(status=404, body="no such page")
        await server.script(Rule(do=lost, times=2), Rule(http="GET", do=Behaviour(status=410)))
        spec = {"name": "kit", "url": server.url, "mode": "legacy", "max_retries": 0}
        async with closing(Client(spec)) as client:
            for _ in range(2):
                error = await outcome(client.call_tool("record"))
                assert isinstance(error, ToolkeepError)
                assert error.status == 404
            assert methods(await server.requests()) == ["initialize", "GET"] * 2
            # It was not taken for older, and is found as soon as it is there.
            assert (await outcome(client.call_tool("record"))).text == "recorded"
            assert await server.executions("record") == 1


async def test_a_server_that_was_found_newer_is_never_taken_for_older():
    async with ScriptedServer.local(era="legacy") as server:
        spec = {"name": "kit", "url": server.url, "max_retries": 0}
        async with closing(Client(spec)) as client:
            await client.connect()
            await server.forget_sessions()
            await server.script(Rule(method="initialize", times=1, do=Behaviour(status=404)))
            await outcome(client.call_tool("record"))
            await outcome(client.call_tool("record"))
            assert "GET" not in methods(await server.requests())
