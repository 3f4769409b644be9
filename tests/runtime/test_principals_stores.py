"""What is kept beyond a session, in stores of the user's: answers and sessions, by principal."""

from typing import Any

import pytest
from mcp.client.caching import InMemoryResponseCacheStore

from tests.runtime._identity import (
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
from toolkeep.stores import MemorySessionStore
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
@pytest.mark.parametrize("store", [None, InMemoryResponseCacheStore()], ids=["own", "given"])
async def test_an_answer_that_was_kept_for_one_is_given_to_no_other(
    store: InMemoryResponseCacheStore | None,
):
    async with house("modern", cache=store) as (server, runtime):
        await server.set_cache(60_000, "private")
        assert await reads_of(server, runtime) == len(PEOPLE)


@pytest.mark.requirement("H4", "T14")
async def test_an_answer_of_one_process_is_given_to_nobody_who_has_another():
    async with (
        ScriptedServer.stdio(era="modern") as server,
        runtime_for(server, cache=InMemoryResponseCacheStore()) as runtime,
    ):
        await server.set_cache(60_000, "private")
        assert await reads_of(server, runtime) == len(PEOPLE)
        asked = await server.requests("resources/read")
        assert len({record.session_id for record in asked}) == len(PEOPLE)


@pytest.mark.requirement("H4")
async def test_a_stored_session_is_taken_up_by_its_own_principal_alone():
    store = MemorySessionStore()
    async with ScriptedServer.local(era="legacy") as server:
        for token in ("old", "new"):
            async with runtime_for(server, store=store) as runtime:
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
    store = MemorySessionStore()
    async with ScriptedServer.local(era=era) as server:
        for _ in range(2):
            async with runtime_for(server, store=store) as runtime:
                await seen(runtime, named("ann", x_who="ann"))
                await runtime.forget("ann")
        found = sessions_of(await server.requests(), "x-who", "ann")
        assert len(found) == (2 if era == "legacy" else 0)
        assert set(found) <= ended(await server.requests())
