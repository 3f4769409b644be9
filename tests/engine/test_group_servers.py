"""Groups of real clients of real servers: some well, some down, some odd."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

import toolkeep._transport.streamable_http  # noqa: F401 - no server's time is to be spent on importing the SDK
from tests.engine.helpers_group import BOUND, QUICK, Heard
from tests.engine.helpers_tasks import HANDSHAKE, Era, Took, every_era
from toolkeep import AuthNeeded, Client, ServerUnavailable, ToolkeepError
from toolkeep.events import Health, HealthChanged, ServerAdded
from toolkeep.group import ServerGroup
from toolkeep.testing import Behaviour, FaultProxy, Rule, ScriptedServer

DOWN, UNAUTHORIZED, GARBLED, HANGING, PROGRAM = (2, 9, 17), 5, 11, 14, 19
ILL = sorted((*DOWN, UNAUTHORIZED, GARBLED, HANGING))
PATIENCE = 3.0
"""Seconds that the twenty get to connect on a busy machine."""


class Town:
    """Twenty servers, three of them behind a proxy that refuses."""

    def __init__(self) -> None:
        self.clients: list[Client] = []
        self.proxies: list[FaultProxy] = []

    @asynccontextmanager
    async def built(self) -> AsyncGenerator[ServerGroup[Client]]:
        async with AsyncExitStack() as stack:
            for number in range(20):
                spec = await self._build(number, stack)
                self.clients.append(Client({"name": f"s{number:02}", **spec}))
            yield ServerGroup(self.clients, connect_timeout=PATIENCE, backoff=QUICK)

    async def _build(self, number: int, stack: AsyncExitStack) -> dict[str, Any]:
        if number == PROGRAM:
            return (await stack.enter_async_context(ScriptedServer.stdio())).spec
        key = "secret" if number == UNAUTHORIZED else None
        server = await stack.enter_async_context(ScriptedServer.local(api_key=key))
        if number == GARBLED:
            garbage = Behaviour(body="<p>welcome</p>", content_type="text/html")
            await server.script(Rule(do=garbage))
        if number == HANGING:
            await server.script(Rule(do=Behaviour(hang=True)))
        if number not in DOWN:
            return server.spec
        proxy = await stack.enter_async_context(FaultProxy.to("127.0.0.1", server.port))
        proxy.refuse()
        self.proxies.append(proxy)
        return {"url": proxy.url()}


@pytest.mark.requirement("G1", "G2", "G4", "G7")
async def test_twenty_servers_of_which_six_are_ill_open_in_time_and_the_three_join_when_they_can():
    town = Town()
    async with town.built() as group:
        heard = Heard(group)
        with Took() as took:
            await group.connect_all()
        try:
            assert took.seconds < PATIENCE + 1
            assert group.summary() == "14/20 servers healthy"
            ill = [town.clients[number] for number in ILL]
            well = [client for client in town.clients if client not in ill]
            assert group.configured == town.clients
            assert group.connected == group.active == well
            assert group.failed == list(group.errors) == ill
            check_reasons(group)
            await check_joining(town, group, heard)
        finally:
            await group.cleanup_all()
    assert not any(client.is_initialized for client in town.clients)


def check_reasons(group: ServerGroup[Client]) -> None:
    reasons = {client.name: error for client, error in group.errors.items()}
    assert all(name in str(error) for name, error in reasons.items())
    assert isinstance(reasons["s05"], AuthNeeded)
    assert isinstance(reasons["s11"], ToolkeepError)
    for number in (*DOWN, HANGING):
        assert isinstance(reasons[f"s{number:02}"], ServerUnavailable)
    unwell = {number: group.status(f"s{number:02}").health for number in ILL}
    assert unwell.pop(UNAUTHORIZED) is Health.NEEDS_AUTHORIZATION
    assert set(unwell.values()) == {Health.DOWN}


async def check_joining(town: Town, group: ServerGroup[Client], heard: Heard) -> None:
    del heard[:]
    for proxy in town.proxies:
        await proxy.heal()
    await heard.until(lambda: len(heard.of(ServerAdded)) == 3)
    assert {event.server for event in heard.of(ServerAdded)} == {f"s{n:02}" for n in DOWN}
    assert group.summary() == "17/20 servers healthy"
    left = (UNAUTHORIZED, GARBLED, HANGING)
    assert group.failed == [town.clients[number] for number in sorted(left)]
    joined = town.clients[DOWN[0]]
    assert (await joined.call_tool("echo", {"text": "here"})).text == "here"


@pytest.mark.requirement("G2", "G5")
async def test_a_strict_group_of_real_clients_opens_all_or_none():
    async with ScriptedServer.local() as well, ScriptedServer.local(api_key="secret") as closed:
        clients = [Client({"name": "a", **well.spec}), Client({"name": "b", **closed.spec})]
        group = ServerGroup(clients, strict=True)
        async with asyncio.timeout(BOUND):
            with pytest.raises(AuthNeeded):
                await group.connect_all()
        assert (group.connected, group.errors) == ([], {})
        assert not clients[0].is_initialized


@asynccontextmanager
async def watched(
    era: Era, **spec: Any
) -> AsyncGenerator[tuple[ScriptedServer, FaultProxy, ServerGroup[Client]]]:
    """A group of one, whose health is looked at all the time, behind a proxy."""
    async with (
        asyncio.timeout(2 * BOUND),
        ScriptedServer.local(era=era) as server,
        FaultProxy.to("127.0.0.1", server.port) as proxy,
        ServerGroup(
            [Client({"name": "a", "url": proxy.url(), "mode": era, **spec})],
            health_interval=0.02,
            backoff=QUICK,
        ) as group,
    ):
        yield server, proxy, group


SIGN_OF_LIFE: dict[Era, str] = {"legacy": "ping", "modern": "server/discover"}


@pytest.mark.requirement("G7")
@every_era
async def test_health_is_checked_on_the_session_there_is(era: Era):
    async with watched(era) as (server, _, group):
        shakes = len(await server.requests(HANDSHAKE[era]))
        sessions = {record.session_id for record in await server.requests(SIGN_OF_LIFE[era])}
        signs = await server.requests(SIGN_OF_LIFE[era], at_least=shakes + 5)
        if era == "legacy":
            assert len(await server.requests("initialize")) == shakes == 1
            assert len({record.session_id for record in signs} - sessions) <= 1
        assert group.status("a").latency is not None
        assert group.summary() == "1/1 servers healthy"


@pytest.mark.requirement("G4")
async def test_a_program_gets_the_time_that_it_needs_and_no_other_server_does():
    async with ScriptedServer.stdio(era="legacy", ignore=["server/discover"]) as slow:
        program = Client({"name": "slow", **slow.spec, "timeouts": {"connect": 6.0}})
        async with ServerGroup([program], connect_timeout=0.5, backoff=None) as group:
            assert group.connected == [program]
    async with ScriptedServer.local() as hanging:
        await hanging.script(Rule(do=Behaviour(hang=True)))
        client = Client({"name": "hanging", "url": hanging.url, "timeouts": {"connect": 6.0}})
        with Took() as took:
            async with ServerGroup([client], connect_timeout=0.5, backoff=None) as group:
                assert group.failed == [client]
        assert took.seconds < 5.0


@pytest.mark.requirement("G7", "C2")
async def test_a_servers_own_interval_wins_over_the_groups():
    async with ScriptedServer.local(era="legacy") as server:
        client = Client({"name": "a", "url": server.url, "health_interval": 0.02})
        async with ServerGroup([client], health_interval=600.0), asyncio.timeout(BOUND):
            await server.requests("ping", at_least=3)


@pytest.mark.requirement("G7")
async def test_a_session_that_was_lost_is_replaced_once_and_not_with_every_check():
    async with watched("legacy") as (server, _, group):
        await server.requests("ping", at_least=2)
        await server.forget_sessions()
        pings = len(await server.requests("ping"))
        await server.requests("ping", at_least=pings + 6)
        assert len(await server.requests("initialize")) == 2
        assert group.summary() == "1/1 servers healthy"


@pytest.mark.requirement("G7")
@every_era
async def test_a_server_that_goes_away_and_comes_back_is_down_and_healthy_again(era: Era):
    async with watched(era, max_retries=0) as (server, proxy, group):
        heard = Heard(group)
        proxy.refuse()
        proxy.kill_connections()
        await heard.until(lambda: group.status("a").health is Health.DOWN)
        assert isinstance(group.status("a").last_error, ToolkeepError)
        assert group.failed == group.configured
        await proxy.heal()
        await heard.until(lambda: group.status("a").health is Health.HEALTHY)
        assert group.connected == group.configured
        if era == "legacy":
            assert len(await server.requests("initialize")) == 1
        changes = [event.health for event in heard.of(HealthChanged)]
        assert changes == [Health.DOWN, Health.HEALTHY]


@pytest.mark.requirement("G7")
@every_era
@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_wants_to_know_who_asks_is_not_down(era: Era, status: int):
    async with watched(era) as (server, _, group):
        heard = Heard(group)
        await server.script(Rule(method=SIGN_OF_LIFE[era], do=Behaviour(status=status)))
        await heard.until(lambda: bool(heard.of(HealthChanged)))
        assert group.status("a").health is Health.NEEDS_AUTHORIZATION
        assert isinstance(group.status("a").last_error, AuthNeeded)


@pytest.mark.requirement("G6")
async def test_replacing_a_client_leaves_the_sessions_of_the_others_as_they_are():
    async with ScriptedServer.local() as first, ScriptedServer.local() as second:
        kept, old = Client({"name": "a", **first.spec}), Client({"name": "b", **first.spec})
        async with ServerGroup([kept, old]) as group, asyncio.timeout(BOUND):
            session = kept.session_id
            new = Client({"name": "b", **second.spec})
            await group.replace("b", new)
            assert group.connected == [kept, new]
            assert (kept.session_id, old.is_initialized) == (session, False)
            assert (await new.call_tool("echo", {"text": "new"})).text == "new"
