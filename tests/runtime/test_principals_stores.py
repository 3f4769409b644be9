"""What is kept beyond a session, in stores of the user's: answers and sessions, by principal."""

import asyncio
from typing import Any

import pytest

from tests.runtime._identity import (
    BOUND,
    Era,
    ended,
    every_era,
    house,
    kinds,
    named,
    nameless,
    runtime_for,
    seen,
    sessions_of,
)
from toolkeep import CallContext, Runtime
from toolkeep.auth import StaticKey
from toolkeep.state import MemoryStore
from toolkeep.testing import ScriptedServer

NOTES = "kit://notes"
PEOPLE = [named("ann"), named("ben"), nameless("one"), nameless("two"), CallContext()]


async def read(runtime: Runtime, context: CallContext) -> Any:
    return await runtime.read_resource(NOTES, server="kit", context=context)


async def reads_of(server: ScriptedServer, runtime: Runtime) -> int:
    for context in PEOPLE:
        await read(runtime, context)
    return kinds(await server.requests()).count("resources/read")


@pytest.mark.requirement("H4", "T14")
@pytest.mark.parametrize("state", [None, MemoryStore()], ids=["own", "given"])
async def test_an_answer_that_was_kept_for_one_is_given_to_no_other(state: MemoryStore | None):
    async with house("modern", state=state) as (server, runtime):
        await server.set_cache(60_000, "private")
        assert await reads_of(server, runtime) == len(PEOPLE)


@pytest.mark.requirement("H4", "T14")
async def test_an_answer_of_one_process_is_given_to_nobody_who_has_another():
    async with (
        ScriptedServer.stdio(era="modern") as server,
        runtime_for(server, state=MemoryStore()) as runtime,
    ):
        await server.set_cache(60_000, "private")
        assert await reads_of(server, runtime) == len(PEOPLE)
        asked = await server.requests("resources/read")
        assert len({record.session_id for record in asked}) == len(PEOPLE)


@pytest.mark.requirement("H4")
async def test_a_stored_session_is_taken_up_by_its_own_principal_alone():
    store = MemoryStore()
    async with ScriptedServer.local(era="legacy") as server:
        for token in ("old", "new"):
            async with runtime_for(server, state=store) as runtime:
                for who in ("ann", "ben"):
                    await seen(runtime, named(who, token, x_who=who))
                await seen(runtime, nameless("no name", x_who="nobody"))
        records = await server.requests()
        ((ann,), (ben,)) = (sessions_of(records, "x-who", who) for who in ("ann", "ben"))
        nobody = sessions_of(records, "x-who", "nobody")
        assert len({ann, ben, *nobody}) == 4
        assert ended(records) == set(nobody)


@pytest.mark.requirement("H4")
@every_era
async def test_a_principal_that_is_forgotten_is_not_taken_up_again(era: Era):
    store = MemoryStore()
    async with ScriptedServer.local(era=era) as server:
        for _ in range(2):
            async with runtime_for(server, state=store) as runtime:
                await seen(runtime, named("ann", x_who="ann"))
                await runtime.forget("ann")
        found = sessions_of(await server.requests(), "x-who", "ann")
        assert len(found) == (2 if era == "legacy" else 0)
        assert set(found) <= ended(await server.requests())


@pytest.mark.requirement("H4")
async def test_a_principal_that_is_forgotten_during_a_call_is_not_taken_up_again():
    store = MemoryStore()
    async with ScriptedServer.local(era="legacy") as server:
        async with runtime_for(server, state=store) as runtime:
            context = named("ann", x_who="ann")
            call = asyncio.create_task(runtime.call("kit.slow", {"seconds": 60}, context=context))
            await server.requests("tools/call", "slow", at_least=1)
            await runtime.forget("ann")
            await server.skip_delays()
            assert (await asyncio.wait_for(call, BOUND)).success
        async with runtime_for(server, state=store) as runtime:
            await seen(runtime, context)
        records = await server.requests()
        (first, second) = sessions_of(records, "x-who", "ann")
        assert first in ended(records)
        assert second not in ended(records)


@pytest.mark.requirement("H4", "S11")
async def test_sessions_with_the_authorizer_s_own_credentials_are_stored_for_whom_the_user_names():
    store = MemoryStore()
    async with ScriptedServer.local(era="legacy") as server:

        async def session(owner: str | None, token: str) -> str | None:
            auth = StaticKey(token)
            async with runtime_for(
                server, state=store, auth=auth, session_owner=owner, terminate_on_close=False
            ) as runtime:
                await seen(runtime, None)
                await seen(runtime, nameless(x_who="nobody"))
            return (await server.requests("tools/call"))[-2].session_id

        robot = await session("robot", "old")
        assert await session("robot", "renewed") == robot
        others = [await session(owner, "old") for owner in ("another", None, None)]
        assert len({robot, *others}) == 4
        found = sessions_of(await server.requests(), "x-who", "nobody")
        assert len(found) == 5
        assert not {robot, *others} & {*found}


@pytest.mark.requirement("H4")
@pytest.mark.parametrize("policy", ["shared", "call"])
async def test_a_session_that_is_shared_or_for_one_call_is_not_stored(policy: str):
    async with ScriptedServer.local(era="legacy") as server:
        async with runtime_for(server, {"session": policy}, state=MemoryStore()) as runtime:
            await seen(runtime, named("ann", x_who="ann"))
        records = await server.requests()
        found = sessions_of(records, "x-who", "ann")
        assert found
        assert set(found) <= ended(records)
