"""Several addresses for one server: who gets a call, and where it may go when that fails.

The servers' own records are the judges: their ledgers say what ran, and their requests in which
session.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from mainstay import (
    CallContext,
    CallOutcomeUnknown,
    CallRejected,
    Client,
    ConfigError,
    Runtime,
    ServerSpec,
    ServerUnavailable,
)
from mainstay.testing import Behaviour, Rule, ScriptedServer
from tests.runtime._life import quiet_port

PATIENCE = 30.0
eras = pytest.mark.parametrize("era", ["legacy", "modern"])


@asynccontextmanager
async def addresses(count: int = 3, **options: Any) -> AsyncGenerator[list[ScriptedServer]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(ScriptedServer.local(**options)) for _ in range(count)
        ]


def spec_of(servers: Sequence[ScriptedServer | str], **more: Any) -> ServerSpec:
    urls = [each if isinstance(each, str) else each.url for each in servers]
    return ServerSpec(name="kit", urls=urls, **more)


async def runs(servers: Sequence[ScriptedServer]) -> Counter[str]:
    total = Counter[str]()
    for server in servers:
        total.update(await server.ledger())
    return total


async def calls_at(server: ScriptedServer) -> int:
    return len(await server.requests(rpc_method="tools/call"))


@pytest.mark.requirement("G9")
@pytest.mark.parametrize("balance", ["session", "call"])
@eras
async def test_of_three_addresses_one_is_killed_and_one_is_slow_under_500_calls(
    era: Any, balance: Any
) -> None:
    async with addresses(3, era=era) as (quick, slow, doomed):
        await slow.script(Rule(tool="record", do=Behaviour(delay=0.2)))
        dead = f"http://127.0.0.1:{quiet_port()}/mcp"
        spec = spec_of([quick, slow, doomed, dead], balance=balance, breaker_cooldown=0.2)
        context = [CallContext(principal=f"user-{n % 25}") for n in range(500)]
        async with Runtime.open([spec]) as runtime, asyncio.timeout(PATIENCE):

            async def one(number: int) -> str:
                if number == 250:
                    await doomed.script(Rule(do=Behaviour(drop="before_body")))
                    await doomed.break_streams()
                try:
                    arguments = {"key": str(number)}
                    await runtime.call("kit.record", arguments, context=context[number])
                except CallOutcomeUnknown:
                    return "unknown"
                return "completed"

            outcomes = await asyncio.gather(*map(one, range(500)))
            (status,) = runtime.servers
        ran = await runs([quick, slow, doomed])
        for number, outcome in enumerate(outcomes):
            times = ran[str(number)]
            assert times == 1 if outcome == "completed" else times <= 1, (number, outcome, times)
        figures = {each.url: each for each in status.endpoints}
        assert len(figures) == 4
        assert figures[dead].faults > 0
        assert sum(each.in_flight for each in status.endpoints) == 0
        if era == "modern" or balance == "call":
            # Whoever is slow has more in flight, and so is given less.
            assert await calls_at(quick) > await calls_at(slow)


@pytest.mark.requirement("G9")
async def test_a_call_that_was_not_delivered_goes_elsewhere_at_once() -> None:
    dead = f"http://127.0.0.1:{quiet_port()}/mcp"
    async with addresses(1) as (alive,):
        for _ in range(8):  # whichever it begins with
            async with Client(spec_of([dead, alive], max_replays=0)) as client:
                result = await client.call_tool("echo", {"text": "hi"})
                assert result.text == "hi"


@eras
async def test_a_call_that_may_have_run_goes_nowhere_else(era: Any) -> None:
    async with addresses(3, era=era) as servers:
        for server in servers:
            await server.script(Rule(tool="record", do=Behaviour(drop="after_run")))
        async with Client(spec_of(servers)) as client:
            with pytest.raises(CallOutcomeUnknown):
                await client.call_tool("record", {"key": "one"})
        assert (await runs(servers))["one"] == 1


async def test_a_call_that_may_be_repeated_goes_elsewhere_when_its_answer_is_lost() -> None:
    async with addresses(2, era="modern") as (first, second):
        await first.script(Rule(tool="record_read_only", do=Behaviour(drop="after_run")))
        async with Client(spec_of([first, second], max_replays=0)) as client:
            await client.list_tools()
            for _ in range(4):
                await client.call_tool("record_read_only", {"key": "one"})
        assert await calls_at(second) == 4


async def test_a_server_that_says_no_is_not_asked_elsewhere() -> None:
    async with addresses(2, era="modern") as servers:
        for server in servers:
            error = {"code": -32603, "message": "no"}
            await server.script(Rule(tool="echo", do=Behaviour(error=error)))
        async with Client(spec_of(servers)) as client:
            with pytest.raises(CallRejected):
                await client.call_tool("echo", {"text": "hi"})
        assert sum([await calls_at(server) for server in servers]) == 1


@pytest.mark.requirement("G9")
async def test_a_session_stays_at_its_address_and_all_calls_of_its_client_in_it() -> None:
    async with addresses(3, era="legacy") as servers, Client(spec_of(servers)) as client:
        calls = (client.call_tool("slow", {"seconds": 0.05}) for _ in range(30))
        await asyncio.gather(*calls)
        assert sorted([await calls_at(server) for server in servers]) == [0, 0, 30]
        sessions = [await server.requests(rpc_method="initialize") for server in servers]
        assert sum(len(each) for each in sessions) == 1


async def test_sessions_of_many_principals_are_spread() -> None:
    async with addresses(3, era="legacy") as servers:
        spec = spec_of(servers)
        async with Runtime.open([spec], live=False, health_interval=None) as runtime:
            for number in range(60):
                context = CallContext(principal=f"user-{number}")
                await runtime.call("kit.echo", {"text": "hi"}, context=context)
        assert all([await calls_at(server) >= 10 for server in servers])


async def test_calls_of_a_server_without_sessions_are_spread_evenly() -> None:
    async with addresses(3, era="modern") as servers, Client(spec_of(servers)) as client:
        for _ in range(30):
            await client.call_tool("echo", {"text": "hi"})
        assert [await calls_at(server) for server in servers] == [10, 10, 10]


async def test_a_session_whose_address_goes_down_is_opened_elsewhere() -> None:
    async with addresses(2, era="legacy") as servers, Client(spec_of(servers)) as client:
        await client.call_tool("echo", {"text": "hi"})
        (home,) = [server for server in servers if await calls_at(server)]
        (other,) = [server for server in servers if server is not home]
        await home.forget_sessions()
        await home.script(Rule(do=Behaviour(drop="before_body")))
        result = await client.call_tool("record", {"key": "one"}, timeout=PATIENCE)
        assert result.success
        assert (await runs([other]))["one"] == 1


async def test_an_address_that_is_down_is_left_alone_and_tried_again() -> None:
    async with addresses(2, era="modern") as (first, second):
        spec = spec_of([first, second], breaker_threshold=2, breaker_cooldown=0.3)
        async with Runtime.open([spec], live=False, health_interval=None) as runtime:
            await first.script(Rule(do=Behaviour(drop="before_body"), method="tools/call"))
            for _ in range(20):
                await runtime.call("kit.record_read_only", {"key": "x"})
            (status,) = runtime.servers
            (down,) = [each for each in status.endpoints if each.url == first.url]
            assert down.resting
            assert down.faults < 5
            await first.script()
            async with asyncio.timeout(PATIENCE):
                while await runs([first]) == Counter():
                    await runtime.call("kit.record_read_only", {"key": "x"})
                    await asyncio.sleep(0.02)
            (status,) = runtime.servers
            assert not any(each.resting for each in status.endpoints)


async def test_when_every_address_is_down_the_call_says_so_and_did_not_run() -> None:
    dead = [f"http://127.0.0.1:{quiet_port()}/mcp" for _ in range(3)]
    client = Client(spec_of(dead, max_replays=0))
    with pytest.raises(ServerUnavailable):
        await client.call_tool("echo", {"text": "hi"})
    await client.aclose()


async def test_one_address_that_answers_with_a_page_keeps_nobody_from_the_other() -> None:
    async with addresses(2) as (page, good):
        html = Behaviour(body="<html>", content_type="text/html", status=200, run=False)
        await page.script(Rule(do=html))
        for _ in range(6):
            async with Client(spec_of([page, good])) as client:
                assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


async def test_a_changed_list_is_heard_whichever_address_leads() -> None:
    async with addresses(2, era="legacy") as servers:
        async with Runtime.open([spec_of(servers)]) as runtime:
            tool = {"name": "extra", "inputSchema": {"type": "object"}}
            for server in servers:
                await server.set_tools([tool])
            async with asyncio.timeout(PATIENCE):
                while "kit.extra" not in {tool.name for tool in runtime.catalogue.tools}:
                    await asyncio.sleep(0.02)


def test_addresses_are_checked_and_their_secrets_are_never_shown() -> None:
    spec = ServerSpec(name="kit", urls=["http://localhost:1/mcp", "http://localhost:2/mcp"])
    assert spec.url == "http://localhost:1/mcp"
    assert ServerSpec(name="kit", urls=["http://localhost:1/mcp"]).urls == ()
    with pytest.warns(match="secret"):
        secret = ServerSpec(name="kit", urls=["http://localhost:1", "http://u:pa55@localhost:2"])
    assert "pa55" not in repr(secret) + secret.model_dump_json()


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"urls": ["http://localhost:1", "http://localhost:1"]}, "urls"),
        ({"urls": ["http://localhost:1", "ftp://localhost:2"]}, "urls"),
        ({"urls": ["http://localhost:1", "nonsense"]}, "urls"),
        (
            {"url": "http://localhost:3", "urls": ["http://localhost:1", "http://localhost:2"]},
            "urls",
        ),
        ({"urls": ["http://localhost:1", "http://localhost:2"], "command": "x"}, "url"),
        ({"urls": ["http://localhost:1"], "balance": "chance"}, "balance"),
    ],
)
def test_addresses_that_cannot_work_are_a_mistake_that_is_named(given: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerSpec.parse({"name": "kit", **given})
    assert caught.value.key is not None
    assert caught.value.key.startswith(key)
