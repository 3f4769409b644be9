"""Tokens that rotate, callers without a name, and headers that say nothing about who calls."""

import asyncio
from collections.abc import Mapping

import pytest

from tests.runtime._identity import (
    BOUND,
    Era,
    busy,
    ended,
    every_era,
    house,
    kinds,
    named,
    nameless,
    seen,
    sessions_of,
    together,
    users,
)
from toolkeep import CallContext
from toolkeep.testing import Behaviour, Rule

# -- a named principal --------------------------------------------------------------------------


@pytest.mark.requirement("H4")
@pytest.mark.parametrize("level", ["task", "call", "provider"])
async def test_a_rotated_token_keeps_the_session_and_the_newest_one_ends_it(level: str):
    token = "one"

    def provider(context: CallContext, server: str) -> Mapping[str, str] | None:
        return {"authorization": token} if level == "provider" and context.principal else None

    async with house("legacy", header_provider=provider) as (server, runtime):
        for token in ("one", "two", "three"):
            context = named("ann", token if level == "task" else None)
            call = {"authorization": token} if level == "call" else None
            assert (await seen(runtime, context, headers=call))["authorization"] == token
        assert kinds(await server.requests()).count("initialize") == 2
    told = [r for r in await server.requests() if r.headers.get("authorization")]
    (session,) = {r.session_id for r in told if r.session_id}
    assert [(r.http_method, r.session_id) for r in told if not r.session_id] == [("POST", None)]
    (farewell,) = [r for r in told if r.http_method == "DELETE"]
    assert (farewell.session_id, farewell.headers["authorization"]) == (session, "three")


@pytest.mark.requirement("H4")
async def test_the_next_handshake_is_made_with_the_newest_token():
    async with house("legacy") as (server, runtime):
        await seen(runtime, named("ann", "old", x_tenant="t"))
        await seen(runtime, named("ann", "new", x_tenant="t"))
        await server.forget_sessions()
        await seen(runtime, named("ann", "new", x_tenant="t"))
        told = [r for r in await server.requests("initialize") if "x-tenant" in r.headers]
        assert [r.headers["authorization"] for r in told] == ["old", "new"]
        initialized = await server.requests("notifications/initialized")
        assert [r.headers.get("authorization") for r in initialized][1:] == ["old", "new"]


@pytest.mark.requirement("H4")
async def test_a_stream_is_taken_up_again_with_the_headers_of_its_own_call():
    async with house("legacy") as (server, runtime):
        cut = Behaviour(
            encoding="sse", event_ids=True, prime=True, retry_ms=200, cut_stream_after_events=0
        )
        await server.script(Rule(tool="record", do=cut, times=1))
        mine = asyncio.create_task(runtime.call("kit.record", context=named("ann", "mine")))
        await server.requests(tool="record", at_least=1)
        await seen(runtime, named("ann", "other"))
        async with asyncio.timeout(BOUND):
            await mine
        resumed = [r for r in await server.requests() if "last-event-id" in r.headers]
        assert resumed
        assert {r.headers["authorization"] for r in resumed} == {"mine"}


@pytest.mark.requirement("H3")
@every_era
async def test_calls_of_one_principal_never_carry_each_others_headers(era: Era):
    """Those that wait in a queue go out after others have said something else."""
    async with house(era, {"max_in_flight": 2}) as (server, runtime):
        contexts = {
            "a": named("ann", "token-a", x_a="1"),
            "b": named("ann", "token-b", x_b="2"),
            "c": named("ann"),
        }
        mine = {name: set(context.headers.items()) for name, context in contexts.items()}
        names = [name for name in contexts for _ in range(20)]
        found = await together(*(seen(runtime, contexts[name]) for name in names))
        for name, headers in zip(names, found, strict=True):
            own = {(k, v) for k, v in headers.items() if k in ("authorization", "x-a", "x-b")}
            assert own == mine[name]
        if era == "legacy":
            calls = await server.requests("tools/call")
            assert len({call.session_id for call in calls}) == 1


@pytest.mark.requirement("H3")
async def test_the_cancellation_of_a_call_carries_its_own_token():
    async with house("legacy") as (server, runtime):
        async with busy(server, runtime, named("ann", "mine")):
            await seen(runtime, named("ann", "newer"))
        told = await server.requests("notifications/cancelled", at_least=1)
        assert [r.headers["authorization"] for r in told] == ["mine"]


# -- without a name -----------------------------------------------------------------------------


@pytest.mark.requirement("H4")
@pytest.mark.parametrize("level", ["task", "call"])
async def test_callers_without_a_name_are_told_apart_by_their_headers(level: str):
    async with house("legacy") as (server, runtime):
        for token in ("one", "two", "one"):
            if level == "task":
                await seen(runtime, nameless(token))
            else:
                await seen(runtime, None, headers={"Authorization": token})
        records = await server.requests()
        assert [len(sessions_of(records, "authorization", t)) for t in ("one", "two")] == [1, 1]
        assert all(len(found) == 1 for found in users(records).values())
    records = await server.requests()
    assert set(users(records)) == ended(records)


@pytest.mark.requirement("H4")
async def test_the_same_headers_are_the_same_caller_wherever_they_stand():
    async with house("legacy") as (server, runtime):
        await seen(runtime, nameless("t", x_user="u"))
        await seen(runtime, nameless("t"), headers={"X-User": "u"})
        await seen(runtime, nameless("other", x_user="u"), headers={"authorization": "t"})
        assert len(sessions_of(await server.requests(), "authorization", "t")) == 1
        assert runtime.servers[0].sessions == 1


@pytest.mark.requirement("H4")
async def test_a_name_and_the_same_headers_without_one_are_two_callers():
    async with house("legacy") as (server, runtime):
        await seen(runtime, named("ann", "t"))
        await seen(runtime, nameless("t"))
        assert len(sessions_of(await server.requests(), "authorization", "t")) == 2


@pytest.mark.requirement("H4")
@pytest.mark.parametrize("who", [None, "ann"], ids=["nobody", "a principal"])
async def test_neutral_headers_split_no_session(who: str | None):
    async with house("legacy", {"non_identity_headers": ["X-Step"]}) as (server, runtime):
        for step in "abc":
            found = await seen(
                runtime, named(who, x_step=step, traceparent=f"p-{step}"), headers={"b3": step}
            )
            told = {name: found[name] for name in ("x-step", "traceparent", "b3")}
            assert told == {"x-step": step, "traceparent": f"p-{step}", "b3": step}
        calls = await server.requests("tools/call")
        assert len({call.session_id for call in calls}) == 1
        assert runtime.servers[0].sessions == (who is not None)
        others = [r for r in await server.requests() if r.rpc_method != "tools/call"]
        assert not {"x-step", "traceparent", "b3"} & {name for r in others for name in r.headers}


@pytest.mark.requirement("H5")
@every_era
async def test_a_servers_key_is_sent_for_everybody_and_a_principals_own_token_instead_of_it(
    era: Era,
):
    health = "ping" if era == "legacy" else "server/discover"
    async with house(era, {"api_key": "KEY"}, health_interval=0.05) as (server, runtime):
        asked = kinds(await server.requests()).count(health)
        await seen(runtime, named("ann", x_who="ann"))
        await seen(runtime, None)
        await seen(runtime, named("ben", "Bearer mine", x_who="ben"))
        await server.requests(health, at_least=asked + 1)
    for record in await server.requests():
        mine = "Bearer mine" if record.headers.get("x-who") == "ben" else "Bearer KEY"
        assert record.headers["authorization"] == mine
    who = [record.headers.get("x-who") for record in await server.requests()]
    assert {"ann", "ben", None} == set(who)


@pytest.mark.requirement("H3")
async def test_a_replay_after_a_lost_session_carries_the_calls_own_headers():
    async with house("legacy") as (server, runtime):
        who = [named(name, f"token-{name}", x_call="1") for name in "abc"]
        await together(*(seen(runtime, context) for context in who))
        await server.forget_sessions()
        found = await together(*(seen(runtime, context) for context in who * 5))
        tokens = [headers["authorization"] for headers in found]
        assert tokens == ["token-a", "token-b", "token-c"] * 5
        records = await server.requests()
        assert all(len(tokens) == 1 for tokens in users(records).values())
        assert len(sessions_of(records, "authorization", "token-a")) == 2


async def test_a_call_that_is_given_up_while_its_session_opens_leaves_it_to_the_next():
    async with house("legacy", server={"initialize_delay": 0.3}) as (server, runtime):
        first = asyncio.create_task(seen(runtime, named("ann", "t")))
        await server.requests("initialize", at_least=2)
        second = asyncio.create_task(seen(runtime, named("ann", "t")))
        first.cancel()
        async with asyncio.timeout(BOUND):
            assert (await second)["authorization"] == "t"
        assert len(sessions_of(await server.requests(), "authorization", "t")) == 1
