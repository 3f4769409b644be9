"""A group opens what it can, says what it could not, and tries that again."""

import asyncio
import itertools
from typing import Any

import pytest

from tests.engine.helpers_group import (
    BOUND,
    LONG,
    QUICK,
    Broken,
    Fake,
    Fatal,
    Heard,
    Manner,
    caller,
    fakes,
    group_of,
    views,
)
from toolkeep.errors import ConfigError, ServerUnavailable, UnknownServer
from toolkeep.events import Health
from toolkeep.group import ServerGroup

MANNERS: tuple[Manner, ...] = ("fine", "fails", "hangs", "astray")

both_ways = pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "sequential"])


@pytest.mark.requirement("G1", "G8")
async def test_nothing_is_connected_before_it_was_opened():
    servers = fakes("fine", "fine")
    group = ServerGroup(servers)
    assert group.configured == servers
    assert views(group) == ("", "", "")
    assert ServerGroup(servers, drop_failed=False).active == servers
    assert group.summary() == "0/2 servers healthy"


@pytest.mark.requirement("G1", "G2", "G8")
@both_ways
@pytest.mark.parametrize("manners", list(itertools.permutations(MANNERS)), ids="-".join)
async def test_views_keep_the_configured_order_whatever_finished_first(
    manners: tuple[Manner, ...], parallel: bool
):
    servers = fakes(*manners, "fine")
    async with group_of(servers, parallel=parallel, connect_timeout=0.02) as group:
        well = [server for server in servers if server.manner == "fine"]
        ill = [server for server in servers if server.manner != "fine"]
        assert (group.configured, group.connected, group.active) == (servers, well, well)
        assert group.failed == list(group.errors) == ill
        assert {server.manner: type(error) for server, error in group.errors.items()} == {
            "fails": Broken,
            "hangs": ServerUnavailable,
            "astray": ServerUnavailable,
        }
        assert group.summary() == "2/5 servers healthy"
    assert views(group) == ("", "", "")


async def test_failed_servers_stay_active_when_they_are_not_to_be_dropped():
    async with group_of(fakes("fine", "fails"), drop_failed=False) as group:
        assert views(group) == ("a", "b", "ab")


@pytest.mark.requirement("G2")
async def test_a_server_that_cannot_be_opened_is_logged_once(caplog: pytest.LogCaptureFixture):
    servers = fakes("fine", "fails", "hangs")
    async with group_of(servers) as group:
        await group.reconnect()
        assert [server.did("connect") for server in servers] == [1, 2, 2]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert set(caplog.messages) == {
        "b is skipped for now: b",
        "c is skipped for now: c: not connected within 0.2 s",
    }


@pytest.mark.requirement("G4")
async def test_all_are_opened_at_once_each_by_a_task_of_its_own_on_nobodys_behalf():
    servers = fakes("hangs", "hangs", "hangs")
    caller.set("somebody")
    group = group_of(servers, connect_timeout=LONG)
    opening = asyncio.create_task(group.connect_all())
    async with asyncio.timeout(BOUND):
        for server in servers:
            await server.connecting.wait()
        for server in reversed(servers):
            server.go.set()
        assert await opening == servers
        await group.cleanup_all()
    journal = servers[0].journal
    assert {entry.context for entry in journal} == {"nobody"}
    assert len({entry.task for entry in journal}) == 3
    assert [server.misused for server in servers] == [[], [], []]


@pytest.mark.requirement("G4")
async def test_sequential_opening_opens_the_next_when_the_last_is_open():
    servers = fakes("fine", "fails", "fine")
    async with group_of(servers, parallel=False):
        did = [(entry.name, entry.did) for entry in servers[0].journal if entry.did == "connect"]
        assert did == [("a", "connect"), ("b", "connect"), ("c", "connect")]
        order = [(entry.name, entry.did) for entry in servers[0].journal]
        assert order.index(("a", "connected")) < order.index(("b", "connect"))


async def test_opening_twice_opens_who_is_not_open():
    servers = fakes("fine", "fails")
    async with group_of(servers) as group:
        servers[1].manner = "fine"
        assert await group.connect_all() == servers
        assert (servers[0].did("connect"), servers[1].did("connect")) == (1, 2)


async def test_a_server_is_refused_that_is_there_already_or_cannot_be_told_from_others():
    class Nameless:
        async def connect(self) -> None: ...

        async def cleanup(self) -> None: ...

    class Unhashable(Nameless):
        __hash__ = None  # pyright: ignore[reportAssignmentType]

    server = Nameless()
    with pytest.raises(ConfigError, match="in the group already"):
        ServerGroup([server, server])
    with pytest.raises(ConfigError, match="not hashable"):
        ServerGroup([Unhashable()])


# -- strict -------------------------------------------------------------------------------------


@pytest.mark.requirement("G2")
@both_ways
async def test_a_strict_opening_that_fails_is_undone_and_raised(parallel: bool):
    servers = fakes("fine", "fails", "hangs")
    group = group_of(servers, strict=True, parallel=parallel, connect_timeout=LONG)
    async with asyncio.timeout(BOUND):
        with pytest.raises(Broken):
            await group.connect_all()
    assert views(group) == ("", "", "")
    assert not any(server.is_open for server in servers)
    assert all(server.did("cleanup") == server.did("connect") for server in servers)
    servers[1].manner = servers[2].manner = "fine"
    async with group:
        assert views(group) == ("abc", "", "abc")


@pytest.mark.requirement("G2")
async def test_a_strict_attempt_leaves_those_alone_that_were_connected_before():
    servers = fakes("fine", "fine")
    async with group_of(servers, strict=True) as group:
        with pytest.raises(Broken):
            await group.add(Fake("c", "fails"))
        with pytest.raises(Broken):
            await group.replace("a", Fake("a", "fails"))
        assert (group.configured, views(group)) == (servers, ("ab", "", "ab"))
        assert [server.did("cleanup") for server in servers] == [0, 0]


@pytest.mark.requirement("G2")
async def test_a_strict_rebuild_that_fails_keeps_those_that_were_rebuilt_and_wants_the_other_back():
    servers = fakes("fine", "fine")
    group = group_of(servers, strict=True, backoff=QUICK)
    async with group:
        heard = Heard(group)
        servers[1].manner = "fails"
        with pytest.raises(Broken):
            await group.reconnect(failed_only=False)
        servers[1].manner = "fine"
        await heard.until(lambda: views(group) == ("ab", "", "ab"))


# -- what is wrong from the start ---------------------------------------------------------------


@pytest.mark.parametrize("key", ["connect_timeout", "cleanup_timeout", "health_interval"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "10"])
def test_every_wait_has_a_bound(key: str, value: Any):
    with pytest.raises(ConfigError) as caught:
        ServerGroup([], **{key: value})
    assert caught.value.key == key


async def test_names_tell_servers_apart():
    twins = [Fake("twin"), Fake("twin")]
    with pytest.raises(ConfigError):
        ServerGroup(twins)
    group = ServerGroup([twins[0]])
    for again in twins:
        with pytest.raises(ConfigError):
            await group.add(again)
    assert group.configured == [twins[0]]
    with pytest.raises(UnknownServer):
        group.status("nobody")
    for wrong in (group.remove("nobody"), group.replace("nobody", twins[1])):
        with pytest.raises(UnknownServer):
            await wrong


class Nameless:
    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...


async def test_servers_without_a_name_are_given_one():
    async with ServerGroup([Nameless(), Nameless()]) as group:
        assert [member.name for member in group.members] == ["nameless-1", "nameless-2"]
        await group.remove("nameless-1")
        await group.add(Nameless())
        assert [member.health for member in group.members] == [Health.HEALTHY, Health.HEALTHY]
        assert len({member.name for member in group.members}) == 2


@pytest.mark.requirement("G5")
@both_ways
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Fatal])
async def test_what_is_no_servers_failure_is_raised_and_the_opening_undone(
    error: type[BaseException], parallel: bool
):
    class Ending(Fake):
        async def connect(self) -> None:
            await super().connect()
            raise error

    servers = [Fake("a"), Ending("b"), Fake("c")]
    group = group_of(servers, parallel=parallel)
    with pytest.raises(error):
        await group.connect_all()
    assert views(group) == ("", "", "")
    assert not any(server.is_open for server in servers)


@pytest.mark.requirement("G2", "G7")
async def test_a_server_that_is_named_after_its_url_is_known_without_the_secrets_in_it(
    caplog: pytest.LogCaptureFixture,
):
    name = "streamable_http: https://ada:secret@example.com/mcp?token=secret#secret"
    server = Fake(name)
    server.parting = "fails"
    group = group_of([server])
    heard = Heard(group)
    await group.connect_all()
    assert group.status(name) == group.status("streamable_http: https://example.com/mcp?token=***")
    await group.cleanup_all()
    named = [getattr(event, "server", "") for event in heard]
    assert len(named) >= 2
    assert "closing failed" in caplog.text
    assert "secret" not in f"{named} {group.members[0].name} {group} {caplog.text}"
    with pytest.raises(UnknownServer) as raised:
        group.status("another")
    assert "secret" not in str(raised.value)
