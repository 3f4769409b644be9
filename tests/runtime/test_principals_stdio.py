"""A program that several users call: each has a process of its own, within the bound."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.runtime._identity import Era, every_era, failure_of, named, runtime_for, together
from toolkeep import InvalidArguments, Runtime
from toolkeep.testing import ScriptedServer
from toolkeep.testing.scripted import ScriptedProgram

BOUND, CROWD, CALLS = 3, 8, 10


@asynccontextmanager
async def program(era: Era, **spec: object) -> AsyncIterator[tuple[ScriptedProgram, Runtime]]:
    async with ScriptedServer.stdio(era=era) as server, runtime_for(server, spec) as runtime:
        yield server, runtime


class Census:
    """Counts the processes of a server for as long as its block lasts."""

    def __init__(self, server: ScriptedProgram) -> None:
        self._server = server
        self.most = 0

    async def _count(self) -> None:
        while True:
            self.most = max(self.most, len(await self._server.processes()))
            await asyncio.sleep(0.005)

    async def __aenter__(self) -> "Census":
        self._task = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))


async def gone(server: ScriptedProgram, pids: set[int]) -> None:
    async with asyncio.timeout(10):
        while pids & set(await server.processes()):
            await asyncio.sleep(0.01)


@pytest.mark.requirement("H4")
@every_era
async def test_eight_users_share_three_processes_one_after_the_other(era: Era):
    async with program(era, max_sessions=BOUND) as (server, runtime):
        (own,) = await server.processes()

        async def user(number: int) -> None:
            who = f"user-{number}"
            calls = (
                runtime.call("kit.echo", {"text": f"{who}/{call}"}, context=named(who))
                for call in range(CALLS)
            )
            answers = await asyncio.gather(*calls)
            assert [answer.text for answer in answers] == [f"{who}/{n}" for n in range(CALLS)]

        async with Census(server) as census:
            await together(*(user(number) for number in range(CROWD)))
        used: dict[str | None, set[str]] = defaultdict(set)
        for call in await server.requests("tools/call"):
            used[call.session_id].add(call.body["params"]["arguments"]["text"].split("/")[0])
        assert all(len(who) == 1 for who in used.values())
        assert {who for found in used.values() for who in found} == {
            f"user-{number}" for number in range(CROWD)
        }
        assert BOUND <= census.most <= BOUND + 1
        kept = set(await server.processes())
        assert own in kept
        assert str(own) not in used
        assert len(kept) == runtime.servers[0].sessions + 1 <= BOUND + 1
    assert await server.processes() == []


@pytest.mark.requirement("H4")
async def test_the_process_used_longest_ago_ends_for_another():
    async with program("legacy", max_sessions=1) as (server, runtime):
        (own,) = await server.processes()
        await runtime.call("kit.record", context=named("ann"))
        (ann,) = set(await server.processes()) - {own}
        await runtime.call("kit.record", context=named("ben"))
        assert ann not in await server.processes()
        assert len(await server.processes()) == 2


async def test_a_principal_that_is_forgotten_leaves_no_process():
    async with program("modern") as (server, runtime):
        (own,) = await server.processes()
        await runtime.call("kit.record", context=named("ann"))
        (ann,) = set(await server.processes()) - {own}
        await runtime.forget("ann")
        await gone(server, {ann})
        await runtime.call("kit.record", context=named("ann"))
        assert len(await server.processes()) == 2


@pytest.mark.requirement("H4")
async def test_headers_of_a_task_tell_users_of_a_program_apart_although_they_are_not_sent():
    async with program("legacy") as (server, runtime):
        for token in ("one", "two", "one"):
            await runtime.call("kit.record", context=named(None, token))
        calls = await server.requests(tool="record")
        assert [call.headers for call in calls] == [{}, {}, {}]
        first, second, third = (call.session_id for call in calls)
        assert first == third != second


async def test_headers_of_a_call_to_a_program_are_a_mistake_and_start_nothing():
    async with program("legacy") as (server, runtime):
        work = runtime.call("kit.record", context=named("ann"), headers={"x-a": "1"})
        assert isinstance(await failure_of(work), InvalidArguments)
        assert await server.requests(tool="record") == []
        assert await server.starts() == 1
