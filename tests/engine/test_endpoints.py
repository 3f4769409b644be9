"""Several addresses for one server: who gets a call, and where it may go when that fails.

The servers' own records are the judges: their ledgers and journals say what ran, and their requests
in which session.
"""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.engine.helpers_endpoints import (
    PATIENCE,
    addresses,
    busy_one,
    calls_at,
    gone,
    journalled,
    nobody,
    processes,
    runs,
    spec_of,
)
from toolkeep import (
    CallContext,
    CallOutcomeUnknown,
    CallRejected,
    CallResult,
    Client,
    Runtime,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep.testing import Behaviour, Rule

eras = pytest.mark.parametrize("era", ["legacy", "modern"])

MANY = 500
"""Callers at the same time; each of them calls twice."""


async def _killed(pid: int, journal: Path, after: int) -> None:
    """Kill it, as the system would for want of memory, once it has run something."""
    async with asyncio.timeout(PATIENCE):
        while journalled(journal).total() < after:
            await asyncio.sleep(0.005)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.requirement("G9")
@pytest.mark.parametrize(
    ("era", "balance"), [("legacy", "session"), ("legacy", "call"), ("modern", "session")]
)
async def test_one_address_is_killed_and_one_is_slow_under_500_callers(
    era: Any, balance: Any, tmp_path: Path
) -> None:
    async with processes(3, tmp_path, era=era, record=False) as ((quick, a), (slow, b), (shot, c)):
        await slow.script(Rule(method="tools/call", do=Behaviour(delay=0.4)))
        await shot.script(Rule(method="tools/call", do=Behaviour(delay=0.1)))
        dead = nobody()
        spec = spec_of([quick, slow, shot, dead], balance=balance, breaker_cooldown=0.2)
        context = [CallContext(principal=f"user-{number % 50}") for number in range(MANY)]
        plain, harmless = "kit.record", "kit.record_read_only"
        async with Runtime.open([spec]) as runtime, asyncio.timeout(PATIENCE):

            async def one(number: int, turn: int) -> tuple[str, CallResult | BaseException]:
                key, tool = f"{number}/{turn}", plain if number % 2 else harmless
                try:
                    done = runtime.call(tool, {"key": key}, context=context[number])
                    return key, await done
                except ToolkeepError as error:
                    return key, error

            async def caller(number: int) -> list[tuple[str, CallResult | BaseException]]:
                return [await one(number, turn) for turn in range(2)]

            killing = asyncio.create_task(_killed(shot.pid, c, after=40))
            turns = await asyncio.gather(*map(caller, range(MANY)))
            await killing
            (status,) = runtime.servers
        ran = [journalled(each) for each in (a, b, c)]
        total, outcomes = sum(ran, Counter()), dict(pair for pairs in turns for pair in pairs)
        assert len(outcomes) == 2 * MANY

        unknown = {key for key, end in outcomes.items() if isinstance(end, CallOutcomeUnknown)}
        others = {key: end for key, end in outcomes.items() if isinstance(end, BaseException)}
        others = {key: end for key, end in others.items() if key not in unknown}
        assert not others, "a call failed that could have gone elsewhere"
        for key in outcomes:
            if int(key.split("/")[0]) % 2:  # a plain side effect
                assert total[key] <= 1, "a call ran twice"
                assert total[key] == 1 or key in unknown, "a call is said to have run, and did not"
            else:
                assert key not in unknown, "a call that may be repeated was given up"
                assert total[key] >= 1
        for key in unknown:  # what is not known was under way where the process was killed
            assert ran[0][key] == ran[1][key] == 0

        figures = {each.url: each for each in status.endpoints}
        assert list(figures) == [quick.url, slow.url, shot.url, dead]
        assert figures[dead].faults > 0
        assert figures[shot.url].faults > 0
        assert all(each.in_flight == 0 for each in status.endpoints)
        if balance == "call" or era == "modern":
            # Whoever is slow has more in flight, and so is given less.
            assert ran[0].total() > ran[1].total()


@pytest.mark.requirement("G9")
async def test_calls_go_to_the_address_with_the_fewest_in_flight() -> None:
    async with addresses(3, era="modern") as servers:
        await servers[0].script(Rule(tool="slow", do=Behaviour(hang=True)))
        spec = spec_of(servers)
        async with Runtime.open([spec], listen=False, health_interval=None) as runtime:

            def start(seconds: float) -> asyncio.Task[CallResult]:
                return asyncio.create_task(runtime.call("kit.slow", {"seconds": seconds}))

            def in_flight() -> list[int]:
                (status,) = runtime.servers
                return [each.in_flight for each in status.endpoints]

            calls = [start(0.01) for _ in range(30)]
            async with asyncio.timeout(PATIENCE):
                while sum(call.done() for call in calls) < 20:
                    await asyncio.wait(calls, timeout=0.01)
            assert in_flight() == [10, 0, 0]
            calls += [start(PATIENCE) for _ in range(20)]
            for server in servers[1:]:
                await server.requests(tool="slow", at_least=20)
            assert in_flight() == [10, 10, 10]
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            assert in_flight() == [0, 0, 0]


async def test_an_address_that_comes_back_is_not_flooded() -> None:
    """How much each got before says nothing about what it has to do now."""
    async with addresses(2, era="modern") as (first, second):
        spec = spec_of([first, second], breaker_threshold=1, breaker_cooldown=0.05)
        async with Client(spec) as client:
            await client.list_tools()
            await first.script(Rule(tool="record_read_only", do=Behaviour(status=503), times=1))
            while not any(each.cooling_down for each in client.endpoints):
                await client.call_tool("record_read_only", {"key": "x"})
            while any(each.cooling_down for each in client.endpoints):
                await client.call_tool("echo", {"text": "hi"})
            before = await calls_at(first), await calls_at(second)
            for _ in range(20):
                await client.call_tool("echo", {"text": "hi"})
            after = await calls_at(first), await calls_at(second)
            assert [now - then for now, then in zip(after, before, strict=True)] == [10, 10]


# -- where a call may go when it failed --------------------------------------------------------


@pytest.mark.requirement("G9")
async def test_a_call_that_was_not_delivered_goes_elsewhere_at_once() -> None:
    async with addresses(1) as (alive,):
        for _ in range(8):  # whichever it begins with
            async with Client(spec_of([nobody(), alive], max_retries=0)) as client:
                result = await client.call_tool("echo", {"text": "hi"})
                assert result.text == "hi"


@pytest.mark.requirement("G9")
@eras
async def test_a_call_that_may_have_run_goes_nowhere_else(era: Any) -> None:
    async with addresses(3, era=era) as servers:
        for server in servers:
            await server.script(Rule(tool="record", do=Behaviour(drop="after_run")))
        async with Client(spec_of(servers)) as client:
            with pytest.raises(CallOutcomeUnknown) as caught:
                await client.call_tool("record", {"key": "one"})
            assert caught.value.attempts == 1
        assert (await runs(servers))["one"] == 1


async def test_an_unknown_outcome_is_never_hidden_by_what_another_address_says() -> None:
    async with addresses(2, era="modern") as servers:
        for server in servers:
            await server.script(
                Rule(tool="record", do=Behaviour(drop="after_run"), times=1),
                Rule(tool="record", do=Behaviour(status=401)),
            )
        spec = spec_of(servers, retry="always", max_retries=0)
        async with Client(spec) as client:
            with pytest.raises(CallOutcomeUnknown):
                await client.call_tool("record", {"key": "one"})


async def test_a_call_that_may_be_repeated_goes_elsewhere_when_its_answer_is_lost() -> None:
    async with addresses(2, era="modern") as (first, second):
        await first.script(Rule(tool="record_read_only", do=Behaviour(drop="after_run")))
        async with Client(spec_of([first, second], max_retries=0)) as client:
            await client.list_tools()
            for _ in range(4):
                await client.call_tool("record_read_only", {"key": "one"})
        assert await calls_at(second) == 4


@pytest.mark.parametrize("status", [404, 405, 429])
async def test_what_one_address_refuses_another_is_asked_for(status: int) -> None:
    """It provably did not run."""
    async with addresses(2, era="modern") as (odd, good):
        await odd.script(Rule(tool="record", do=Behaviour(status=status)))
        async with Client(spec_of([odd, good], max_retries=0)) as client:
            for number in range(4):
                await client.call_tool("record", {"key": str(number)})
        assert await runs([good]) == {str(number): 1 for number in range(4)}
        assert await runs([odd]) == {}


@pytest.mark.requirement("P1", "P2")
@pytest.mark.parametrize("status", [408, 409, 499])
async def test_a_status_that_may_come_after_the_work_goes_nowhere_else(status: int) -> None:
    """Gateways say 408 of a tool that ran for too long."""
    async with addresses(2, era="modern") as servers:
        for server in servers:
            late = Behaviour(status=status, run=True)
            await server.script(Rule(tool="record", do=late))
        async with Client(spec_of(servers)) as client:
            with pytest.raises(CallOutcomeUnknown):
                await client.call_tool("record", {"key": "one"})
        assert (await runs(servers))["one"] == 1


async def test_an_address_that_asks_for_a_pause_is_given_it() -> None:
    async with addresses(2, era="modern") as (tired, good):
        pause = Behaviour(status=429, headers={"retry-after": "20"})
        await tired.script(Rule(tool="record", do=pause))
        async with Client(spec_of([tired, good])) as client:
            for number in range(10):
                await client.call_tool("record", {"key": str(number)})
            assert [each.cooling_down for each in client.endpoints] == [True, False]
        assert await calls_at(tired) == 1


async def test_a_server_that_says_no_is_not_asked_elsewhere() -> None:
    async with addresses(2, era="modern") as servers:
        for server in servers:
            error = {"code": -32603, "message": "no"}
            await server.script(Rule(tool="echo", do=Behaviour(error=error)))
        async with Client(spec_of(servers)) as client:
            with pytest.raises(CallRejected):
                await client.call_tool("echo", {"text": "hi"})
        assert sum([await calls_at(server) for server in servers]) == 1


async def test_when_every_address_is_down_the_call_says_so_and_did_not_run() -> None:
    dead = [nobody() for _ in range(3)]
    client = Client(spec_of(dead, max_retries=0))
    with pytest.raises(ServerUnavailable):
        await client.call_tool("echo", {"text": "hi"})
    assert [each.attempts for each in client.endpoints] == [1, 1, 1]
    await client.aclose()


async def test_max_replays_bounds_the_rounds_over_all_addresses() -> None:
    dead = [nobody() for _ in range(2)]
    client = Client(spec_of(dead, max_retries=2, breaker_threshold=0))
    with pytest.raises(ServerUnavailable):
        await client.call_tool("echo", {"text": "hi"})
    assert sum(each.attempts for each in client.endpoints) <= 2 + 2
    await client.aclose()


# -- sessions ----------------------------------------------------------------------------------


@pytest.mark.requirement("G9")
async def test_a_session_stays_at_its_address_and_all_calls_of_its_client_in_it() -> None:
    async with addresses(3, era="legacy") as servers, Client(spec_of(servers)) as client:
        calls = (client.call_tool("slow", {"seconds": 0.05}) for _ in range(30))
        await asyncio.gather(*calls)
        assert sorted([await calls_at(server) for server in servers]) == [0, 0, 30]
        sessions = [await server.requests("initialize") for server in servers]
        assert sum(len(each) for each in sessions) == 1


async def test_a_lost_session_is_replaced_at_its_own_address() -> None:
    async with addresses(3, era="legacy") as servers, Client(spec_of(servers)) as client:
        await client.call_tool("record", {"key": "one"})
        for server in servers:
            await server.forget_sessions()
        await client.call_tool("record", {"key": "two"})
        assert sorted([await calls_at(server) for server in servers]) == [0, 0, 3]
        handshakes = [len(await server.requests("initialize")) for server in servers]
        assert sorted(handshakes) == [0, 0, 2]
        assert await runs(servers) == {"one": 1, "two": 1}


async def test_sessions_of_many_principals_are_spread() -> None:
    async with addresses(3, era="legacy") as servers:
        spec = spec_of(servers)
        async with Runtime.open([spec], listen=False, health_interval=None) as runtime:
            contexts = [CallContext(principal=f"user-{number}") for number in range(30)]
            calls = (runtime.call("kit.echo", {"text": "hi"}, context=each) for each in contexts)
            await asyncio.gather(*calls)
            handshakes = [len(await server.requests("initialize")) for server in servers]
            assert max(handshakes) - min(handshakes) <= 2
            again = (runtime.call("kit.echo", {"text": "hi"}, context=each) for each in contexts)
            await asyncio.gather(*again)
        for server in servers:
            sessions = Counter(r.session_id for r in await server.requests("tools/call"))
            assert set(sessions.values()) == {2}  # nobody's second call went elsewhere


async def test_calls_of_a_server_without_sessions_are_spread_evenly() -> None:
    async with addresses(3, era="modern") as servers, Client(spec_of(servers)) as client:
        for _ in range(30):
            await client.call_tool("echo", {"text": "hi"})
        assert [await calls_at(server) for server in servers] == [10, 10, 10]


async def test_with_balance_call_each_address_has_one_session_of_the_client() -> None:
    async with addresses(3, era="legacy") as servers:
        async with Client(spec_of(servers, balance="call")) as client:
            for _ in range(30):
                await client.call_tool("echo", {"text": "hi"})
        for server in servers:
            seen = await server.requests("tools/call")
            assert len(seen) == 10
            assert len({record.session_id for record in seen}) == 1
            assert len(await server.requests("initialize")) == 1


async def test_a_session_whose_address_goes_down_is_opened_elsewhere() -> None:
    async with addresses(2, era="legacy") as servers:
        client = Client(spec_of(servers, keep_alive=0.001))
        await client.call_tool("echo", {"text": "hi"})
        home, other = await busy_one(servers)
        await gone(home)
        for number in range(5):
            result = await client.call_tool("record", {"key": str(number)}, timeout=PATIENCE)
            assert result.success
        assert await runs([other]) == {str(number): 1 for number in range(5)}
        assert len(await other.requests("initialize")) == 1
        await client.aclose()
