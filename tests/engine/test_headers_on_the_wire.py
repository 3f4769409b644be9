"""Which headers a server really sees: a call's own, the server's, the key, and nobody else's."""

import asyncio
from typing import Any

import pytest

from tests.engine.helpers_tasks import (
    Encoding,
    Era,
    client_of,
    closing,
    every_encoding,
    every_era,
    outcome,
    serving,
)
from toolkeep import Client, ConfigError, InvalidArguments, NotPermitted
from toolkeep.config.spec import ConfigWarning
from toolkeep.testing import Behaviour, Rule, ScriptedServer

KEY = "sk-live-0123456789"


async def seen(client: Client, **headers: str) -> dict[str, str]:
    """The headers of this very call, as the server saw them."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return (await client.call_tool("headers", headers=named)).data


# -- one call's headers -------------------------------------------------------------------------


@pytest.mark.requirement("H3")
@every_encoding
@every_era
async def test_a_hundred_callers_headers_are_never_mixed_up(era: Era, encoding: Encoding):
    spec = {"non_identity_headers": ["x-caller"]} if era == "legacy" else {}
    async with serving(era, encoding, spec=spec) as (server, client):

        async def caller(number: int) -> None:
            for round_ in range(3):
                mine = f"{number}-{round_}"
                if number % 10 == 0:
                    assert "x-caller" not in await seen(client)
                    continue
                found = await seen(client, X_Caller=mine, X_Request_Id=mine)
                assert (found["x-caller"], found["x-request-id"]) == (mine, mine)

        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(caller(number))
        own = [r for r in await server.requests() if r.rpc_method != "tools/call"]
        assert own
        assert not any("x-caller" in record.headers for record in own)


@pytest.mark.requirement("H3")
@every_era
async def test_a_replay_and_a_cancellation_carry_the_headers_of_their_call(era: Era):
    async with serving(era, spec={"non_identity_headers": ["x-caller"]}) as (server, client):
        await server.script(Rule(tool="record", times=1, do=Behaviour(status=503, headers=ZERO)))
        await client.call_tool("record", headers={"x-caller": "one"})
        assert [r.headers.get("x-caller") for r in await server.requests(tool="record")] == [
            "one",
            "one",
        ]
        slow = client.call_tool("slow", {"seconds": 20}, headers={"x-caller": "two"})
        caller = asyncio.create_task(slow)
        await server.requests(tool="slow", at_least=1)
        caller.cancel()
        await server.cancelled(at_least=1)
        if era == "legacy":
            told = await server.requests("notifications/cancelled", at_least=1)
            assert [record.headers["x-caller"] for record in told] == ["two"]


ZERO = {"retry-after": "0"}


@pytest.mark.requirement("H5")
async def test_a_calls_header_wins_over_the_servers_and_over_the_key_in_any_spelling():
    spec = {"headers": {"X-Team": "server", "X-Other": "server"}, "api_key": KEY}
    async with serving("modern", spec=spec) as (_, client):
        found = await seen(client, x_TEAM="call", authorization="Bearer mine")
        assert (found["x-team"], found["x-other"]) == ("call", "server")
        assert found["authorization"] == "Bearer mine"
        found = await seen(client)
        assert (found["x-team"], found["authorization"]) == ("server", f"Bearer {KEY}")


REFUSED = {
    "mcp-session-id": "stolen",
    "MCP-Protocol-Version": "2024-11-05",
    "mcp-anything": "x",
    "Host": "elsewhere",
    "content-length": "3",
    "transfer-encoding": "chunked",
    "x-bad": "one\r\nx-injected: two",
    "x-lone": "one\ntwo",
    "x bad name": "x",
}


@pytest.mark.parametrize("name", REFUSED)
@every_era
async def test_a_calls_forbidden_header_is_refused_and_costs_no_request(era: Era, name: str):
    async with serving(era) as (server, client):
        await client.connect()
        before = len(await server.requests())
        headers = {name: REFUSED[name]}
        for use in (
            client.call_tool("record", headers=headers),
            client.request("ping", headers=headers),
        ):
            assert type(await outcome(use)) is InvalidArguments
        assert len(await server.requests()) == before


@pytest.mark.parametrize("name", REFUSED)
def test_a_servers_forbidden_header_is_a_configuration_error_that_names_it(name: str):
    with pytest.raises(ConfigError) as caught:
        client_of("http://localhost/mcp", "auto", headers={name: REFUSED[name]})
    assert caught.value.server == "kit"
    assert (caught.value.key or "").startswith("headers.")
    assert REFUSED[name] not in str(caught.value) or len(REFUSED[name]) == 1


@every_era
async def test_content_type_and_accept_stay_the_protocols(era: Era):
    given = {"Content-Type": "text/plain", "accept": "text/html", "x-kept": "yes"}
    async with ScriptedServer.local(era=era) as server:
        with pytest.warns(ConfigWarning) as warned:
            client = client_of(server.url, era, headers=given)
        assert len(warned) == 2
        async with closing(client):
            configured = await seen(client)
            of_the_call = await seen(client, content_type="text/plain", accept="text/html")
        for found in (configured, of_the_call):
            assert found["content-type"] == "application/json"
            assert found["accept"] == "application/json, text/event-stream"
            assert found["x-kept"] == "yes"


# -- on whose behalf (H4, as far as one client goes) --------------------------------------------


async def test_a_legacy_session_belongs_to_one_identity():
    async with serving("legacy", spec={"headers": {"x-team": "red"}}) as (server, client):
        assert (await seen(client, x_user="ada"))["x-user"] == "ada"
        before = len(await server.requests())
        for other in ({"x-user": "bob"}, {"X-Team": "blue"}):
            error = await outcome(client.call_tool("record", headers=other))
            assert type(error) is NotPermitted
            error = await outcome(client.request("ping", headers=other))
            assert type(error) is NotPermitted
        assert len(await server.requests()) == before
        assert (await seen(client, x_user="ada", x_team="red"))["x-user"] == "ada"
        assert (await seen(client, traceparent="00-1"))["traceparent"] == "00-1"
        await client.aclose()
        assert (await seen(client, x_user="bob"))["x-user"] == "bob"


async def test_a_modern_server_takes_any_identity_with_any_call():
    async with serving("modern", spec={"api_key": KEY}) as (_, client):
        for name in ("ada", "bob", "eve"):
            found = await seen(client, x_user=name, authorization=f"Bearer {name}")
            assert (found["x-user"], found["authorization"]) == (name, f"Bearer {name}")


async def test_a_legacy_client_with_a_key_refuses_another_ones_authorization():
    async with serving("legacy", spec={"api_key": KEY}) as (server, client):
        await client.connect()
        before = len(await server.requests())
        other = {"Authorization": "Bearer other"}
        assert type(await outcome(client.call_tool("record", headers=other))) is NotPermitted
        assert len(await server.requests()) == before


async def test_of_many_identities_at_once_one_legacy_session_serves_one():
    async with serving("legacy") as (server, client):
        users = [f"user-{number}" for number in range(20)]
        results = await asyncio.gather(*(outcome(seen(client, x_user=user)) for user in users))
        served = [found["x-user"] for found in results if isinstance(found, dict)]
        assert len(served) == 1
        assert {type(r) for r in results} == {dict, NotPermitted}
        told = {r.headers.get("x-user") for r in await server.requests("tools/call")}
        assert told == set(served)


# -- the key ------------------------------------------------------------------------------------


@pytest.mark.requirement("H5")
@pytest.mark.parametrize("mode", ["auto", "legacy", "modern"])
async def test_the_key_is_on_every_request(mode: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KIT_KEY", KEY)
    era = "modern" if mode == "modern" else "legacy"
    async with ScriptedServer.local(era=era, api_key=KEY) as server:
        client = client_of(server.url, mode, api_key="${KIT_KEY}", listen=True)
        await client.call_tool("echo", {"text": "x"})
        await client.list_tools()
        await client.ping()
        if era == "legacy":
            await server.notify("notifications/message", {"level": "info", "data": "x"})
        await client.aclose()
        records = await server.requests()
        assert {record.headers.get("authorization") for record in records} == {f"Bearer {KEY}"}
        kinds = {record.rpc_method or record.http_method for record in records}
        if era == "legacy":
            expected = {"initialize", "notifications/initialized", "ping", "GET", "DELETE"}
            assert kinds >= expected | ({"server/discover"} if mode == "auto" else set())
        else:
            assert kinds >= {"server/discover", "tools/call", "tools/list"}


@pytest.mark.requirement("H5")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("api_key", "${UNSET_KEY}"),
        ("api_key", "${env:UNSET_KEY}"),
        ("headers.x-team", {"x-team": "team ${UNSET_KEY}"}),
        ("url", "http://localhost/${UNSET_KEY}"),
    ],
)
def test_an_unset_variable_is_a_configuration_error_that_names_the_key(key: str, value: Any):
    given = {"name": "kit", "url": "http://localhost/mcp", key.partition(".")[0]: value}
    with pytest.raises(ConfigError) as caught:
        Client(given)
    assert (caught.value.server, caught.value.key) == ("kit", key)


@pytest.mark.requirement("H5")
async def test_variables_expand_in_headers_with_their_defaults(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KIT_TEAM", "red")
    given = {"x-a": "${KIT_TEAM}", "x-b": "${env:KIT_TEAM}/${UNSET_KEY:-none}", "x-c": "$${HOME}"}
    async with serving("modern", spec={"headers": given}) as (_, client):
        found = await seen(client)
        assert (found["x-a"], found["x-b"], found["x-c"]) == ("red", "red/none", "${HOME}")
