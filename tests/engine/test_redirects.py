"""A redirect is followed inside the origin alone, and never by dropping the request."""

import pytest

from tests.engine.helpers_wire import (
    Asked,
    Era,
    RawServer,
    both_eras,
    client_of,
    http,
    result_for,
    when,
)
from toolkeep import CallOutcomeUnknown, RemoteProtocolError
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


@pytest.mark.parametrize(("status", "asked"), [("307", 6), ("308", 4)])
@pytest.mark.requirement("S10")
async def test_only_a_permanent_redirect_is_remembered(status: str, asked: int) -> None:
    def answer(request: Asked) -> bytes:
        if request.target == "/mcp":
            return http(b"", "location: /new", status=f"{status} Moved")
        return http(result_for(request))

    async with RawServer(answer) as server, client_of(server, mode="legacy") as client:
        for _ in range(3):
            assert (await client.call_tool("any")).text == "hello"
        targets = [one.target for one in server.asked if one.message.get("method") == "tools/call"]
    assert len(targets) == asked
    assert targets[:2] == ["/mcp", "/new"]


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
        async with client_of(server, mode=era, api_key="hush", max_replays=0) as client:
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
