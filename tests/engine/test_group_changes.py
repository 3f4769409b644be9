"""Members come, go and change while the others run, and their health is known."""

import asyncio
from collections.abc import Coroutine
from typing import Any

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
    names,
    views,
)
from toolkeep._rules.backoff import Backoff
from toolkeep.errors import AuthNeeded, CallRejected, Delivery, ServerUnavailable
from toolkeep.events import Health, HealthChanged, ServerAdded, ServerRemoved

# -- coming and going ---------------------------------------------------------------------------


@pytest.mark.requirement("G6")
async def test_servers_come_go_and_are_replaced_while_the_others_are_not_touched():
    servers = fakes("fine", "fine", "fails")
    async with group_of(servers) as group:
        heard = Heard(group)
        added = Fake("d")
        assert (await group.add(added)).is_connected
        assert names(group.configured) == "abcd"
        assert views(group) == ("abd", "c", "abd")
        await group.remove("b")
        assert (names(group.configured), servers[1].is_open) == ("acd", False)
        other = Fake("e")
        assert (await group.replace("c", other)).is_connected
        assert names(group.configured) == "aed"
        assert views(group) == ("aed", "", "aed")
        assert servers[0].did("connect") == added.did("connect") == 1
        assert servers[0].did("cleanup") == added.did("cleanup") == 0
        assert [event.server for event in heard.of(ServerAdded)] == ["d", "e"]
        assert [event.server for event in heard.of(ServerRemoved)] == ["b", "c"]
    assert not any(server.is_open for server in (*servers, added, other))


@pytest.mark.requirement("G6")
async def test_the_new_one_is_open_before_the_old_one_is_closed_and_announced_when_it_is_in_place():
    servers = fakes("fine")
    new = Fake("a", "hangs", servers[0].journal)
    async with group_of(servers, connect_timeout=LONG) as group, asyncio.timeout(BOUND):
        seen: list[Any] = []
        group.observe(lambda event: seen.append((type(event), group.connected)))
        replacing = asyncio.create_task(group.replace("a", new))
        await new.connecting.wait()
        assert group.connected == servers
        new.go.set()
        await replacing
        assert [entry.did for entry in servers[0].journal][-3:] == [
            "connected",
            "cleanup",
            "cleaned",
        ]
        assert (ServerAdded, [new]) in seen
        assert group.status("a").server is new


async def test_a_group_that_is_not_open_only_takes_note_of_who_comes_and_goes():
    servers = fakes("fine", "fine")
    group = group_of(servers[:1])
    await group.add(servers[1])
    await group.replace("a", Fake("z"))
    assert names(group.configured) == "zb"
    await group.remove("b")
    assert (names(group.configured), servers[0].journal) == ("z", [])


@pytest.mark.requirement("G6")
async def test_a_server_that_is_added_in_vain_joins_later():
    group = group_of(fakes("fine"), backoff=QUICK)
    async with group:
        heard, late = Heard(group), Fake("b", "fails")
        member = await group.add(late)
        assert isinstance(member.error, Broken)
        late.manner = "fine"
        await heard.until(lambda: views(group) == ("ab", "", "ab"))


def in_virtual_time(work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=ImpatientLoop) as runner:
        return runner.run(work)


@pytest.mark.parametrize("how", ["removed", "closed", "replaced"])
def test_a_server_that_left_while_failing_is_not_tried_again(how: str):
    async def main() -> None:
        servers = fakes("fails")
        group = group_of(servers, backoff=Backoff(first=1.0))
        await group.connect_all()
        await asyncio.sleep(LONG)
        tries = servers[0].did("connect")
        assert tries > 5
        leaving = {
            "removed": lambda: group.remove("a"),
            "closed": group.cleanup_all,
            "replaced": lambda: group.replace("a", Fake("b")),
        }
        await leaving[how]()
        await asyncio.sleep(LONG)
        assert servers[0].did("connect") == tries
        await group.cleanup_all()

    in_virtual_time(main())


async def test_adding_to_a_group_that_closes_meanwhile_says_so():
    late = Fake("b", "hangs")
    group = group_of(fakes("fine"), connect_timeout=LONG)
    await group.connect_all()
    adding = asyncio.create_task(group.add(late))
    async with asyncio.timeout(BOUND):
        await late.connecting.wait()
        await group.cleanup_all()
        with pytest.raises(ServerUnavailable):
            await adding
    assert (names(group.configured), late.did("cleaned")) == ("a", 1)


# -- health -------------------------------------------------------------------------------------


class Alive(Fake):
    """A fake that is asked for signs of life, and gives what it is told to."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.answer: Any = None
        self.asked: list[float] = []
        self.asking = asyncio.Event()

    async def ping(self) -> Any:
        self.asked.append(asyncio.get_running_loop().time())
        self.asking.set()
        if self.answer == "hang":
            await self.go.wait()
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


REJECTED = CallRejected("no ping here", server="a", delivery=Delivery.ANSWERED)


@pytest.mark.requirement("G7")
@pytest.mark.parametrize(
    ("answer", "health"),
    [
        (Broken("gone"), Health.DOWN),
        ("hang", Health.DOWN),
        (asyncio.CancelledError("by itself"), Health.DOWN),
        (AuthNeeded("who are you", server="a"), Health.NEEDS_AUTHORIZATION),
    ],
    ids=["failed", "silent", "astray", "unauthorized"],
)
async def test_a_change_of_health_is_an_event_and_the_server_stays_connected(
    answer: Any, health: Health
):
    server = Alive("a")
    group = group_of([server], health_interval=0.02, backoff=QUICK)
    async with group:
        heard = Heard(group)
        assert group.status("a").health is Health.HEALTHY
        server.answer = answer
        await heard.until(lambda: bool(heard.of(HealthChanged)))
        found = group.status("a")
        assert (found.health, found.latency) == (health, None)
        assert found.last_error is heard.of(HealthChanged)[0].error
        assert (group.summary(), views(group)) == ("0/1 servers healthy", ("a", "", "a"))
        server.answer = 0.125
        await heard.until(lambda: len(heard.of(HealthChanged)) == 2)
        assert group.status("a").latency == 0.125
        changes = [(event.before, event.health) for event in heard.of(HealthChanged)]
        assert changes == [(Health.HEALTHY, health), (health, Health.HEALTHY)]
        assert server.did("connect") == 1


@pytest.mark.requirement("G7")
async def test_a_server_that_refuses_to_be_asked_is_alive():
    server = Alive("a")
    server.answer = REJECTED
    async with group_of([server], health_interval=0.01) as group, asyncio.timeout(BOUND):
        heard = Heard(group)
        await server.asking.wait()
        server.asking.clear()
        await server.asking.wait()
        assert (group.summary(), heard.of(HealthChanged)) == ("1/1 servers healthy", [])


@pytest.mark.requirement("G7")
def test_fifty_servers_are_not_asked_at_once():
    async def main() -> list[list[float]]:
        servers = [Alive(f"s{n}") for n in range(50)]
        async with group_of(servers):
            await asyncio.sleep(600)
        return [server.asked for server in servers]

    asked = in_virtual_time(main())
    assert all(8 <= len(moments) <= 12 for moments in asked)
    for minute in range(10):
        moments = [at for each in asked for at in each if 60 * minute <= at < 60 * (minute + 1)]
        busiest = max(sum(at <= other < at + 1 for other in moments) for at in moments)
        assert busiest <= 10


async def test_closing_ends_a_check_that_is_under_way():
    server = Alive("a")
    server.answer = "hang"
    group = group_of([server], health_interval=0.01, connect_timeout=LONG)
    async with asyncio.timeout(BOUND):
        await group.connect_all()
        await server.asking.wait()
        await group.cleanup_all()
    assert server.did("cleaned") == 1


def test_health_is_not_checked_where_that_is_not_wanted():
    async def main() -> list[float]:
        server = Alive("a")
        async with group_of([server], health_interval=None):
            await asyncio.sleep(10 * LONG)
        return server.asked

    assert in_virtual_time(main()) == []
