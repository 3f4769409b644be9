"""A redirect is followed inside the origin alone, and never by dropping the request."""

import asyncio

import pytest

from tests.engine.helpers_wire import (
    BOUND,
    Asked,
    Era,
    RawServer,
    both_eras,
    client_of,
    handshake,
    http,
    result_for,
    when,
)
from toolkeep import (
    CallContext,
    CallNotDelivered,
    CallOutcomeUnknown,
    RemoteProtocolError,
    Runtime,
)
from toolkeep.testing import ScriptedServer


@both_eras
@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.requirement("S10")
async def test_a_redirect_inside_the_origin_is_followed(era: Era, status: int) -> None:
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await server.script(when(tool="echo", times=1, status=status, redirect="/mcp?moved"))
        result = await client.call_tool("echo", {"text": "hi"})
        assert (result.text, result.attempts) == ("hi", 1)
        assert await server.executions("echo") == 1
        assert len(await server.requests("tools/call")) == 2


@pytest.mark.parametrize("status", ["307 Temporary", "308 Permanent"])
@pytest.mark.requirement("S10")
async def test_no_redirect_is_remembered(status: str) -> None:
    def answer(request: Asked) -> bytes:
        if request.target == "/mcp":
            return http(b"", "location: /new", status=status)
        return http(result_for(request))

    async with RawServer(answer) as server, client_of(server, mode="legacy") as client:
        for _ in range(3):
            assert (await client.call_tool("any")).text == "hello"
        targets = [one.target for one in server.asked if one.message.get("method") == "tools/call"]
    assert targets == ["/mcp", "/new"] * 3


WAYS_TO_A_KEY = {
    "308": {"/mcp": ("308 Permanent", "/mcp?key={who}")},
    "308 to a path": {"/mcp": ("308 Permanent", "/{who}/mcp")},
    "308 behind a 307": {
        "/mcp": ("307 Temporary", "/hop"),
        "/hop": ("308 Permanent", "/mcp?key={who}"),
    },
    "307 behind a 308": {
        "/mcp": ("308 Permanent", "/hop"),
        "/hop": ("307 Temporary", "/mcp?key={who}"),
    },
}


@pytest.mark.parametrize("way", WAYS_TO_A_KEY.values(), ids=WAYS_TO_A_KEY)
@pytest.mark.requirement("S10", "H4")
async def test_a_redirect_of_one_principal_moves_no_other(way: dict[str, tuple[str, str]]) -> None:
    """One of them is sent to a URL with a key of hers; the server knows the others as they are."""

    def answer(asked: Asked) -> bytes:
        who, method = asked.headers.get("x-who", "nobody"), asked.message.get("method")
        if who == "ann" and asked.target in way:
            status, location = way[asked.target]
            return http(b"", f"location: {location.format(who=who)}", status=status)
        if method == "tools/list":
            tools = [{"name": "whoami", "inputSchema": {"type": "object"}}]
            return http(result_for(asked, {"tools": tools}))
        if method == "tools/call":
            text = f"{who} at {asked.target}"
            return http(result_for(asked, {"content": [{"type": "text", "text": text}]}))
        return handshake(asked)

    async with RawServer(answer, only=True) as server, asyncio.timeout(BOUND):
        spec = {"url": server.url, "mode": "legacy"}
        async with Runtime({"mcpServers": {"kit": spec}}) as runtime:
            for who in ("ann", "ben", "ann", "ben"):
                context = CallContext(principal=who, headers={"x-who": who})
                text = (await runtime.call("kit.whoami", context=context)).text
                assert ("ann" in text) == (who == "ann")
                assert text.startswith(who)
            elsewhere = [one for one in server.asked if one.target != "/mcp"]
            assert {one.headers.get("x-who") for one in elsewhere} == {"ann"}


@pytest.mark.requirement("S10")
async def test_a_redirect_that_was_wrong_is_over_with_its_request() -> None:
    asked: list[str] = []

    def answer(request: Asked) -> bytes:
        asked.append(request.target)
        if len(asked) == 1:
            return http(b"", "location: /wrong", status="308 Permanent")
        if request.target == "/wrong":
            return http(b"nothing here", status="422 Unprocessable", kind="text/plain")
        return http(result_for(request))

    async with RawServer(answer) as server, client_of(server, mode="legacy") as client:
        with pytest.raises(CallNotDelivered):
            await client.call_tool("any")
        assert (await client.call_tool("any")).text == "hello"
    assert asked == ["/mcp", "/wrong", "/mcp"]


@both_eras
@pytest.mark.parametrize("status", [301, 302, 303])
@pytest.mark.requirement("S10")
async def test_a_redirect_that_would_drop_the_request_is_not_followed(
    era: Era, status: int
) -> None:
    async with ScriptedServer.local(era=era) as server, client_of(server, mode=era) as client:
        await server.script(when(tool="echo", times=1, status=status, redirect="/mcp?moved"))
        with pytest.raises(CallOutcomeUnknown) as caught:
            await client.call_tool("echo", {"text": "hi"})
        assert caught.value.status == status
        assert len(await server.requests("tools/call")) == 1
        assert (await client.call_tool("echo", {"text": "on"})).text == "on"


AWAY = {
    "another port": "http://127.0.0.1:{port}/mcp",
    "another host": "http://localhost:{port}/mcp",
    "another scheme": "https://127.0.0.1:{port}/mcp",
    "no scheme": "//127.0.0.1:{port}/mcp",
    "a user": "http://127.0.0.1@localhost:{port}/mcp",
}


@both_eras
@pytest.mark.parametrize("opening", [True, False])
@pytest.mark.parametrize("location", AWAY.values(), ids=AWAY.keys())
@pytest.mark.requirement("S10")
async def test_a_redirect_out_of_the_origin_is_not_followed(
    era: Era, opening: bool, location: str
) -> None:
    async with ScriptedServer.local() as elsewhere, ScriptedServer.local(era=era) as server:
        target = location.format(port=elsewhere.port)
        async with client_of(server, mode=era, api_key="hush", max_retries=0) as client:
            if not opening:
                await client.connect()
            await server.script(when(status=307, redirect=target))
            expected = RemoteProtocolError if opening else CallOutcomeUnknown
            with pytest.raises(expected) as caught:
                await client.call_tool("echo", {"text": "hi"})
            assert caught.value.status == 307
            assert str(elsewhere.port) in str(caught.value)
            await server.clear()
            assert (await client.call_tool("echo", {"text": "on"})).text == "on"
        assert await elsewhere.connections() == 0


@pytest.mark.parametrize("location", ["", "http://[", "mailto:a@b", "/mcp?again"])
@pytest.mark.requirement("S10")
async def test_a_redirect_that_leads_nowhere_ends(location: str) -> None:
    async with ScriptedServer.local() as server, client_of(server) as client:
        await client.connect()
        await server.script(when(tool="echo", status=307, redirect=location))
        with pytest.raises(CallOutcomeUnknown):
            await client.call_tool("echo", {"text": "hi"}, timeout=3)
        assert len(await server.requests("tools/call")) <= 6
