"""A server whose cleanup failed is not opened again before one has succeeded, or is forced."""

import asyncio
from typing import Any

import pytest

from tests.engine.helpers_group import (
    BOUND,
    QUICK,
    Broken,
    Fake,
    Heard,
    Manner,
    fakes,
    group_of,
    views,
)
from toolkeep import Client, ConfigError, ServerUnavailable
from toolkeep.group import ServerAdded, ServerLost
from toolkeep.testing import ScriptedServer

pytestmark = pytest.mark.requirement("G5")

BAD: list[Manner] = ["fails", "hangs", "astray"]
every_bad_parting = pytest.mark.parametrize("parting", BAD)


def done(server: Fake) -> list[str]:
    return [entry.did for entry in server.journal if entry.did in ("connect", "cleanup")]


@every_bad_parting
@pytest.mark.parametrize("parallel", [True, False])
async def test_no_attempt_connects_before_a_cleanup_has_succeeded(parting: Manner, parallel: bool):
    (server,) = fakes("fails")
    server.parting = parting
    group = group_of([server], parallel=parallel, cleanup_timeout=0.02)
    await group.connect_all()
    assert done(server) == ["connect", "cleanup"]
    for work in (group.reconnect, group.connect_all, group.reconnect):
        await work()
        assert views(group) == ("", "a", "")
        assert isinstance(group.errors[server], Broken if parting == "fails" else ServerUnavailable)
    assert done(server) == ["connect", *["cleanup"] * 4]
    server.manner, server.parting = "fine", "fine"
    await group.reconnect()
    assert views(group) == ("a", "", "a")
    assert done(server)[-2:] == ["cleanup", "connect"]
    await group.cleanup_all()
    assert (server.misused, server.is_open) == ([], False)


@every_bad_parting
async def test_a_cleanup_that_fails_can_be_forced_past(parting: Manner):
    (server,) = fakes("fine")
    server.parting = parting
    group = group_of([server], cleanup_timeout=0.02)
    await group.connect_all()
    await group.reconnect(failed_only=False)
    assert views(group) == ("", "a", "")
    await group.reconnect(force=True)
    assert views(group) == ("a", "", "a")
    assert done(server).count("connect") == 2
    await group.reconnect(failed_only=False, force=True)
    assert views(group) == ("a", "", "a")
    assert done(server).count("connect") == 3
    server.parting = "fine"
    await group.cleanup_all()


async def test_a_cleanup_that_does_not_end_can_be_forced_past():
    (server,) = fakes("fine")
    server.parting = "stubborn"
    group = group_of([server], cleanup_timeout=0.02)
    async with asyncio.timeout(BOUND):
        await group.connect_all()
        await group.reconnect(failed_only=False)
        assert views(group) == ("", "a", "")
        assert done(server) == ["connect", "cleanup"]
        await group.reconnect(force=True)
        assert views(group) == ("a", "", "a")
        server.go.set()
        await group.cleanup_all()


async def test_in_the_background_it_is_cleaned_up_and_not_opened():
    (server,) = fakes("fails")
    server.parting = "fails"
    group = group_of([server], backoff=QUICK)
    heard = Heard(group)
    async with group:
        await heard.until(lambda: server.did("cleanup") == 3)
        assert server.did("connect") == 1
        server.manner, server.parting = "fine", "fine"
        await heard.until(lambda: bool(heard.of(ServerAdded)))
        assert server.did("connect") == 2
    assert server.misused == []
    assert {type(event.error) for event in heard.of(ServerLost)} == {Broken}


async def test_closing_again_tries_again_what_could_not_be_closed():
    (server,) = fakes("fine")
    group = group_of([server])
    async with group:
        server.parting = "fails"
    assert isinstance(group.status("a").last_error, Broken)
    await group.cleanup_all()
    server.parting = "fine"
    await group.cleanup_all()
    await group.cleanup_all()
    assert done(server) == ["connect", "cleanup", "cleanup", "cleanup"]
    assert not [one for one in asyncio.all_tasks() if one.get_name().startswith("toolkeep ")]


async def test_a_strict_group_raises_what_keeps_a_server_closed():
    servers = fakes("fine", "fails")
    servers[1].parting = "fails"
    group = group_of(servers, strict=True)
    for _ in range(3):
        with pytest.raises(Broken):
            await group.connect_all()
        assert views(group) == ("", "", "")
    assert servers[1].did("connect") == 1
    assert servers[0].is_open is False


async def test_a_replacement_does_not_wait_for_the_cleanup_of_what_it_replaces():
    (server,) = fakes("fine")
    server.parting = "fails"
    async with group_of([server]) as group:
        new = Fake("a")
        await group.replace("a", new)
        assert group.connected == [new]
        assert new.did("cleanup") == 0


# -- settings -----------------------------------------------------------------------------------


async def test_settings_can_be_changed_between_openings():
    servers = fakes("fine", "fails", "hangs")
    group = group_of(servers, connect_timeout=0.02)
    await group.connect_all()
    assert views(group) == ("a", "bc", "a")
    group.settings.drop_failed = False
    assert group.active == servers
    group.settings.strict = True
    with pytest.raises(Broken):
        await group.reconnect()
    group.settings.strict = False
    group.settings.connect_timeout = BOUND
    servers[2].go.set()
    servers[2].manner = "hangs"
    await group.reconnect()
    assert views(group) == ("ac", "b", "abc")
    group.settings.cleanup_timeout = 0.01
    servers[0].parting = "hangs"
    async with asyncio.timeout(BOUND):
        await group.cleanup_all()
    assert "not closed within 0.01 s" in str(group.status("a").last_error)


async def test_health_checks_can_be_switched_on_for_a_client_that_is_open():
    async with ScriptedServer.local() as kit:
        group = group_of([Client({"name": "kit", "url": kit.url})], connect_timeout=5.0)
        group.settings.health_interval = None
        async with group, asyncio.timeout(BOUND):
            assert "ping" not in [one.rpc_method for one in await kit.requests()]
            group.settings.health_interval = 0.01
            await group.reconnect(failed_only=False)
            await kit.requests("server/discover", at_least=3)


@pytest.mark.parametrize("key", ["connect_timeout", "cleanup_timeout", "health_interval"])
@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), 10**400, True, "1"])
def test_a_setting_is_checked_when_it_is_changed(key: str, wrong: Any):
    group = group_of()
    before = getattr(group.settings, key)
    with pytest.raises(ConfigError, match=key):
        setattr(group.settings, key, wrong)
    assert getattr(group.settings, key) == before


def test_there_is_no_setting_of_another_name():
    with pytest.raises(AttributeError):
        group_of().settings.connect_timeout_seconds = 1.0
