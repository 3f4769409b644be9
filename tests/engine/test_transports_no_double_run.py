"""No double run over stdio, HTTP+SSE and in-process: what left, and what came back, decides.

The law is written down here in words of its own, and the server's ledger is the judge: a call with
an unknown outcome goes again only where its tool may run twice, and one that never left always may.
"""

import asyncio
import itertools
import signal
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from tests.engine.helpers_tasks import closing, outcome
from tests.engine.helpers_transports import (
    IN_PROCESS,
    SSE,
    STDIO,
    Way,
    When,
    ended,
    every_way,
    over_stdio,
    serving,
    wait_in_place,
)
from tests.engine.troubles import ALWAYS, NEVER, OWN_TOOLS, SAFETIES, Safety
from toolkeep import (
    CallNotDelivered,
    CallNotSentInTime,
    CallOutcomeUnknown,
    CallResult,
    CallTimedOut,
    Client,
    ServerUnavailable,
    ToolkeepError,
)
from toolkeep.errors import Delivery
from toolkeep.events import Event, Retrying
from toolkeep.testing import Behaviour, FaultProxy, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("P1", "P2")

ONE_REPLAY: dict[str, Any] = {
    "max_retries": 1,
    "breaker_threshold": 0,
    "retry_tools": {ALWAYS: "always", NEVER: "never"},
}
CRASHES: list[tuple[Way, When]] = [
    *itertools.product((*STDIO, SSE), ("on reading", "after the run", "in the answer")),
    *itertools.product(IN_PROCESS, ("on reading", "after the run")),
]
STRICT = [safety for safety in SAFETIES if not safety.may_run_twice]
every_strict_safety = pytest.mark.parametrize("safety", STRICT, ids=lambda safety: safety.tool)


@dataclass(frozen=True)
class Case:
    way: Way
    when: When
    safety: Safety
    lasting: bool
    """Whether the server dies again at the next attempt."""

    @property
    def expected(self) -> tuple[type[Any], int, int]:
        """What comes of it, after how many attempts, and how often the tool runs."""
        attempts = 2 if self.safety.may_run_twice else 1
        runs = 0 if self.when == "on reading" else 1
        if attempts == 1 or self.lasting:
            return CallOutcomeUnknown, attempts, runs * attempts
        return CallResult, attempts, runs + 1


async def disagreement(case: Case) -> str | None:
    """Where the world and the law differ."""
    tool, times = case.safety.tool, None if case.lasting else 1
    async with serving(case.way, ONE_REPLAY) as (server, client):
        await client.list_tools()
        await server.doom(tool, case.when, times=times)
        found: Any = await outcome(client.call_tool(tool, {"key": "once"}))
        told = type(found), found.attempts, await server.executions("once")
    if isinstance(found, ToolkeepError) and found.delivery is not Delivery.UNKNOWN:
        return f"{case}: {found.delivery}"
    return None if told == case.expected else f"{case}: {told}, not {case.expected}"


@pytest.mark.parametrize(("way", "when"), CRASHES, ids=str)
async def test_a_server_that_dies_under_a_call_runs_it_as_often_as_the_law_allows(
    way: Way, when: When
):
    cases = itertools.product(SAFETIES, (False, True))
    found = await asyncio.gather(
        *(disagreement(Case(way, when, safety, lasting)) for safety, lasting in cases)
    )
    assert [one for one in found if one] == []


# -- what never left ----------------------------------------------------------------------------


@every_strict_safety
@over_stdio
async def test_a_process_that_was_dead_already_costs_nobody_a_call(way: Way, safety: Safety):
    async with serving(way, ONE_REPLAY) as (server, client):
        await client.list_tools()
        (process,) = await server.server.processes(at_least=1)
        server.server.kill(process)
        wait_in_place(process)
        result = await client.call_tool(safety.tool, {"key": "once"})
        assert result.text
        assert await server.executions("once") == 1
        assert await server.server.starts() == 2


@every_way
async def test_a_server_that_is_killed_at_any_moment_runs_no_call_twice(way: Way):
    async with serving(way, {**ONE_REPLAY, "retry": "never"}) as (server, client):
        await client.connect()
        for turn in range(6):
            calls = [
                asyncio.create_task(client.call_tool("record", {"key": f"{turn}.{n}"}))
                for n in range(4)
            ]
            for _ in range(turn):
                await asyncio.sleep(0)
            if client.is_initialized:
                await server.die()
            for n, call in enumerate(calls):
                found, runs = await outcome(call), await server.executions(f"{turn}.{n}")
                if isinstance(found, CallResult):
                    assert runs == 1
                else:
                    assert isinstance(found, CallOutcomeUnknown)
                    assert runs <= 1


@every_strict_safety
async def test_a_lost_session_over_sse_costs_nobody_a_call(safety: Safety):
    async with serving(SSE, ONE_REPLAY) as (server, client):
        await client.list_tools()
        before = client.session_id
        await server.server.forget_sessions()
        result = await client.call_tool(safety.tool, {"key": "once"})
        assert result.attempts == 2
        assert await server.executions("once") == 1
        assert client.session_id not in (None, before)


async def test_a_lost_session_over_sse_that_stays_lost_was_refused():
    async with serving(SSE, ONE_REPLAY) as (server, client):
        await client.connect()
        await server.server.script(Rule(tool="record", do=Behaviour(status=404)))
        error = await outcome(client.call_tool("record"))
        assert type(error) is CallNotDelivered
        assert (error.delivery, error.attempts) == (Delivery.REFUSED, 2)
        assert await server.executions("record") == 0


@pytest.mark.parametrize("lasting", [False, True], ids=["passing", "lasting"])
@every_strict_safety
async def test_a_post_over_sse_that_found_no_connection_was_not_sent(safety: Safety, lasting: bool):
    async with (
        ScriptedServer.local(era="legacy", transport="sse", tools=OWN_TOOLS) as server,
        FaultProxy.to("127.0.0.1", server.port) as proxy,
    ):
        # No socket is kept, so that the POST needs a new one while the stream lives on.
        spec = {**ONE_REPLAY, "transport": "sse", "keep_alive": 1e-6}
        healing: set[asyncio.Task[None]] = set()

        def heal(event: Event) -> None:
            if isinstance(event, Retrying) and not lasting:
                healing.add(asyncio.create_task(proxy.heal()))

        client = Client({"name": "kit", "url": proxy.url("/sse"), **spec})
        async with closing(client):
            await client.list_tools()
            client.observe(heal, listen=False)
            proxy.refuse()
            found = await outcome(client.call_tool(safety.tool, {"key": "once"}))
            assert await server.executions("once") == (0 if lasting else 1)
            if lasting:
                assert isinstance(found, CallNotDelivered | ServerUnavailable)
                assert found.delivery is Delivery.NOT_SENT
            else:
                assert found.attempts == 2
        await proxy.heal()


# -- a full pipe --------------------------------------------------------------------------------


@pytest.fixture
async def stopped(way: Way) -> Any:
    """A client whose server has stopped reading, with one large call half in the pipe."""
    async with serving(way, {**ONE_REPLAY, "timeouts": {"close": 0.6}}) as (server, client):
        await client.list_tools()
        (process,) = await server.server.processes(at_least=1)
        server.server.kill(process, signal.SIGSTOP)
        large = asyncio.create_task(
            client.call_tool("record", {"key": "large", "text": "x" * 500_000})
        )
        await anyio.wait_all_tasks_blocked()
        yield server, client, process, large
        if not large.done():
            large.cancel()
        await ended(large)


@every_strict_safety
@over_stdio
async def test_what_was_queued_behind_a_full_pipe_when_the_process_died_was_not_sent(
    way: Way, stopped: Any, safety: Safety
):
    server, client, process, large = stopped
    queued = asyncio.create_task(client.call_tool(safety.tool, {"key": "queued"}))
    await anyio.wait_all_tasks_blocked()
    server.server.kill(process)
    error = await outcome(large)
    assert type(error) is CallOutcomeUnknown
    assert error.exit_code == -signal.SIGKILL
    result = await outcome(queued)
    assert isinstance(result, CallResult)
    assert result.attempts == 2
    assert await server.ledger() == {"queued": 1}


@over_stdio
async def test_a_deadline_behind_a_full_pipe_says_that_nothing_was_sent(way: Way, stopped: Any):
    server, client, process, large = stopped
    error = await outcome(client.call_tool("record", {"key": "queued"}, timeout=0.1))
    assert type(error) is CallNotSentInTime
    assert error.delivery is Delivery.NOT_SENT
    late = await outcome(client.call_tool("slow", {"seconds": 0, "key": "later"}, timeout=0.1))
    assert type(late) is CallNotSentInTime
    server.server.kill(process, signal.SIGCONT)
    assert (await outcome(large)).text == "recorded"
    assert (await client.call_tool("echo", {"text": "x"})).text == "x"
    assert await server.ledger() == {"large": 1, "echo": 1}


@over_stdio
async def test_a_deadline_of_what_is_half_in_the_pipe_is_unknown(way: Way):
    async with serving(way, {**ONE_REPLAY, "timeouts": {"close": 0.6}}) as (server, client):
        await client.connect()
        (process,) = await server.server.processes(at_least=1)
        server.server.kill(process, signal.SIGSTOP)
        arguments = {"key": "large", "text": "x" * 500_000}
        error = await outcome(client.call_tool("record", arguments, timeout=0.1))
        assert type(error) is CallTimedOut
        server.server.kill(process, signal.SIGCONT)
        assert (await client.call_tool("echo", {"text": "x"})).text == "x"
        assert await server.executions("large") <= 1


@over_stdio
async def test_a_deadline_while_the_process_starts_says_that_nothing_was_sent(way: Way):
    async with serving(way, ignore=["initialize", "server/discover"]) as (server, client):
        error = await outcome(client.call_tool("record", timeout=0.3))
        assert isinstance(error, CallNotSentInTime)
        assert await server.arrived("record") == 0
