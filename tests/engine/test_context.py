"""Whose context and headers a request carries: its caller's, or nobody's."""

from collections.abc import Mapping
from contextvars import ContextVar

import pytest

from tests.engine.helpers_tasks import Era, every_era
from toolkeep import Client
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.testing import ScriptedServer

pytestmark = pytest.mark.requirement("S17")

user: ContextVar[str] = ContextVar("user", default="nobody")


class Witness:
    """An authorizer that writes down whose context it is asked in."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        self.asked.append((request.method, user.get()))
        return {"x-asked-by": user.get()}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        return False


@every_era
async def test_no_callers_context_or_headers_reach_what_the_connection_sends_by_itself(era: Era):
    auth = Witness()
    async with ScriptedServer.local(era=era) as server:
        spec = {"name": "kit", "url": server.url, "mode": era, "headers": {"x-server": "s"}}
        client = Client(spec, auth=auth)
        client.observe(lambda event: None)
        user.set("ada")
        await client.call_tool("echo", {"text": "x"}, headers={"x-request-id": "one"})
        if era == "legacy":
            await server.notify("notifications/message", {"level": "info", "data": 1})
        await client.ping()
        await client.aclose()

        records = await server.requests()
        assert all(record.headers["x-server"] == "s" for record in records)
        by = {
            record.rpc_method or record.http_method: (
                record.headers["x-asked-by"],
                record.headers.get("x-request-id"),
            )
            for record in records
        }
        assert by.pop("tools/call") == ("ada", "one")
        if era == "legacy":
            assert by.pop("ping") == ("ada", None)
            assert set(by) == {"initialize", "notifications/initialized", "GET", "DELETE"}
            assert set(by.values()) == {("nobody", None)}
        else:
            first, last = await server.requests("server/discover")
            assert first.headers["x-asked-by"] == "nobody"
            assert last.headers["x-asked-by"] == "ada"
            assert "x-request-id" not in {**first.headers, **last.headers}


async def test_a_late_observers_context_does_not_reach_the_stream_it_wants():
    auth = Witness()
    async with ScriptedServer.local(era="legacy") as server:
        client = Client({"name": "kit", "url": server.url, "mode": "legacy"}, auth=auth)
        await client.connect()
        user.set("ada")
        client.observe(lambda event: None)
        assert await server.notify("notifications/message", {"level": "info", "data": 1}) == 1
        await client.aclose()
        assert [who for method, who in auth.asked if method == "GET"] == ["nobody"]


async def test_a_replacement_knows_nothing_of_the_call_that_needed_it():
    auth = Witness()
    async with ScriptedServer.local(era="legacy") as server:
        client = Client({"name": "kit", "url": server.url, "mode": "legacy"}, auth=auth)
        await client.connect()
        await server.forget_sessions()
        user.set("ada")
        await client.call_tool("echo", {"text": "x"}, headers={"x-request-id": "one"})
        await client.aclose()
        handshakes = await server.requests("initialize")
        assert len(handshakes) == 2
        for record in (*handshakes, *await server.requests("notifications/initialized")):
            assert record.headers["x-asked-by"] == "nobody"
            assert "x-request-id" not in record.headers
