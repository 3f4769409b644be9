"""Authorizers: asked for each principal by its name, for whatever is sent in its session."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.runtime._identity import (
    Era,
    busy,
    ended,
    every_era,
    failure_of,
    house,
    kinds,
    named,
    nameless,
    seen,
    sessions_of,
    together,
    until,
    users,
)
from toolkeep import AuthNeeded
from toolkeep.auth import AuthRequest, Challenge
from toolkeep.events import Health
from toolkeep.group import MemberState
from toolkeep.testing import Behaviour, Rule


class Tokens:
    """A token for each principal, with a number that a challenge raises."""

    def __init__(self, *, name: str = "authorization") -> None:
        self.name = name
        self.asked: list[tuple[str, str | None, str, str]] = []
        self.challenges: list[tuple[int, str]] = []
        self.number = 1

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        await asyncio.sleep(0)
        self.asked.append((request.server, request.principal, request.method, request.url))
        return {self.name: f"{request.principal}/{self.number}"}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        self.challenges.append((challenge.status, challenge.www_authenticate))
        self.number += 1
        return True


class OnlyForPrincipals:
    """Has a key for whoever has a name."""

    async def headers(self, request: AuthRequest) -> Mapping[str, str]:
        return {"authorization": "Bearer KEY"} if request.principal is not None else {}

    async def challenged(self, request: AuthRequest, challenge: Challenge) -> bool:
        return False


@pytest.mark.requirement("H3", "H4")
@every_era
async def test_an_authorizer_is_asked_with_the_principal_of_whatever_is_sent(era: Era):
    auth = Tokens()
    async with house(era, auth=auth) as (server, runtime):
        for who in ("ann", "ben"):
            await seen(runtime, named(who, x_who=who))
        await seen(runtime, None)
        await seen(runtime, nameless(x_who="nameless"))
    for record in await server.requests():
        who = record.headers.get("x-who")
        expected = who if who in ("ann", "ben") else None
        assert record.headers["authorization"] == f"{expected}/1"
    assert {(name, url) for name, _, _, url in auth.asked} == {("kit", server.url)}
    methods = {who: {m for _, p, m, _ in auth.asked if p == who} for who in ("ann", "ben", None)}
    if era == "legacy":
        assert methods["ann"] == methods["ben"] == {"POST", "DELETE"}
        assert methods[None] == {"POST", "GET", "DELETE"}
        assert all(len(found) == 1 for found in users(await server.requests(), "x-who").values())


@pytest.mark.requirement("H4")
@pytest.mark.parametrize("name", ["authorization", "Authorization", "AUTHORIZATION"])
@every_era
async def test_a_principals_own_token_stands_above_the_authorizers(era: Era, name: str):
    async with house(era, auth=Tokens(name=name)) as (server, runtime):
        assert (await seen(runtime, named("ann", "mine")))["authorization"] == "mine"
        assert (await seen(runtime, named("ben")))["authorization"] == "ben/1"
    told = [record.headers["authorization"] for record in await server.requests()]
    assert set(told) == {"None/1", "mine", "ben/1"}


@pytest.mark.requirement("H4")
@every_era
async def test_a_challenge_to_one_principals_call_is_answered_in_its_own_session(era: Era):
    auth = Tokens()
    async with house(era, auth=auth) as (server, runtime):
        for who in ("ann", "ben"):
            await seen(runtime, named(who, x_who=who))
        challenge = {"www-authenticate": "Bearer realm=kit"}
        refuse = Behaviour(status=401, headers=challenge)
        await server.script(Rule(tool="headers", do=refuse, times=1))
        found = await seen(runtime, named("ann", x_who="ann"))
        assert found["authorization"] == "ann/2"
        assert auth.challenges == [(401, "Bearer realm=kit")]
        calls = [r for r in await server.requests(tool="headers") if r.headers["x-who"] == "ann"]
        assert [r.headers["authorization"] for r in calls] == ["ann/1", "ann/1", "ann/2"]
        assert len({call.session_id for call in calls}) == 1
        assert (await seen(runtime, named("ben", x_who="ben")))["authorization"] == "ben/2"


@pytest.mark.requirement("H4")
async def test_a_challenge_to_a_principals_handshake_is_answered_too():
    auth = Tokens()
    async with house("legacy", auth=auth) as (server, runtime):
        await server.script(Rule(method="initialize", do=Behaviour(status=401), times=1))
        found = await seen(runtime, named("ann", x_who="ann"))
        assert found["authorization"] == "ann/2"
        told = [r for r in await server.requests("initialize") if "x-who" in r.headers]
        assert [r.headers["authorization"] for r in told] == ["ann/1", "ann/2"]


@pytest.mark.requirement("H4")
@every_era
async def test_one_principal_that_is_refused_disturbs_no_other(era: Era):
    async with house(era, server={"api_key": "KEY"}, auth=OnlyForPrincipals()) as (server, runtime):

        async def turn(number: int) -> str:
            if number % 2:
                error = await failure_of(seen(runtime, named(f"bad-{number}", "Bearer WRONG")))
                assert isinstance(error, AuthNeeded)
                assert error.status == 401
                return "refused"
            return (await seen(runtime, named(f"good-{number}")))["authorization"]

        found = await together(*(turn(number) for number in range(20)))
        assert found == ["Bearer KEY", "refused"] * 10
        assert {r.headers["authorization"] for r in await server.requests(tool="headers")} <= {
            "Bearer KEY",
            "Bearer WRONG",
        }


# -- a server that speaks to principals only ----------------------------------------------------


@pytest.mark.requirement("H4")
@every_era
async def test_principals_are_served_although_the_server_refuses_nobody_in_particular(era: Era):
    options = {"auth": OnlyForPrincipals(), "server": {"api_key": "KEY"}}
    async with house(era, **options) as (server, runtime):
        (status,) = runtime.servers
        assert status.state is MemberState.FAILED
        assert status.health is Health.NEEDS_AUTHORIZATION
        assert isinstance(status.error, AuthNeeded)
        for name in ("kit.echo", "echo"):
            result = await runtime.call(name, {"text": "x"}, context=named("ann"))
            assert result.text == "x"
        view = await runtime.catalogue_for(named("ann"))
        assert "kit.echo" in {tool.name for tool in view.tools}
        (tool,) = await runtime.resolve(["kit.echo"], named("ann"))
        assert (await tool.call({"text": "y"})).text == "y"
        assert len(runtime.catalogue) == 0
        assert isinstance(await failure_of(seen(runtime, None)), AuthNeeded)
        assert runtime.servers[0].health is Health.NEEDS_AUTHORIZATION
    records = await server.requests()
    assert set(users(records)) == ended(records)


@pytest.mark.requirement("H4")
async def test_principals_keep_their_sessions_while_the_servers_own_is_tried_again():
    options = {
        "auth": OnlyForPrincipals(),
        "server": {"api_key": "KEY"},
        "health_interval": 0.05,
    }
    async with (
        house("legacy", **options) as (server, runtime),
        busy(server, runtime, named("busy", x_who="busy")),
    ):
        await seen(runtime, named("ann", x_who="ann"))
        tries = kinds(await server.requests()).count("initialize")
        await server.requests("initialize", at_least=tries + 3)
        await seen(runtime, named("ann", x_who="ann"))
        await seen(runtime, named("busy", x_who="busy"))
        records = await server.requests()
        assert len(sessions_of(records, "x-who", "ann")) == 1
        assert len(sessions_of(records, "x-who", "busy")) == 1
        assert ended(records) == set()
    records = await server.requests()
    assert set(users(records)) == ended(records)


@pytest.mark.requirement("H4")
@pytest.mark.parametrize("how", ["remove", "aclose"])
async def test_sessions_of_principals_end_with_a_server_that_was_never_opened(how: str):
    options = {"auth": OnlyForPrincipals(), "server": {"api_key": "KEY"}, "backoff": None}
    async with house("legacy", **options) as (server, runtime):
        await seen(runtime, named("ann", x_who="ann"))
        await (runtime.remove("kit") if how == "remove" else runtime.aclose())
        (session,) = sessions_of(await server.requests(), "x-who", "ann")
        assert ended(await server.requests()) == {session}


@pytest.mark.requirement("H4")
async def test_the_servers_own_session_is_opened_once_that_is_allowed():
    class Later(OnlyForPrincipals):
        allowed = False

        async def headers(self, request: AuthRequest) -> Mapping[str, str]:
            who = request.principal or "x" * self.allowed or None
            return await super().headers(replace(request, principal=who))

    auth = Later()
    async with house("legacy", server={"api_key": "KEY"}, auth=auth, health_interval=0.05) as (
        server,
        runtime,
    ):
        await seen(runtime, named("ann", x_who="ann"))
        auth.allowed = True
        await until(lambda: runtime.servers[0].health is Health.HEALTHY, "healthy")
        assert (await runtime.call("kit.echo", {"text": "x"})).text == "x"
        await seen(runtime, named("ann", x_who="ann"))
        assert len(sessions_of(await server.requests(), "x-who", "ann")) == 1
