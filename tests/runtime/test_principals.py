"""A crowd of users on one server: whatever the pool does, nobody speaks in another's session."""

import asyncio
from collections import Counter

import pytest

from tests.runtime._identity import (
    Era,
    busy,
    deleted,
    ended,
    every_era,
    house,
    kinds,
    most_alive,
    named,
    nameless,
    seen,
    sessions_of,
    together,
    users,
)
from toolkeep import CallContext, Runtime

CROWD, WAVES, WAVE = 200, 2, 5


async def user(runtime: Runtime, number: int) -> None:
    """Ten calls in two waves, each with a header of its own beside the user's."""
    context = named(f"user-{number}", f"Bearer {number}", x_user=str(number))
    for wave in range(WAVES):
        mine = [f"{number}-{wave}-{call}" for call in range(WAVE)]
        answers = await asyncio.gather(
            *(
                runtime.call("kit.echo", {"text": one}, context=context, headers={"x-call": one})
                for one in mine
            )
        )
        assert [answer.text for answer in answers] == mine


@pytest.mark.requirement("H3", "H4")
@pytest.mark.parametrize("bound", [32, 256])
@every_era
async def test_two_hundred_users_at_once_never_meet(era: Era, bound: int):
    async with house(era, {"max_sessions": bound}, health_interval=None) as (server, runtime):
        await together(*(user(runtime, number) for number in range(CROWD)))
        records = await server.requests()
        calls = [record for record in records if record.rpc_method == "tools/call"]
        assert len(calls) == CROWD * WAVES * WAVE
        for call in calls:
            mine = call.body["params"]["arguments"]["text"]
            number = mine.split("-")[0]
            told = {name: call.headers[name] for name in ("authorization", "x-user", "x-call")}
            assert told == {"authorization": f"Bearer {number}", "x-user": number, "x-call": mine}
        others = [record for record in records if record.rpc_method != "tools/call"]
        assert not any("x-call" in record.headers for record in others)
        (status,) = runtime.servers
        assert 0 < status.sessions <= bound
        if era == "legacy":
            assert all(len(found) == 1 for found in users(records).values())
            assert most_alive(records) <= bound + 1
            assert len(users(records)) - len(ended(records)) == status.sessions + 1
        else:
            assert users(records) == {}
            assert Counter(kinds(records))["server/discover"] == 1
    if era == "legacy":
        records = await server.requests()
        assert set(users(records)) == ended(records)
        assert users(r for r in records if r.http_method == "DELETE") == users(records)


@pytest.mark.requirement("H4")
async def test_a_principals_calls_share_one_session_and_nobody_elses():
    async with house("legacy") as (server, runtime):
        await together(*(seen(runtime, named(who, x_who=who)) for who in "abab" for _ in range(5)))
        await runtime.call("kit.record")
        records = await server.requests()
        own = {r.session_id for r in records if r.tool == "record"}
        ann, ben = (sessions_of(records, "x-who", who) for who in "ab")
        assert (len(ann), len(ben), len(own)) == (1, 1, 1)
        assert len({*ann, *ben, *own}) == 3
        assert runtime.servers[0].sessions == 2


@pytest.mark.requirement("H4")
async def test_the_session_used_longest_ago_makes_room_and_is_deleted_at_the_server():
    async with house("legacy", {"max_sessions": 2}) as (server, runtime):
        for who in ("ann", "ben", "ann", "cid"):
            await seen(runtime, named(who, x_who=who))
        records = await server.requests()
        ((ann,), (ben,), (cid,)) = (sessions_of(records, "x-who", w) for w in ("ann", "ben", "cid"))
        assert ended(records) == {ben}
        await seen(runtime, named("ben", x_who="ben"))
        assert ended(await server.requests()) == {ben, ann}
        assert cid not in ended(await server.requests())


@pytest.mark.requirement("H4")
async def test_a_session_with_a_call_under_way_is_not_taken_from_it():
    async with (
        house("legacy", {"max_sessions": 2}) as (server, runtime),
        busy(server, runtime, named("ann", x_who="ann")),
    ):
        for who in ("ben", "cid", "dan"):
            await seen(runtime, named(who, x_who=who))
        (ann,) = sessions_of(await server.requests(), "x-who", "ann")
        assert ann not in ended(await server.requests())
        assert most_alive(await server.requests()) == 3


@pytest.mark.requirement("H4")
@pytest.mark.parametrize("in_use", [False, True])
async def test_a_principal_that_is_forgotten_ends_with_its_last_call(in_use: bool):
    ann = named("ann", x_who="ann")
    async with house("legacy") as (server, runtime):
        await seen(runtime, ann)
        await seen(runtime, named("ben", x_who="ben"))
        (first,) = sessions_of(await server.requests(), "x-who", "ann")
        if in_use:
            async with busy(server, runtime, ann):
                await runtime.forget("ann")
                await seen(runtime, ann)
                assert first not in ended(await server.requests())
        else:
            await runtime.forget("ann")
            await deleted(server, first)
            await seen(runtime, ann)
        await deleted(server, first)
        _, second = sessions_of(await server.requests(), "x-who", "ann")
        assert ended(await server.requests()) == {first}
        assert second != first
        assert len(sessions_of(await server.requests(), "x-who", "ben")) == 1


async def test_forgetting_somebody_unknown_is_no_mistake():
    async with house("legacy") as (server, runtime):
        await runtime.forget("nobody")
        assert ended(await server.requests()) == set()


@pytest.mark.requirement("H4")
async def test_nobodys_calls_use_the_servers_own_session():
    async with house("legacy") as (server, runtime):
        contexts = [None, CallContext(), CallContext(user_id="u", metadata={"x": 1}), nameless()]
        await together(*(seen(runtime, context) for context in contexts * 3))
        assert len(users(await server.requests())) == 1
        assert runtime.servers[0].sessions == 0
