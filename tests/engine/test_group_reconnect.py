"""Who failed is tried again: in the background, and when somebody asks for it."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import anyio
import pytest

from tests.engine.helpers_group import (
    BOUND,
    LONG,
    QUICK,
    Broken,
    Fake,
    Heard,
    ImpatientLoop,
    fakes,
    group_of,
    views,
)
from toolkeep._rules.health import MemberState
from toolkeep.errors import ServerUnavailable, UnknownServer
from toolkeep.events import ServerAdded, ServerLost, ServerRemoved


@pytest.mark.requirement("G2")
async def test_a_failed_server_joins_by_itself_once_it_can():
    servers = fakes("fine", "fails", "hangs")
    group = group_of(servers, backoff=QUICK, connect_timeout=0.02)
    heard = Heard(group)
    async with group:
        assert views(group) == ("a", "bc", "a")
        await heard.until(lambda: servers[1].did("connect") > 3)
        assert names_of(heard, ServerAdded) == ["a"]
        servers[1].manner = servers[2].manner = "fine"
        await heard.until(lambda: group.connected == servers)
        assert sorted(names_of(heard, ServerAdded)) == ["a", "b", "c"]
        assert (group.failed, group.errors) == ([], {})
        assert all(event.attempt > 1 for event in heard.of(ServerAdded) if event.server != "a")
        assert {type(event.error) for event in heard.of(ServerLost)} == {Broken, ServerUnavailable}
    assert names_of(heard, ServerRemoved) == ["c", "b", "a"]
    assert [server.misused for server in servers] == [[], [], []]


def names_of(heard: Heard, kind: Any) -> list[str]:
    return [event.server for event in heard.of(kind)]


@pytest.mark.requirement("G3")
async def test_reconnecting_tries_the_failed_once_each_and_leaves_the_healthy_alone():
    servers = fakes("fine", "fails", "fails")
    async with group_of(servers) as group:
        servers[1].manner = "fine"
        assert await group.reconnect() == servers[:2]
        assert [server.did("connect") for server in servers] == [1, 2, 2]
        assert servers[0].did("cleanup") == 0
        assert views(group) == ("ab", "c", "ab")


async def test_one_server_is_reconnected_and_the_others_are_left_alone():
    servers = fakes("fine", "fails", "fails")
    async with group_of(servers) as group:
        since = [group.status(name).health_since for name in "abc"]
        assert None not in since
        servers[1].manner = servers[2].manner = "fine"
        await group.reconnect("b")
        assert [server.did("connect") for server in servers] == [1, 2, 1]
        await group.reconnect("a", failed_only=False)
        assert [server.did("connect") for server in servers] == [2, 2, 1]
        assert servers[0].did("cleanup") == 1
        assert views(group) == ("ab", "c", "ab")
        assert group.status("c").health_since == since[2]
        with pytest.raises(UnknownServer, match="has no server 'd'"):
            await group.reconnect("d")


@pytest.mark.requirement("G3")
async def test_a_try_that_is_under_way_already_is_the_one_that_reconnecting_waits_for():
    servers = fakes("fails")
    group = group_of(servers, backoff=QUICK, connect_timeout=LONG)
    async with group, asyncio.timeout(BOUND):
        servers[0].manner = "hangs"
        servers[0].connecting.clear()
        await servers[0].connecting.wait()
        tries = servers[0].did("connect")
        assert group.status("a").state is MemberState.RECONNECTING
        assert views(group) == ("", "a", "")
        again = asyncio.create_task(group.reconnect())
        await anyio.wait_all_tasks_blocked()
        servers[0].go.set()
        assert await again == servers
        assert servers[0].did("connect") == tries


class Ending(Fake):
    """Fails at first; the next try waits, and ends the program."""

    async def connect(self) -> None:
        if not self.did("connect"):
            await super().connect()
        self.connecting.set()
        await self.go.wait()
        raise KeyboardInterrupt


@pytest.mark.requirement("G5")
def test_what_ends_the_program_reaches_whoever_waits_for_a_try_that_is_under_way():
    async def main() -> None:
        server = Ending("a", "fails")
        group = group_of([server], backoff=QUICK, connect_timeout=LONG)
        async with group, asyncio.timeout(BOUND):
            server.connecting.clear()
            await server.connecting.wait()
            again = asyncio.create_task(taken(group.reconnect()))
            await anyio.wait_all_tasks_blocked()
            server.go.set()
            assert await again

    async def taken(work: Awaitable[Any]) -> bool:
        try:
            await work
        except KeyboardInterrupt:
            return True
        return False

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pytest.fail("it was raised where nobody waited")


@pytest.mark.requirement("G3")
async def test_reconnecting_waits_for_what_a_failed_try_still_has_to_clean_up():
    servers = fakes("fails")
    servers[0].parting = "hangs"
    async with group_of(servers, cleanup_timeout=LONG) as group, asyncio.timeout(BOUND):
        servers[0].manner = "fine"
        again = asyncio.create_task(group.reconnect())
        await anyio.wait_all_tasks_blocked()
        assert servers[0].did("connect") == 1
        servers[0].go.set()
        assert await again == servers
    assert servers[0].misused == []


@pytest.mark.requirement("G4")
def test_a_server_may_take_all_of_its_time_to_connect():
    async def main() -> None:
        servers = fakes("hangs")
        group = group_of(servers, connect_timeout=10.0)
        asyncio.get_running_loop().call_later(9.5, servers[0].go.set)
        async with group:
            assert views(group) == ("a", "", "a")

    with asyncio.Runner(loop_factory=ImpatientLoop) as runner:
        runner.run(main())


@pytest.mark.requirement("G3")
async def test_a_full_reconnect_rebuilds_all_closing_the_last_first():
    servers = fakes("fine", "fails", "fine")
    async with group_of(servers) as group:
        servers[1].manner = "fine"
        began = len(servers[0].journal)
        assert await group.reconnect(failed_only=False) == servers
        cleaned = [e.name for e in servers[0].journal[began:] if e.did == "cleanup"]
        assert cleaned == ["c", "a"]
