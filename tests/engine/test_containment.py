"""One network fault fails one call, and nothing else."""

import asyncio

import pytest

from tests.engine.helpers_tasks import (
    BOUND,
    HANDSHAKE,
    Encoding,
    Era,
    every_encoding,
    every_era,
    outcome,
    through_proxy,
    until,
)
from toolkeep import CallOutcomeUnknown, CallTimedOut
from toolkeep.errors import Delivery, FailureKind
from toolkeep.events import Changed
from toolkeep.testing import Behaviour, FaultProxy, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("S14")

FAULTS = {
    "lost on the way": None,
    "reset after the run": Behaviour(drop="after_run", reset=True),
    "closed after the run": Behaviour(drop="after_run"),
    "cut in the answer": Behaviour(drop="mid_answer", reset=True),
}


async def set_trap(fault: str, server: ScriptedServer, proxy: FaultProxy) -> None:
    """Break the socket of the one call to `record`."""
    behaviour = FAULTS[fault]
    if behaviour is None:
        proxy.break_one(b'"the victim"')
    else:
        await server.script(Rule(do=behaviour, tool="record", times=1))


@pytest.mark.parametrize("fault", FAULTS)
@every_encoding
@every_era
async def test_of_fifty_calls_in_flight_one_broken_socket_fails_one(
    era: Era, encoding: Encoding, fault: str
):
    before, me = asyncio.all_tasks(), asyncio.current_task()
    assert me is not None
    async with through_proxy(era, encoding) as (server, proxy, client):
        await client.connect()
        session = client.session_id
        await set_trap(fault, server, proxy)
        slow = {"seconds": 60}
        others = [asyncio.create_task(client.call_tool("slow", slow)) for _ in range(49)]
        await server.requests(tool="slow", at_least=49)

        error = await outcome(client.call_tool("record", {"key": "the victim"}))

        assert not any(task.done() for task in others)
        assert type(error) is CallOutcomeUnknown
        assert (error.delivery, error.attempts) == (Delivery.UNKNOWN, 1)
        assert error.failure is not None
        assert error.failure.kind is FailureKind.BROKEN
        assert await server.executions("the victim") == (0 if fault == "lost on the way" else 1)
        await server.skip_delays()
        async with asyncio.timeout(BOUND):
            results = await asyncio.gather(*others)
        assert [result.text for result in results] == ["done"] * 49
        assert me.cancelling() == 0

        assert (await client.call_tool("echo", {"text": "still here"})).text == "still here"
        assert client.session_id == session
        assert len(await server.requests(HANDSHAKE[era])) == 1
        assert await server.cancelled() == []
    await until(lambda: asyncio.all_tasks() <= before, "the end of all tasks")


@every_era
async def test_when_every_socket_breaks_each_call_fails_by_itself_and_the_client_goes_on(era: Era):
    async with through_proxy(era, breaker_threshold=0) as (server, proxy, client):
        await client.connect()
        calls = [asyncio.create_task(client.call_tool("slow", {"seconds": 60})) for _ in range(20)]
        await server.requests(tool="slow", at_least=20)
        proxy.kill_connections()

        errors = [await outcome(call) for call in calls]

        assert {type(error) for error in errors} == {CallOutcomeUnknown}
        assert len({id(error) for error in errors}) == 20
        assert (await client.call_tool("echo", {"text": "x"})).text == "x"
        assert len(await server.requests(HANDSHAKE[era])) == 1
        assert len(await server.requests(tool="slow")) == 20


@every_era
async def test_a_caller_in_a_task_group_may_catch_the_fault_and_go_on(era: Era):
    async with through_proxy(era) as (_, proxy, client):
        await client.connect()
        proxy.break_one(b'"the victim"')
        texts: list[str] = []

        async def careful() -> None:
            with pytest.raises(CallOutcomeUnknown):
                await client.call_tool("record", {"key": "the victim"})
            await asyncio.sleep(0)
            texts.append((await client.call_tool("echo", {"text": "after"})).text)

        async def sibling() -> None:
            texts.append((await client.call_tool("slow", {"seconds": 0.1})).text)

        async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
            group.create_task(careful())
            group.create_task(sibling())
        assert sorted(texts) == ["after", "done"]


@every_encoding
@every_era
async def test_a_call_that_runs_out_of_time_leaves_its_siblings_alone(era: Era, encoding: Encoding):
    async with through_proxy(era, encoding) as (server, _, client):
        await client.connect()
        sibling = asyncio.create_task(client.call_tool("slow", {"seconds": 60}))
        await server.requests(tool="slow", at_least=1)
        error = await outcome(client.call_tool("slow", {"seconds": 60}, timeout=0.1))
        assert type(error) is CallTimedOut
        assert not sibling.done()
        await server.skip_delays()
        assert (await sibling).text == "done"
        assert len(await server.requests(HANDSHAKE[era])) == 1


async def test_a_broken_call_does_not_end_what_observers_listen_to():
    async with through_proxy("legacy") as (server, proxy, client):
        heard: list[Changed] = []
        client.observe(lambda event: heard.append(event) if isinstance(event, Changed) else None)
        await client.connect()
        proxy.break_one(b'"the victim"')
        with pytest.raises(CallOutcomeUnknown):
            await client.call_tool("record", {"key": "the victim"})
        assert await server.notify("notifications/tools/list_changed") == 1
        await until(lambda: bool(heard), "the notice")
        assert [record.http_method for record in await server.requests()].count("GET") == 1
