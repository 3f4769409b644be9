"""Silence, lost sessions, programs that are neither dead nor alive, and one deadline for it all."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.helpers_tasks import BOUND, LONG, PROMPT, Took, closing, outcome, until
from tests.engine.helpers_transports import (
    SSE,
    WAYS,
    Way,
    ended,
    every_way,
    over_kit,
    over_stdio,
    serving,
)
from toolkeep import CallNotSentInTime, CallOutcomeUnknown, CallResult, Client, ServerUnavailable
from toolkeep.errors import Delivery, FailureKind
from toolkeep.testing import Behaviour, Rule
from toolkeep.testing._stdio import is_alive

# -- silence ------------------------------------------------------------------------------------


@over_kit
@pytest.mark.requirement("P1", "S14")
async def test_a_server_that_falls_silent_on_one_call_fails_that_one(way: Way):
    async with serving(way, {"timeouts": {"read": 0.3}}) as (server, client):
        await client.connect()
        await server.server.script(Rule(tool="record", times=1, do=Behaviour(hang=True)))
        busy = asyncio.create_task(
            client.call_tool("steps", {"count": 8, "gap": 0.06}, on_progress=lambda *_: None)
        )
        await server.arrived("steps", at_least=1)
        error = await outcome(client.call_tool("record"))
        assert type(error) is CallOutcomeUnknown
        assert error.failure is not None
        assert error.failure.kind is FailureKind.BROKEN
        assert await server.given_up(at_least=1) == ["record"]
        assert (await outcome(busy)).text == "8 steps"
        assert (await outcome(client.call_tool("echo", {"text": "x"}))).text == "x"
        assert await server.executions("record") == 1
        assert await server.openings() == 1


@over_kit
@pytest.mark.requirement("S13")
async def test_silence_between_calls_says_nothing(way: Way):
    async with serving(way, {"timeouts": {"read": 0.5}}) as (server, client):
        await client.connect()
        await asyncio.sleep(1.0)  # the silence itself
        assert client.is_initialized
        await client.call_tool("echo", {"text": "x"})
        assert await server.openings() == 1


# -- faults of one call on a pipe that is whole --------------------------------------------------


async def cancels_by_itself(server: Any, client: Client) -> Any:
    async def listen(progress: float, total: float | None, message: str | None) -> None:
        raise asyncio.CancelledError("by itself")

    return await outcome(client.call_tool("steps", {"count": 2}, on_progress=listen))


async def is_answered_500(server: Any, client: Client) -> Any:
    await server.server.script(Rule(tool="record", times=1, do=Behaviour(status=500)))
    return await outcome(client.call_tool("record"))


async def loses_its_post(server: Any, client: Client) -> Any:
    lost = Behaviour(drop="after_body", reset=True)
    await server.server.script(Rule(tool="record", times=1, do=lost))
    return await outcome(client.call_tool("record"))


@pytest.mark.requirement("S14")
@pytest.mark.parametrize(
    ("way", "fault"),
    [
        *((way, cancels_by_itself) for way in WAYS),
        (SSE, is_answered_500),
        (SSE, loses_its_post),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
async def test_a_fault_that_is_not_the_pipes_end_costs_the_others_neither_time_nor_connection(
    way: Way, fault: Callable[[Any, Client], Awaitable[Any]]
):
    async with serving(way, {"max_retries": 0}) as (server, client):
        await client.connect()
        session = client.session_id
        sibling = asyncio.create_task(client.call_tool("slow", {"seconds": 60}))
        await server.arrived("slow", at_least=1)
        assert type(await fault(server, client)) is CallOutcomeUnknown
        assert (await outcome(client.call_tool("echo", {"text": "x"}))).text == "x"
        assert not sibling.done()
        assert await server.openings() == 1
        assert client.session_id == session
        sibling.cancel()
        await ended(sibling)


# -- sessions -----------------------------------------------------------------------------------


@pytest.mark.requirement("S6")
async def test_concurrent_losers_of_an_sse_session_cause_one_replacement_and_others_finish():
    async with serving(SSE) as (server, client):
        await client.connect()
        old = [asyncio.create_task(client.call_tool("slow", {"seconds": 60})) for _ in range(3)]
        await server.arrived("slow", at_least=3)
        await server.server.forget_sessions()
        keys = [f"{n}" for n in range(20)]
        losers = [asyncio.create_task(client.call_tool("record", {"key": key})) for key in keys]
        results = [await outcome(loser) for loser in losers]
        assert {result.text for result in results} == {"recorded"}
        assert {result.attempts for result in results} <= {1, 2}
        await server.server.skip_delays()
        assert [(await outcome(call)).text for call in old] == ["done"] * 3
        assert await server.openings() == 2
        assert await server.ledger() == {"slow": 3, **dict.fromkeys(keys, 1)}


@pytest.mark.requirement("S7")
@pytest.mark.parametrize("replays", [0, 1, 2])
async def test_the_replays_of_a_lost_sse_session_are_counted_exactly(replays: int):
    async with serving(SSE, {"max_retries": replays}) as (server, client):
        await client.connect()
        await server.server.script(Rule(tool="record", do=Behaviour(status=404)))
        error = await outcome(client.call_tool("record"))
        assert error.attempts == 1 + replays
        assert error.failure.kind is FailureKind.SESSION_LOST
        assert await server.arrived("record") == 1 + replays
        assert (await client.call_tool("echo", {"text": "x"})).text == "x"


@pytest.mark.requirement("S7", "P2")
@every_way
async def test_the_replays_of_a_dying_server_are_counted_exactly(way: Way):
    spec = {"max_retries": 2, "retry": "always", "breaker_threshold": 0}
    async with serving(way, spec) as (server, client):
        await server.doom("record", "after the run", times=None)
        error = await outcome(client.call_tool("record"))
        assert type(error) is CallOutcomeUnknown
        assert error.attempts == await server.executions("record") == 3


# -- one deadline -------------------------------------------------------------------------------


@pytest.mark.requirement("P1", "P3")
@every_way
async def test_one_deadline_covers_openings_replays_and_waits(way: Way):
    spec = {"max_retries": 1000, "retry": "always", "breaker_threshold": 0}
    async with serving(way, spec) as (server, client):
        await server.doom("record", "after the run", times=None)
        with Took() as took:
            error = await outcome(client.call_tool("record", timeout=0.4))
        assert 0.1 < took.seconds < 0.4 + 0.5
        assert isinstance(error, CallOutcomeUnknown)
        assert error.delivery is Delivery.UNKNOWN
        assert await server.executions("record") >= 1


@pytest.mark.requirement("P1")
@over_stdio
async def test_a_later_failure_to_start_does_not_hide_an_earlier_doubt(way: Way):
    spec = {"max_retries": 1, "retry": "always", "breaker_threshold": 0}
    async with serving(way, spec) as (server, client):
        await client.connect()
        step = "initialize" if way.era == "legacy" else "server/discover"
        await server.doom("record", "after the run")
        died = Behaviour(drop="after_body", exit_code=4)
        await server.server.script(Rule(method=step, do=died))
        error = await outcome(client.call_tool("record"))
        assert type(error) is CallOutcomeUnknown
        assert await server.executions("record") == 1


@pytest.mark.requirement("S16", "P1")
async def test_a_program_that_reads_nothing_is_given_up_in_time_and_ended():
    spec = {"timeouts": {"connect": 0.4, "close": 0.6}, "max_retries": 0}
    async with serving(Way("stdio", "legacy"), spec, ignore_stdin=True) as (server, client):
        with Took() as took:
            error = await outcome(client.call_tool("record"))
        assert isinstance(error, ServerUnavailable | CallNotSentInTime)
        assert error.delivery is Delivery.NOT_SENT
        assert took.seconds < PROMPT
        await client.aclose()
        async with asyncio.timeout(BOUND):
            while await server.server.processes():
                await asyncio.sleep(0.01)


# -- neither dead nor alive ---------------------------------------------------------------------

MUTE = """
import json, os, sys, time
def say(**message):
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n")
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "initialize":
        version = asked["params"]["protocolVersion"]
        about = {"capabilities": {}, "serverInfo": {"name": "mute", "version": "1"}}
        say(id=asked["id"], result={"protocolVersion": version, **about})
    elif asked["method"] == "tools/call" and asked["params"]["name"] == "mute":
        os.close(1)
        time.sleep(60)
    elif asked["method"] == "tools/call":
        say(id=asked["id"], result={"content": [{"type": "text", "text": str(os.getpid())}]})
"""


@pytest.mark.requirement("S14", "S16")
async def test_a_program_that_closes_its_output_and_lives_on_is_ended_and_replaced():
    spec: dict[str, Any] = {"command": sys.executable, "args": ["-I", "-S", "-c", MUTE]}
    timeouts = {"close": 0.6}
    async with closing(Client({**spec, "mode": "legacy", "timeouts": timeouts})) as client:
        first = int((await client.call_tool("pid")).text)
        error = await outcome(client.call_tool("mute"))
        assert type(error) is CallOutcomeUnknown
        assert error.exit_code is None
        result = await outcome(client.call_tool("pid"))
        assert isinstance(result, CallResult)
        assert int(result.text) != first
        await until(lambda: not is_alive(first), "the end of the first")


LOCKING = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


@pytest.mark.requirement("S14", "S16")
async def test_a_program_finds_its_lock_free_when_it_replaces_another(tmp_path: Path):
    args = ["-I", "-S", "-c", LOCKING + MUTE, str(tmp_path / "lock")]
    spec: dict[str, Any] = {"command": sys.executable, "args": args, "mode": "legacy"}
    async with closing(Client({**spec, "timeouts": {"close": 0.9}})) as client:
        assert type(await outcome(client.call_tool("mute"))) is CallOutcomeUnknown
        assert isinstance(await outcome(client.call_tool("pid")), CallResult)


@pytest.mark.requirement("L2", "S13")
async def test_over_sse_reports_and_answer_do_not_wait_for_the_post_to_be_accepted():
    heard: list[float] = []
    async with serving(SSE) as (server, client):
        await client.connect()
        await server.server.script(Rule(tool="steps", do=Behaviour(sse_linger=LONG)))

        def listen(progress: float, total: float | None, message: str | None) -> None:
            heard.append(progress)

        async with asyncio.timeout(BOUND):
            result = await client.call_tool("steps", {"count": 3}, on_progress=listen)
        assert result.text == "3 steps"
        assert heard == [1, 2, 3]
