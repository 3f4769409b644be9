"""`serialize=True`: one request of a session at a time, whatever its kind."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.engine.helpers_tasks import (
    BOUND,
    LONG,
    Encoding,
    Era,
    every_encoding,
    every_era,
    outcome,
    serving,
)
from toolkeep import CallNotDelivered, CallOutcomeUnknown, Client
from toolkeep.state import MemoryStore
from toolkeep.testing import Behaviour, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("P10")

HOLD = 0.04
"""Seconds that the server keeps every answer back."""


async def watched(client: Client) -> Any:
    async with client.stream("steps", {"count": 1}) as call:
        return await call.result()


KINDS: tuple[Callable[[Client], Awaitable[Any]], ...] = (
    lambda client: client.call_tool("echo", {"text": "x"}),
    lambda client: client.list_tools(refresh=True),
    lambda client: client.list_prompts(),
    lambda client: client.get_prompt("greet", {"name": "Ada"}),
    lambda client: client.list_resources(),
    lambda client: client.list_resource_templates(),
    lambda client: client.read_resource("kit://notes"),
    lambda client: client.request("prompts/list"),
    watched,
)


@pytest.mark.parametrize("serialize", [True, False])
@every_encoding
@every_era
async def test_requests_of_all_kinds_go_one_at_a_time_if_and_only_if_asked(
    era: Era, encoding: Encoding, serialize: bool
):
    async with serving(era, encoding, spec={"serialize": serialize}) as (server, client):
        await server.script(Rule(do=Behaviour(delay=HOLD)))
        await client.connect()
        await server.clear()
        await server.script(Rule(do=Behaviour(delay=HOLD)))
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*(use(client) for use in KINDS))
        times = [record.at for record in await server.requests()]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert len(times) == len(KINDS)
        # The server receives the next request only after it has given the answer before.
        assert all(gap >= HOLD * 0.9 for gap in gaps) == serialize


@every_era
async def test_first_use_by_many_is_in_line_as_well(era: Era):
    async with serving(era, spec={"serialize": True}) as (server, client):
        await server.script(Rule(do=Behaviour(delay=HOLD)))
        calls = (client.call_tool("echo", {"text": str(n)}) for n in range(5))
        async with asyncio.timeout(BOUND):
            results = await asyncio.gather(*calls)
        assert [result.text for result in results] == list("01234")
        times = [record.at for record in await server.requests()]
        assert all(b - a >= HOLD * 0.9 for a, b in itertools.pairwise(times))
        order = [r.body["params"]["arguments"]["text"] for r in await server.requests(tool="echo")]
        assert order == list("01234")


@every_era
async def test_who_fails_or_leaves_frees_the_line(era: Era):
    async with serving(era, spec={"serialize": True}) as (server, client):
        await client.connect()
        await server.script(Rule(tool="record", do=Behaviour(drop="after_run", reset=True)))
        first = asyncio.create_task(client.call_tool("slow", {"seconds": LONG}))
        await server.requests(tool="slow", at_least=1)
        second = asyncio.create_task(client.call_tool("record"))
        third = asyncio.create_task(client.call_tool("echo", {"text": "third"}))
        first.cancel()
        assert type(await outcome(second)) is CallOutcomeUnknown
        assert (await asyncio.wait_for(third, BOUND)).text == "third"


async def test_a_lost_session_is_replaced_in_line():
    async with serving("legacy", spec={"serialize": True}) as (server, client):
        await client.connect()
        await server.forget_sessions()
        calls = (client.call_tool("echo", {"text": str(n), "key": str(n)}) for n in range(5))
        async with asyncio.timeout(BOUND):
            results = await asyncio.gather(*calls)
        assert [result.text for result in results] == list("01234")
        assert await server.ledger() == dict.fromkeys("01234", 1)
        assert len(await server.requests("initialize")) == 2


@every_era
async def test_being_connected_is_not_waited_for_in_line(era: Era):
    spec = {"serialize": True, "timeouts": {"connect": 0.3}}
    async with serving(era, spec=spec) as (server, client):
        slow = asyncio.create_task(client.call_tool("slow", {"seconds": LONG}))
        await server.requests(tool="slow", at_least=1)
        assert client.is_initialized
        assert await outcome(client.connect()) is None
        assert not slow.done()
        slow.cancel()
        await asyncio.wait((slow,), timeout=BOUND)


# -- in several processes -------------------------------------------------------------------------


class Unreachable(MemoryStore):
    async def lease(self, key: str, ttl: float) -> Any:
        raise ConnectionError


async def test_clients_that_share_a_store_take_turns_at_a_server():
    async with ScriptedServer.local(era="legacy") as server:
        spec, store = {"url": server.url, "serialize": True}, MemoryStore()
        async with Client(spec, state=store) as one, Client(spec, state=store) as other:
            await server.script(Rule(do=Behaviour(delay=HOLD)))
            await server.clear()
            await server.script(Rule(do=Behaviour(delay=HOLD)))
            async with asyncio.timeout(BOUND):
                await asyncio.gather(
                    *(each.call_tool("echo", {"text": "x"}) for each in (one, other) * 3)
                )
        times = [record.at for record in await server.requests("tools/call")]
        assert len(times) == 6
        assert all(later - sooner >= HOLD for sooner, later in itertools.pairwise(times))


@pytest.mark.parametrize("on_loss", ["open", "closed"])
async def test_without_its_store_a_client_takes_its_own_turns_or_refuses(on_loss: str):
    async with ScriptedServer.local(era="modern") as server:
        spec = {"url": server.url, "serialize": True, "on_store_loss": on_loss}
        async with Client(spec, state=Unreachable()) as client:
            if on_loss == "open":
                await client.call_tool("echo", {"text": "x"})
                return
            with pytest.raises(CallNotDelivered) as caught:
                await client.call_tool("echo", {"text": "x"})
            assert "serialize" in str(caught.value)
        assert await server.executions("echo") == 0
