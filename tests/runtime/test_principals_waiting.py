"""Those for whom there is no room yet: they wait, go away, or are told why they were not served."""

import asyncio
from typing import Any

import anyio
import pytest

from tests.runtime._identity import (
    BOUND,
    busy,
    ended,
    failure_of,
    house,
    kinds,
    most_alive,
    named,
    seen,
    sessions_of,
)
from toolkeep import CallNotSentInTime, Runtime, ServerUnavailable
from toolkeep.errors import Delivery
from toolkeep.testing import Behaviour, Rule

ONE = {"max_sessions": 1}
SILENT = Rule(do=Behaviour(hang=True), method="tools/list")


def waiter(runtime: Runtime, who: str, **call: Any) -> "asyncio.Task[Any]":
    return asyncio.create_task(seen(runtime, named(who, x_who=who), **call))


async def answered(task: "asyncio.Task[Any]") -> Any:
    async with asyncio.timeout(BOUND):
        return await task


@pytest.mark.requirement("H4")
async def test_whoever_finds_no_room_is_served_when_a_call_ends():
    async with house("legacy", ONE) as (server, runtime):
        async with busy(server, runtime, named("ann")) as (call,):
            ben = waiter(runtime, "ben")
            await anyio.wait_all_tasks_blocked()
            call.cancel()
            assert (await answered(ben))["x-who"] == "ben"
        assert most_alive(await server.requests()) == 2


@pytest.mark.requirement("H4")
@pytest.mark.parametrize("known", [False, True], ids=["a new principal", "a known one"])
async def test_no_room_until_the_deadline_is_told_and_nothing_is_sent(known: bool):
    async with house("legacy", ONE) as (server, runtime):
        if known:
            await seen(runtime, named("ben"))
        async with busy(server, runtime, named("ann")):
            before = len(await server.requests())
            error = await failure_of(seen(runtime, named("ben"), timeout=0.1))
            assert isinstance(error, ServerUnavailable | CallNotSentInTime)
            assert error.delivery in (None, Delivery.NOT_SENT)
            assert (error.server, "max_sessions" in str(error)) == ("kit", True)
            assert len(await server.requests()) == before


@pytest.mark.requirement("H4")
@pytest.mark.parametrize("how", ["cancelled", "out of time"])
async def test_a_waiter_that_went_away_takes_nobodys_session(how: str):
    async with house("legacy", ONE) as (server, runtime):
        async with busy(server, runtime, named("ann", x_who="ann")) as (call,):
            if how == "cancelled":
                ben = waiter(runtime, "ben")
                await anyio.wait_all_tasks_blocked()
                ben.cancel()
                await asyncio.wait((ben,))
            else:
                await failure_of(seen(runtime, named("ben", x_who="ben"), timeout=0.05))
            call.cancel()
            await asyncio.wait((call,))
        for _ in range(3):
            await seen(runtime, named("ann", x_who="ann"))
        records = await server.requests()
        assert len(sessions_of(records, "x-who", "ann")) == 1
        assert "ben" not in {record.headers.get("x-who") for record in records}
        assert ended(records) == set()


@pytest.mark.requirement("H4")
@pytest.mark.parametrize("what", ["catalogue_for", "resolve"])
async def test_whoever_only_looked_and_went_away_takes_nobodys_session(what: str):
    async with house("legacy", ONE) as (server, runtime):
        async with busy(server, runtime, named("ann", x_who="ann")) as (call,):
            ben = named("ben", x_who="ben")
            looks = {
                "catalogue_for": lambda: runtime.catalogue_for(ben),
                "resolve": lambda: runtime.resolve(["kit.record"], ben),
            }
            look: asyncio.Task[Any] = asyncio.ensure_future(looks[what]())
            await anyio.wait_all_tasks_blocked()
            assert not look.done()
            look.cancel()
            await asyncio.wait((look,))
            call.cancel()
            await asyncio.wait((call,))
        for _ in range(3):
            await seen(runtime, named("ann", x_who="ann"))
        records = await server.requests()
        assert len(sessions_of(records, "x-who", "ann")) == 1
        assert "ben" not in {record.headers.get("x-who") for record in records}
        assert ended(records) == set()


@pytest.mark.requirement("H4")
async def test_a_session_granted_to_a_caller_who_leaves_in_that_moment_is_given_back():
    async with house("legacy", ONE) as (server, runtime):
        async with busy(server, runtime, named("ann")) as (call,):
            ben = waiter(runtime, "ben")
            await anyio.wait_all_tasks_blocked()
            (granted,) = runtime._resolver.servers["kit"].pool._waiting.values()
            granted.add_done_callback(lambda _: ben.cancel())  # before it could take what it got
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await answered(ben)
        assert (await seen(runtime, named("cyd", x_who="cyd"), timeout=5))["x-who"] == "cyd"


@pytest.mark.requirement("H4")
async def test_a_waiter_that_went_away_keeps_no_other_waiting():
    async with house("legacy", ONE) as (server, runtime):
        async with busy(server, runtime, named("ann")) as (call,):
            gone = [waiter(runtime, f"gone-{number}") for number in range(5)]
            await anyio.wait_all_tasks_blocked()
            cid = waiter(runtime, "cid")
            await anyio.wait_all_tasks_blocked()
            for task in gone:
                task.cancel()
            call.cancel()
            assert (await answered(cid))["x-who"] == "cid"
        assert {record.headers.get("x-who") for record in await server.requests()} == {None, "cid"}


@pytest.mark.requirement("H4")
async def test_one_of_two_waiters_of_a_principal_may_go_away():
    async with house("legacy", ONE) as (server, runtime):
        async with busy(server, runtime, named("ann")) as (call,):
            first, second = waiter(runtime, "ben"), waiter(runtime, "ben")
            await anyio.wait_all_tasks_blocked()
            first.cancel()
            call.cancel()
            assert (await answered(second))["x-who"] == "ben"
        assert len(sessions_of(await server.requests(), "x-who", "ben")) == 1


@pytest.mark.requirement("H4")
async def test_those_who_wait_are_served_in_the_order_of_coming():
    async with house("legacy", ONE) as (server, runtime):
        crowd = [f"user-{number}" for number in range(6)]
        async with busy(server, runtime, named("ann")) as (call,):
            tasks = []
            for who in crowd:
                tasks.append(waiter(runtime, who))
                await anyio.wait_all_tasks_blocked()
            call.cancel()
            await asyncio.gather(*map(answered, tasks))
        openings = [
            record.headers.get("x-who")
            for record in await server.requests("initialize")
            if record.headers.get("x-who")
        ]
        assert list(dict.fromkeys(openings)) == crowd


@pytest.mark.requirement("H4")
async def test_a_principal_with_a_session_does_not_queue_behind_those_without():
    async with (
        house("legacy", ONE) as (server, runtime),
        busy(server, runtime, named("ann", x_who="ann")) as (call,),
    ):
        ben = waiter(runtime, "ben")
        await anyio.wait_all_tasks_blocked()
        assert (await seen(runtime, named("ann", x_who="ann")))["x-who"] == "ann"
        assert not ben.done()
        call.cancel()
        await answered(ben)


@pytest.mark.requirement("H4")
async def test_a_server_that_refuses_to_end_a_session_does_not_keep_its_place_for_ever():
    async with house("legacy", ONE | {"timeouts": {"close": 0.2}}) as (server, runtime):
        await server.script(Rule(http="DELETE", do=Behaviour(hang=True), times=1))
        await seen(runtime, named("ann"))
        assert (await seen(runtime, named("ben", x_who="ben")))["x-who"] == "ben"
        await server.script(Rule(http="DELETE", do=Behaviour(status=500), times=1))
        assert (await seen(runtime, named("cid", x_who="cid")))["x-who"] == "cid"


async def test_a_session_that_cannot_be_opened_gives_its_place_back():
    async with house("legacy", ONE | {"max_retries": 0}) as (server, runtime):
        await server.script(Rule(method="initialize", do=Behaviour(status=500), times=1))
        await failure_of(seen(runtime, named("ann")))
        assert (await seen(runtime, named("ben", x_who="ben")))["x-who"] == "ben"
        assert (await seen(runtime, named("ann", x_who="ann")))["x-who"] == "ann"


@pytest.mark.requirement("H4")
@pytest.mark.parametrize("step", ["initialize", "notifications/initialized"])
async def test_a_session_that_nobody_waits_for_any_more_is_ended_at_the_server_too(step: str):
    """Given up in the middle of its handshake: the server has it, or is about to."""
    async with house("legacy", ONE) as (server, runtime):
        await server.script(Rule(method=step, do=Behaviour(delay=0.2), times=1))
        ann = waiter(runtime, "ann")
        await server.requests(step, at_least=2)
        ann.cancel()
        await asyncio.wait((ann,))
        assert (await seen(runtime, named("ben", x_who="ben")))["x-who"] == "ben"
        assert most_alive(await server.requests()) <= 2
    found = kinds(await server.requests())
    assert found.count("initialize") == found.count("DELETE") == 3


@pytest.mark.requirement("P3")
async def test_waiting_for_room_and_for_the_list_is_one_wait():
    """The deadline covers both: who has waited for long has less time for the other."""
    async with (
        house("legacy", ONE) as (server, runtime),
        busy(server, runtime, named("ann")) as (call,),
    ):
        await server.script(SILENT)
        began = asyncio.get_running_loop().time()
        ben = waiter(runtime, "ben", timeout=2.0)
        await asyncio.sleep(1.5)
        call.cancel()
        error = await failure_of(ben)
        assert isinstance(error, ServerUnavailable | CallNotSentInTime)
        assert asyncio.get_running_loop().time() - began < 3.3
