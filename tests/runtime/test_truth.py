"""Health tells the truth at once: what calls meet shows in health, state, error and summary."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.runtime._catalogue import Diary, eventually
from tests.wire.helpers_stdio import TOOLS, spec_of
from toolkeep import Client, Runtime, ServerGroup, ToolkeepError
from toolkeep.events import Health, HealthChanged
from toolkeep.group import MemberState
from toolkeep.testing import Behaviour, FaultProxy, Rule, ScriptedServer

pytestmark = pytest.mark.requirement("F4")

eras = pytest.mark.parametrize("era", ["legacy", "modern"])
NO_CHECKS: dict[str, Any] = {"health_interval": None}


@asynccontextmanager
async def behind_a_proxy(
    era: Any, options: dict[str, Any], **spec: Any
) -> AsyncIterator[tuple[FaultProxy, Runtime, Diary]]:
    async with (
        ScriptedServer.local(era=era) as server,
        FaultProxy("127.0.0.1", urlsplit(server.url).port or 0) as proxy,
    ):
        settings = {"name": "kit", "url": proxy.url(), "max_retries": 0, **spec}
        runtime = Runtime([settings], listen=False, **options)
        diary = Diary(runtime)
        async with runtime:
            assert shown(runtime) == (MemberState.CONNECTED, Health.HEALTHY, None)
            yield proxy, runtime, diary


def shown(runtime: Runtime) -> tuple[Any, Any, Any]:
    status = runtime.servers[0]
    return status.state, status.health, status.error


def break_off(proxy: FaultProxy) -> None:
    proxy.refuse()
    proxy.kill_connections()


async def failed_call(runtime: Runtime) -> ToolkeepError:
    with pytest.raises(ToolkeepError) as caught:
        await runtime.call("kit.echo", {"text": "hi"})
    return caught.value


@eras
async def test_a_failed_call_shows_at_once_and_an_answered_one_ends_it(era: Any) -> None:
    async with behind_a_proxy(era, NO_CHECKS) as (proxy, runtime, diary):
        break_off(proxy)
        await failed_call(runtime)
        state, health, error = shown(runtime)
        assert (state, health) == (MemberState.FAILED, Health.DOWN)
        assert isinstance(error, ToolkeepError)
        assert runtime.summary().startswith("0/1 servers healthy")
        await proxy.heal()
        assert (await runtime.call("kit.echo", {"text": "hi"})).text == "hi"
        assert shown(runtime) == (MemberState.CONNECTED, Health.HEALTHY, None)
        assert runtime.summary().startswith("1/1 servers healthy")
        told = [event.health for event in diary.events if isinstance(event, HealthChanged)]
        assert told == [Health.HEALTHY, Health.DOWN, Health.HEALTHY]


@eras
async def test_an_open_breaker_shows_until_something_is_answered(era: Any) -> None:
    spec = {"breaker_threshold": 1, "breaker_cooldown": 0.2}
    async with behind_a_proxy(era, NO_CHECKS, **spec) as (proxy, runtime, _):
        break_off(proxy)
        await failed_call(runtime)
        await failed_call(runtime)  # refused by the breaker
        assert shown(runtime)[:2] == (MemberState.FAILED, Health.DOWN)
        await proxy.heal()

        async def answered() -> bool:
            try:
                await runtime.call("kit.echo", {"text": "hi"})
            except ToolkeepError:
                return False
            return True

        await eventually(answered)
        assert shown(runtime) == (MemberState.CONNECTED, Health.HEALTHY, None)


@eras
async def test_health_is_asked_for_soon_after_a_failed_call(era: Any) -> None:
    """At the interval it would take minutes."""
    async with behind_a_proxy(era, {"health_interval": 600.0}) as (proxy, runtime, diary):
        break_off(proxy)
        await failed_call(runtime)
        assert shown(runtime)[1] is Health.DOWN
        await proxy.heal()
        await diary.until(lambda: runtime.servers[0].health is Health.HEALTHY)
        assert shown(runtime) == (MemberState.CONNECTED, Health.HEALTHY, None)


@eras
async def test_reconnecting_the_failed_includes_those_whose_calls_fail(era: Any) -> None:
    async with behind_a_proxy(era, NO_CHECKS) as (proxy, runtime, _):
        break_off(proxy)
        await failed_call(runtime)
        await proxy.heal()
        await runtime.reconnect(failed_only=True)
        assert shown(runtime) == (MemberState.CONNECTED, Health.HEALTHY, None)
        assert (await runtime.call("kit.echo", {"text": "hi"})).text == "hi"


@pytest.mark.parametrize("status", [500, 502])
@eras
async def test_a_server_that_answers_calls_with_5xx_is_not_healthy(era: Any, status: int) -> None:
    async with ScriptedServer.local(era=era) as server:
        spec = {"name": "kit", "url": server.url, "max_retries": 0}
        async with Runtime([spec], listen=False, **NO_CHECKS) as runtime:
            broken = Behaviour(status=status)
            await server.script(Rule(method="tools/call", times=1, do=broken))
            await failed_call(runtime)
            assert shown(runtime)[:2] == (MemberState.FAILED, Health.DOWN)
            await runtime.call("kit.echo", {"text": "hi"})
            assert shown(runtime) == (MemberState.CONNECTED, Health.HEALTHY, None)


@eras
async def test_what_a_tool_or_a_deadline_ends_says_nothing_about_health(era: Any) -> None:
    async with behind_a_proxy(era, NO_CHECKS) as (_, runtime, _diary):
        assert (await runtime.call("kit.fail", {"message": "no"})).is_error
        with pytest.raises(TimeoutError):
            await runtime.call("kit.slow", {"seconds": 5}, timeout=0.2)
        assert shown(runtime) == (MemberState.CONNECTED, Health.HEALTHY, None)


@eras
async def test_a_group_of_clients_shows_their_failed_calls_too(era: Any) -> None:
    async with (
        ScriptedServer.local(era=era) as server,
        FaultProxy("127.0.0.1", urlsplit(server.url).port or 0) as proxy,
    ):
        client = Client({"name": "kit", "url": proxy.url(), "max_retries": 0})
        async with ServerGroup([client], health_interval=None) as group:
            break_off(proxy)
            with pytest.raises(ToolkeepError):
                await client.call_tool("echo", {"text": "hi"})
            assert group.failed == [client]
            assert isinstance(group.errors[client], ToolkeepError)
            assert group.summary() == "0/1 servers healthy"
            await proxy.heal()
            await asyncio.wait_for(group.reconnect(failed_only=True), 10)
            assert (group.connected, group.summary()) == ([client], "1/1 servers healthy")


async def test_a_program_that_dies_in_a_call_shows_at_once() -> None:
    async with Runtime([spec_of(TOOLS)], **NO_CHECKS) as runtime:
        with pytest.raises(ToolkeepError):
            await runtime.call("small.die")
        assert shown(runtime)[:2] == (MemberState.FAILED, Health.DOWN)
        await eventually(lambda: answers(runtime))
        assert shown(runtime) == (MemberState.CONNECTED, Health.HEALTHY, None)


async def answers(runtime: Runtime) -> bool:
    return (await runtime.call("small.pid")).text.isdigit()
