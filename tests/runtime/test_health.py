"""Health through a runtime: asked on the live session, seen in `servers`, mended by itself."""

import asyncio
from typing import Any

import pytest

from tests.runtime._life import (
    PATIENCE,
    QUICK,
    Ear,
    config_of,
    eras,
    eventually,
    quiet_port,
    sessions_in,
)
from toolkeep import CallContext, Runtime
from toolkeep.events import CatalogueChanged, Health, HealthChanged, ServerAdded, ServerLost
from toolkeep.group import MemberState
from toolkeep.testing import Behaviour, FaultProxy, Rule, ScriptedServer

ADA = CallContext(principal="ada")
ASKING = {"legacy": "ping", "modern": "server/discover"}


@pytest.mark.requirement("G7")
@eras
async def test_health_is_asked_on_the_session_there_is(era: Any):
    async with ScriptedServer.local(era=era) as kit, ScriptedServer.stdio(era=era) as program:
        config = config_of(kit=kit, program=program)
        async with Runtime.open(config, health_interval=0.05) as runtime:
            await runtime.call("kit.record", context=ADA)
            before = {name: len(await _asked(it, era)) for name, it in (("k", kit), ("p", program))}
            await kit.requests(ASKING[era], at_least=before["k"] + 3)
            await program.requests(ASKING[era], at_least=before["p"] + 3)
            assert [one.health for one in runtime.servers] == [Health.HEALTHY] * 2
            assert all(one.latency is not None and one.latency >= 0 for one in runtime.servers)
            assert runtime.summary().startswith("2/2 servers healthy")
            assert len(await program.processes()) == 1
            if era == "legacy":
                assert len(await kit.requests("initialize")) == 2, "its own, and ada's"
                own = {one.session_id for one in await _asked(kit, era)}
                assert len(own) == 1
                assert own < sessions_in(await kit.requests())


async def _asked(server: ScriptedServer, era: str) -> list[Any]:
    return await server.requests(ASKING[era])


@pytest.mark.requirement("G7")
async def test_a_server_s_own_interval_wins_and_none_means_never():
    async with (
        ScriptedServer.local(era="legacy") as often,
        ScriptedServer.local(era="legacy") as never,
    ):
        config = config_of(often={**often.spec, "health_interval": 0.05}, never=never)
        async with Runtime.open(config, health_interval=60.0):
            await often.requests("ping", at_least=3)
            assert await never.requests("ping") == []
        await often.clear()
        async with Runtime.open(config, health_interval=None) as runtime:
            await runtime.call("often.record")
            assert await often.requests("ping") == []


@pytest.mark.requirement("G7", "T5")
@eras
async def test_an_outage_is_seen_and_over_by_itself(era: Any):
    async with (
        ScriptedServer.local(era=era) as kit,
        ScriptedServer.local(era=era) as other,
        FaultProxy.to("127.0.0.1", kit.port) as proxy,
    ):
        config = config_of(kit={"url": proxy.url()}, other=other)
        runtime = Runtime(config, health_interval=0.05, backoff=QUICK)
        async with runtime:
            ear = Ear(runtime)
            proxy.refuse()
            proxy.kill_connections()
            down = await ear.first(HealthChanged, "kit")
            assert down.health is Health.DOWN
            await ear.until(lambda: runtime.servers[0].stale)
            status = runtime.servers[0]
            assert (status.name, status.health) == ("kit", Health.DOWN)
            assert status.error is not None or status.last_error is not None
            # On a busy machine a check of a healthy server, too, may be too late now and then.
            await ear.until(lambda: runtime.summary().startswith("1/2 servers healthy"))
            assert (await runtime.call("other.record")).success
            assert runtime.catalogue.tool("kit.record").stale
            await proxy.heal()
            await ear.until(lambda: runtime.servers[0].health is Health.HEALTHY)
            await ear.until(lambda: not runtime.servers[0].stale)
            assert (await runtime.call("kit.record")).success
            await ear.until(lambda: runtime.summary().startswith("2/2 servers healthy"))
            assert not runtime.catalogue.tool("kit.record").stale


@pytest.mark.requirement("G7")
async def test_a_server_that_answers_no_question_of_health_is_not_replaced_while_it_works():
    """It refuses `ping`; that is an answer, and so a sign of life."""
    async with ScriptedServer.local(era="legacy") as kit:
        refusal = Behaviour(error={"code": -32601, "message": "no such method"})
        await kit.script(Rule(do=refusal, method="ping"))
        async with Runtime.open(config_of(kit=kit), health_interval=0.05) as runtime:
            await kit.requests("ping", at_least=3)
            assert (await runtime.call("kit.record")).success
            assert runtime.servers[0].state is MemberState.CONNECTED
            assert len(await kit.requests("initialize")) == 1


@pytest.mark.requirement("G7")
async def test_a_server_that_wants_credentials_is_not_down():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        Runtime.open(config_of(kit=kit), health_interval=0.05) as runtime,
    ):
        ear = Ear(runtime)
        await kit.script(Rule(do=Behaviour(status=401), method="ping", times=3))
        assert (await ear.first(HealthChanged, "kit")).health is Health.NEEDS_AUTHORIZATION
        assert not runtime.servers[0].stale
        assert (await ear.first(HealthChanged, "kit", since=1)).health is Health.HEALTHY


@pytest.mark.requirement("G7")
async def test_a_call_under_way_is_not_harmed_by_questions_of_health():
    async with (
        ScriptedServer.local(era="legacy") as kit,
        Runtime.open(config_of(kit=kit), health_interval=0.02) as runtime,
    ):
        called = await runtime.call("kit.slow", {"seconds": 0.5})
        assert called.text == "done"
        assert called.attempts == 1
        await kit.requests("ping", at_least=5)


@pytest.mark.requirement("G3")
async def test_reconnecting_the_failed_opens_those_and_nobody_else():
    async with ScriptedServer.local(era="legacy") as kit:
        port = quiet_port()
        config = config_of(kit=kit, late={"url": f"http://127.0.0.1:{port}/mcp"})
        async with Runtime.open(config, backoff=None) as runtime:
            ear = Ear(runtime)
            assert runtime.servers[1].state is MemberState.FAILED
            await runtime.reconnect()
            assert runtime.servers[1].state is MemberState.FAILED
            assert ear.of(ServerLost, "late")
            async with ScriptedServer.local(port=port):
                await runtime.reconnect()
                assert ear.of(ServerAdded, "late")
                assert ear.of(CatalogueChanged, "late")
                assert (await runtime.call("late.record")).success
                assert len(await kit.requests("initialize")) == 1


async def test_a_process_that_ends_is_seen_and_started_again():
    async with ScriptedServer.stdio(era="legacy") as program:
        config = config_of(kit=program)
        async with Runtime.open(config, health_interval=0.1, backoff=QUICK) as runtime:
            (first,) = await program.processes(at_least=1)
            program.kill(first)
            await program.starts(at_least=2, within=PATIENCE)
            await eventually(lambda: runtime.servers[0].health is Health.HEALTHY)
            assert (await runtime.call("kit.record")).success
            assert first not in await program.processes()


async def test_what_is_true_of_a_server_is_shown():
    async with (
        ScriptedServer.local(era="modern") as kit,
        ScriptedServer.stdio(era="legacy") as program,
        Runtime.open(config_of(kit=kit, program=program), functions=[]) as runtime,
    ):
        async with asyncio.timeout(PATIENCE):
            await runtime.call("kit.record", context=ADA)
        shown = {one.name: one for one in runtime.servers}
        assert {name: one.transport for name, one in shown.items()} == {
            "kit": "http",
            "program": "stdio",
            "builtin": "local",
        }
        assert (shown["kit"].era, shown["program"].era) == ("modern", "legacy")
        assert shown["kit"].sessions == 1
        assert shown["kit"].tools == len(
            [tool for tool in runtime.catalogue if tool.server == "kit"]
        )
        assert shown["program"].server_version
        assert shown["kit"].error is None
