"""Which era a server speaks: asked briefly, judged by answers, remembered."""

import time
from collections.abc import Mapping
from typing import Any, Literal

import pytest

from tests.engine.helpers_wire import client_of, methods, when
from toolkeep import AuthNeeded, RemoteProtocolError, ServerUnavailable, ToolkeepError
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.testing import FaultProxy, ScriptedServer

MODERN = "2026-07-28"
HANDSHAKES = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
HANDSHAKE = ["initialize", "notifications/initialized"]
PROBE = "server/discover"

Speaks = Literal["legacy", "modern", "both"]


@pytest.mark.parametrize(
    ("mode", "speaks", "era", "opening"),
    [
        ("auto", "legacy", "legacy", [PROBE, *HANDSHAKE]),
        ("auto", "modern", "modern", [PROBE]),
        ("auto", "both", "modern", [PROBE]),
        ("legacy", "legacy", "legacy", HANDSHAKE),
        ("legacy", "both", "legacy", HANDSHAKE),
        ("modern", "modern", "modern", [PROBE]),
        ("modern", "both", "modern", [PROBE]),
    ],
)
@pytest.mark.requirement("S12")
async def test_mode_and_server_settle_the_era(
    mode: str, speaks: Speaks, era: str, opening: list[str]
) -> None:
    async with ScriptedServer.local(era=speaks) as server, client_of(server, mode=mode) as client:
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert client.era == era
        assert client.protocol_version == (MODERN if era == "modern" else HANDSHAKES[-1])
        assert (client.session_id is None) == (era == "modern")
        assert await methods(server) == [*opening, "tools/call"]


@pytest.mark.parametrize(("mode", "speaks"), [("legacy", "modern"), ("modern", "legacy")])
@pytest.mark.requirement("S12")
async def test_a_server_of_the_other_era_is_told_apart_from_an_outage(
    mode: str, speaks: Speaks
) -> None:
    async with ScriptedServer.local(era=speaks) as server, client_of(server, mode=mode) as client:
        with pytest.raises(RemoteProtocolError):
            await client.call_tool("echo", {"text": "hi"})
        assert not client.is_initialized
        assert "tools/call" not in await methods(server)


APOLOGY = {"code": -32603, "message": "Internal error"}
OUTAGES: list[tuple[str, dict[str, Any], type[ToolkeepError]]] = [
    ("401", {"status": 401}, AuthNeeded),
    ("403", {"status": 403}, AuthNeeded),
    ("429", {"status": 429}, ServerUnavailable),
    ("500", {"status": 500}, ServerUnavailable),
    ("502", {"status": 502, "body": "<html>Bad gateway</html>"}, ServerUnavailable),
    ("503", {"status": 503}, ServerUnavailable),
    ("503 and wait", {"status": 503, "headers": {"retry-after": "1"}}, ServerUnavailable),
    ("504", {"status": 504}, ServerUnavailable),
    (
        "500 and an apology",
        {"status": 500, "error": APOLOGY, "error_id": "null"},
        ServerUnavailable,
    ),
    ("dropped", {"drop": "after_body"}, ServerUnavailable),
    ("reset", {"drop": "after_body", "reset": True}, ServerUnavailable),
    ("cut", {"drop": "mid_answer"}, ServerUnavailable),
]


@pytest.mark.parametrize(
    ("do", "error"), [case[1:] for case in OUTAGES], ids=[case[0] for case in OUTAGES]
)
@pytest.mark.requirement("S12")
async def test_an_outage_during_the_probe_is_no_verdict(
    do: dict[str, Any], error: type[ToolkeepError]
) -> None:
    async with (
        ScriptedServer.local(era="both") as server,
        client_of(server, max_retries=0) as client,
    ):
        await server.script(when(PROBE, **do))
        with pytest.raises(error) as caught:
            await client.connect()
        if "status" in do:
            assert caught.value.status == do["status"]
        assert await methods(server) == [PROBE]
        await server.clear()
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert client.era == "modern"
        assert await methods(server) == [PROBE, "tools/call"]


@pytest.mark.requirement("S12")
async def test_an_outage_that_ends_in_time_costs_another_probe_and_no_error() -> None:
    async with ScriptedServer.local(era="both") as server, client_of(server) as client:
        await server.script(when(PROBE, times=2, status=503))
        assert (await client.call_tool("echo", {"text": "hi"})).attempts == 3
        assert client.era == "modern"
        assert await methods(server) == [PROBE, PROBE, PROBE, "tools/call"]


class Counting:
    """An authorizer that counts the requests it is asked for, sent or not."""

    def __init__(self) -> None:
        self.asked = 0

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        self.asked += 1
        return {}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        return False


@pytest.mark.requirement("S12")
async def test_a_refused_connection_is_no_verdict() -> None:
    auth = Counting()
    async with (
        ScriptedServer.local(era="both") as server,
        FaultProxy.to("127.0.0.1", server.port) as proxy,
        client_of(server, auth=auth, url=proxy.url(), max_retries=0) as client,
    ):
        proxy.refuse()
        with pytest.raises(ServerUnavailable):
            await client.connect()
        assert auth.asked == 1
        await proxy.heal()
        await client.connect()
        assert client.era == "modern"


SILENT = {"mode": "auto", "timeouts": {"connect": 0.9}}


@pytest.mark.requirement("S12")
async def test_silence_costs_a_third_of_the_connect_budget_and_once_only() -> None:
    async with ScriptedServer.local(era="both") as server, client_of(server, **SILENT) as client:
        await server.script(when(PROBE, hang=True))
        began = time.monotonic()
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert 0.25 <= time.monotonic() - began < 0.85
        assert client.era == "legacy"
        await server.forget_sessions()
        assert (await client.call_tool("echo", {"text": "on"})).text == "on"
        assert (await methods(server)).count(PROBE) == 1


@pytest.mark.parametrize("speaks", ["legacy", "both"])
@pytest.mark.requirement("S12")
async def test_a_replacement_does_not_probe_again(speaks: Speaks) -> None:
    async with ScriptedServer.local(era=speaks) as server, client_of(server) as client:
        await server.script(when(PROBE, times=1, error={"code": -32601, "message": "what?"}))
        await client.call_tool("echo", {"text": "hi"})
        await server.forget_sessions()
        await client.call_tool("echo", {"text": "hi"})
        assert client.era == "legacy"
        assert await methods(server) == [
            *(PROBE, *HANDSHAKE, "tools/call"),
            *("tools/call", *HANDSHAKE, "tools/call"),
        ]


@pytest.mark.requirement("S12")
async def test_a_version_refusal_negotiates_again_and_sends_the_call_again() -> None:
    refusal = {"code": -32022, "message": "no", "data": {"supported": [MODERN]}}
    async with ScriptedServer.local(era="both") as server, client_of(server) as client:
        await server.script(when(tool="echo", times=1, status=400, error=refusal))
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert await methods(server) == [PROBE, "tools/call", PROBE, "tools/call"]
        assert await server.executions("echo") == 1


@pytest.mark.parametrize("mode", ["auto", "modern"])
@pytest.mark.requirement("S12")
async def test_a_probe_refused_for_its_version_is_repeated_at_the_one_named(mode: str) -> None:
    refusal = {"code": -32022, "message": "no", "data": {"supported": ["2031-01-01", MODERN]}}
    async with ScriptedServer.local(era="both") as server, client_of(server, mode=mode) as client:
        await server.script(when(PROBE, times=1, status=400, error=refusal))
        await client.connect()
        assert client.era == "modern"
        assert await methods(server) == [PROBE, PROBE]


@pytest.mark.parametrize("mode", ["legacy", "modern"])
@pytest.mark.requirement("S12")
async def test_a_handshake_that_is_none_is_told_as_such(mode: str) -> None:
    async with ScriptedServer.local(era="both") as server, client_of(server, mode=mode) as client:
        await server.script(when(result={"resultType": "complete", "hello": 1}))
        with pytest.raises(RemoteProtocolError):
            await client.connect()
        assert not client.is_initialized


@pytest.mark.requirement("S12")
async def test_a_modern_server_that_becomes_legacy_is_followed() -> None:
    refusal = {"code": -32022, "message": "no", "data": {"supported": HANDSHAKES}}
    async with ScriptedServer.local(era="both") as server, client_of(server) as client:
        await client.connect()
        assert client.era == "modern"
        await server.script(
            when(tool="echo", times=1, status=400, error=refusal),
            when(PROBE, status=400, error=refusal),
        )
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert client.era == "legacy"


@pytest.mark.requirement("S12")
async def test_a_legacy_call_refused_for_its_version_probes_again() -> None:
    refusal = {"code": -32022, "message": "no", "data": {"supported": [MODERN]}}
    async with ScriptedServer.local(era="both") as server, client_of(server) as client:
        await server.script(
            when(PROBE, times=1, error={"code": -32601, "message": "what?"}),
            when(tool="echo", times=1, status=400, error=refusal),
        )
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert client.era == "modern"
        seen = [method for method in await methods(server) if method != "DELETE"]
        assert seen == [PROBE, *HANDSHAKE, "tools/call", PROBE, "tools/call"]


@pytest.mark.requirement("S12")
async def test_a_legacy_server_that_becomes_modern_is_followed() -> None:
    refusal = {"code": -32022, "message": "no", "data": {"supported": [MODERN]}}
    async with ScriptedServer.local(era="both") as server, client_of(server) as client:
        await server.script(when(PROBE, times=1, error={"code": -32601, "message": "what?"}))
        await client.connect()
        assert client.era == "legacy"
        await server.forget_sessions()
        await server.script(when("initialize", status=400, error=refusal))
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert client.era == "modern"


@pytest.mark.parametrize(
    "discovered",
    [
        {"supportedVersions": ["2025-11-25"], "capabilities": {}, "resultType": "complete"},
        {"supportedVersions": ["2031-01-01"], "capabilities": {}, "resultType": "complete"},
        {"something": "else"},
        {},
    ],
)
@pytest.mark.requirement("S12")
async def test_a_discovery_that_names_no_modern_version_is_followed_by_a_handshake(
    discovered: dict[str, Any],
) -> None:
    async with ScriptedServer.local(era="both") as server, client_of(server) as client:
        await server.script(when(PROBE, result=discovered))
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert client.era == "legacy"
        assert await methods(server) == [PROBE, *HANDSHAKE, "tools/call"]


@pytest.mark.requirement("S12")
async def test_a_server_of_unknown_versions_alone_is_a_stranger() -> None:
    refusal = {"code": -32022, "message": "no", "data": {"supported": ["2031-01-01"]}}
    async with ScriptedServer.local(era="modern") as server, client_of(server) as client:
        await server.script(when(status=400, error=refusal))
        with pytest.raises(RemoteProtocolError) as caught:
            await client.connect()
        assert caught.value.failure is not None
        assert caught.value.failure.code == -32022


@pytest.mark.requirement("S12")
async def test_a_handshake_at_a_version_that_nobody_knows_is_refused() -> None:
    info = {"name": "odd", "version": "1"}
    result = {"protocolVersion": "1999-01-01", "capabilities": {}, "serverInfo": info}
    async with (
        ScriptedServer.local(era="legacy") as server,
        client_of(server, mode="legacy") as client,
    ):
        await server.script(when("initialize", result=result))
        with pytest.raises(RemoteProtocolError):
            await client.connect()
        assert not client.is_initialized
        assert "notifications/initialized" not in await methods(server)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("version", HANDSHAKES)
@pytest.mark.requirement("S12")
async def test_every_handshake_version_is_sent_with_every_later_request(
    version: str, mode: str
) -> None:
    async with ScriptedServer.local(era="legacy", protocol_version=version) as server:
        async with client_of(server, mode=mode) as client:
            client.observe(lambda event: None)
            await client.call_tool("echo", {"text": "hi"})
            assert client.protocol_version == version
            await server.notify("notifications/tools/list_changed")
            await client.list_tools()
        await server.requests(at_least=6)
        seen = await server.requests()
    sent = {}
    for record in seen:
        name = record.rpc_method or record.http_method
        sent.setdefault(name, set()).add(record.headers.get("mcp-protocol-version"))
    assert sent.pop("initialize") == {None}
    assert sent.pop(PROBE, {MODERN}) == {MODERN}
    assert set(sent) == {"notifications/initialized", "tools/call", "tools/list", "GET", "DELETE"}
    assert all(versions == {version} for versions in sent.values())


@pytest.mark.requirement("S12")
async def test_a_modern_request_carries_its_version_and_its_method() -> None:
    async with ScriptedServer.local(era="modern") as server, client_of(server) as client:
        await client.call_tool("echo", {"text": "hi"})
        await client.list_tools()
        for record in await server.requests():
            assert record.headers["mcp-protocol-version"] == MODERN
            assert record.headers["mcp-method"] == record.rpc_method
            assert record.headers.get("mcp-name") == record.tool
            assert record.session_id is None
