"""Whose session a call uses, where the configuration says so: shared, each principal's, each
call's."""

import asyncio

import anyio
import pytest

from tests.runtime._identity import (
    BOUND,
    Era,
    busy,
    deleted,
    ended,
    every_era,
    failure_of,
    house,
    kinds,
    most_alive,
    named,
    nameless,
    runtime_for,
    seen,
    sessions_of,
    together,
    users,
)
from toolkeep import NotPermitted
from toolkeep.testing import Behaviour, Rule, ScriptedServer

SHARED, CALL = {"session": "shared"}, {"session": "call"}


@pytest.mark.requirement("H4")
@every_era
async def test_a_shared_session_serves_one_identity_and_refuses_the_next(era: Era):
    async with house(era, SHARED) as (server, runtime):
        await seen(runtime, named("ann", "old"))
        before = len(await server.requests())
        for other in (named("ben", "old"), nameless("old"), None):
            assert isinstance(await failure_of(seen(runtime, other)), NotPermitted)
        assert len(await server.requests()) == before
        assert (await seen(runtime, named("ann", "new")))["authorization"] == "new"
        assert len(users(await server.requests())) == (era == "legacy")
        assert runtime.servers[0].sessions == 0


@pytest.mark.requirement("H4")
async def test_only_the_first_of_many_shares_a_session_when_all_come_at_once():
    async with house("legacy", SHARED) as (server, runtime):
        async with asyncio.timeout(BOUND):
            calls = (seen(runtime, named(f"user-{number}")) for number in range(20))
            found = await asyncio.gather(*calls, return_exceptions=True)
        refused = [one for one in found if isinstance(one, NotPermitted)]
        assert (len(found), len(refused)) == (20, 19)
        assert len(await server.requests(tool="headers")) == 1


@pytest.mark.requirement("H4")
async def test_a_process_that_is_shared_refuses_a_second_identity():
    async with (
        ScriptedServer.stdio(era="legacy") as server,
        runtime_for(server, SHARED) as runtime,
    ):
        await runtime.call("kit.record", context=named("ann"))
        work = runtime.call("kit.record", context=named("ben"))
        assert isinstance(await failure_of(work), NotPermitted)
        assert (await server.executions("record"), await server.starts()) == (1, 1)


@pytest.mark.requirement("H4")
async def test_a_refusal_names_nobody_by_a_secret():
    async with house("legacy", SHARED) as (_, runtime):
        await seen(runtime, nameless("sekret-one"))
        error = await failure_of(seen(runtime, nameless("sekret-two")))
        assert isinstance(error, NotPermitted)
        assert "sekret" not in f"{error}{error!r}"


@pytest.mark.requirement("H4")
async def test_each_principal_has_its_own_when_the_configuration_says_so_and_when_it_does_not():
    for spec in ({}, {"session": "principal"}):
        async with house("legacy", spec) as (server, runtime):
            for who in ("ann", "ben", None, "ann"):
                await runtime.call("kit.record", context=named(who))
            first, second, third, fourth = (
                call.session_id for call in await server.requests(tool="record")
            )
            assert len({first, second, third}) == 3
            assert fourth == first


@pytest.mark.requirement("H4")
async def test_each_call_has_its_own_session_and_ends_it():
    async with house("legacy", CALL | {"max_sessions": 3}) as (server, runtime):
        who = [named("ann", x_who="ann"), named("ben", x_who="ben"), nameless(x_who="x"), None]
        await together(*(seen(runtime, context) for context in who * 4))
        calls = await server.requests(tool="headers")
        sessions = {call.session_id for call in calls}
        assert len(sessions) == len(calls) == 16
        for session in sessions:
            assert session is not None
            await deleted(server, session)
        records = await server.requests()
        assert most_alive(records) <= 3 + 1
        assert all(len(found) == 1 for found in users(records, "x-who").values())
        handshakes = [r.headers.get("x-who") for r in await server.requests("initialize")]
        assert {"ann", "ben", "x", None} == set(handshakes)
        assert runtime.servers[0].sessions == 0
    assert set(users(await server.requests())) == ended(await server.requests())


@pytest.mark.requirement("H4")
@every_era
async def test_a_session_for_one_call_neither_lists_nor_listens(era: Era):
    async with house(era, CALL) as (server, runtime):
        for _ in range(5):
            await seen(runtime, None)
        found = kinds(await server.requests())
        assert found.count("tools/call") == 5
        for method in ("tools/list", "prompts/list", "resources/list"):
            assert found.count(method) == 1
        assert found.count("GET") + found.count("subscriptions/listen") <= 1


@pytest.mark.requirement("H4")
async def test_a_call_that_is_given_up_ends_its_own_session_too():
    async with house("legacy", CALL) as (server, runtime):
        async with busy(server, runtime, named("ann", x_who="ann"), None):
            slow = {call.session_id for call in await server.requests(tool="slow")}
            assert not slow & ended(await server.requests())
        for session in slow:
            assert session is not None
            await deleted(server, session)


@pytest.mark.requirement("H4")
@pytest.mark.parametrize("policy", ["principal", "call"])
async def test_who_gives_up_while_the_tools_are_listed_spoils_it_for_nobody(policy: str):
    async with house("legacy", {"session": policy}) as (server, runtime):
        await server.script(Rule(method="tools/list", do=Behaviour(delay=0.2)))
        ann = named("ann", x_who="ann")
        first = asyncio.create_task(seen(runtime, ann))
        await server.requests("tools/list", at_least=2)
        second = asyncio.create_task(seen(runtime, ann))
        await anyio.wait_all_tasks_blocked()
        first.cancel()
        async with asyncio.timeout(BOUND):
            assert (await second)["x-who"] == "ann"
        assert len(await server.requests(tool="headers")) == 1


@pytest.mark.requirement("H4")
async def test_each_call_has_its_own_process_and_ends_it():
    async with (
        ScriptedServer.stdio(era="legacy") as server,
        runtime_for(server, CALL | {"max_sessions": 2}) as runtime,
    ):
        (own,) = await server.processes()
        await together(*(runtime.call("kit.record", context=named("ann")) for _ in range(4)))
        used = {call.session_id for call in await server.requests(tool="record")}
        assert len(used) == 4
        assert str(own) not in used
        async with asyncio.timeout(BOUND):
            while await server.processes() != [own]:
                await asyncio.sleep(0.01)


@pytest.mark.requirement("H4")
@pytest.mark.parametrize("policy", ["shared", "principal", "call"])
@every_era
async def test_what_is_asked_beside_calls_uses_the_same_sessions(era: Era, policy: str):
    async with house(era, {"session": policy}) as (server, runtime):
        ann = named("ann", "t", x_who="ann")
        await seen(runtime, ann)
        await runtime.request("kit", "ping" if era == "legacy" else "tools/list", context=ann)
        await runtime.read_resource("kit://notes", server="kit", context=ann)
        asked = [r for r in await server.requests() if r.headers.get("x-who") == "ann"]
        assert {"tools/call", "resources/read"} <= set(kinds(asked))
        if era == "legacy":
            found = sessions_of(asked, "authorization", "t")
            assert len(found) == {"shared": 1, "principal": 1, "call": 3}[policy]
            if policy == "shared":
                assert set(found) == set(users(await server.requests()))
