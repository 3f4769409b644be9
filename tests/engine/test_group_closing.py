"""A group closes what it opened: backwards, past failures, cancelled or not, one task for each."""

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
from toolkeep.errors import ServerUnavailable, WrongLoop
from toolkeep.events import ServerRemoved
from toolkeep.group import MemberTask, ServerGroup

pytestmark = pytest.mark.requirement("G5")


@pytest.mark.parametrize("parting", ["fails", "hangs", "astray"])
async def test_closing_goes_backwards_and_on_whatever_one_server_does(parting: Manner):
    servers = fakes("fine", "fine", "fine", "fails")
    group = group_of(servers, cleanup_timeout=0.02)
    heard = Heard(group)
    await group.connect_all()
    began = len(servers[0].journal)
    servers[1].parting = parting
    await group.cleanup_all()
    assert [e.name for e in servers[0].journal[began:] if e.did == "cleanup"] == ["c", "b", "a"]
    assert (views(group), group.errors) == (("", "", ""), {})
    trouble = group.status("b").last_error
    assert isinstance(trouble, Broken if parting == "fails" else ServerUnavailable)
    assert [event.error for event in heard.of(ServerRemoved)] == [None, None, trouble, None]
    await group.cleanup_all()
    assert [server.did("cleanup") for server in servers] == [1, 2, 1, 1]  # one is not closed yet
    servers[1].parting = "fine"
    async with group:
        assert views(group) == ("abc", "d", "abc")
    assert [server.misused for server in servers] == [[], [], [], []]


async def test_closing_a_group_that_was_never_opened_does_nothing():
    servers = fakes("fine")
    await group_of(servers).cleanup_all()
    assert servers[0].journal == []


@pytest.mark.requirement("G4")
@pytest.mark.parametrize("manner", ["fails", "hangs", "astray"])
async def test_what_was_opened_partly_is_cleaned_up_by_the_task_that_opened_it(manner: Manner):
    servers = fakes(manner)
    async with group_of(servers, connect_timeout=0.02), asyncio.timeout(BOUND):
        await servers[0].cleaning.wait()
    assert [entry.did for entry in servers[0].journal] == ["connect", "cleanup", "cleaned"]
    assert len({entry.task for entry in servers[0].journal}) == 1


class Silent:
    """A listener that ignores everything."""

    def on_opened(self, task: MemberTask, error: BaseException | None) -> None: ...

    def on_lost(self, task: MemberTask, error: BaseException) -> None: ...

    def on_ended(self, task: MemberTask) -> None: ...


async def test_who_is_released_before_the_first_step_opens_nothing():
    server = Fake("a", "hangs")
    settings = group_of().settings
    task = MemberTask(
        server, "a", settings, Silent(), awaited=True, clean_first=False, health_checks=None
    )
    task.start()
    task.release()
    async with asyncio.timeout(BOUND):
        assert await task.wait_ended()
    assert isinstance(task.outcome.result(), ServerUnavailable)
    assert server.journal == []


@pytest.mark.parametrize("phase", ["opening", "closing"])
async def test_a_server_that_cannot_be_stopped_is_left_behind_and_not_opened_twice(phase: str):
    servers = fakes("fine", "fine", "fine")
    stubborn = servers[1]
    group = group_of(servers, connect_timeout=0.02, cleanup_timeout=0.02)
    async with asyncio.timeout(BOUND):
        if phase == "opening":
            stubborn.manner = "stubborn"
            await group.connect_all()
            assert views(group) == ("ac", "b", "ac")
        else:
            await group.connect_all()
            stubborn.parting = "stubborn"
        await group.cleanup_all()
        assert views(group) == ("", "", "")
        assert not servers[0].is_open
        await group.connect_all()
        assert views(group) == ("ac", "b", "ac")
        assert stubborn.did("connect") == 1
        stubborn.go.set()
        await stubborn.cleaning.wait()
        assert await group.reconnect() == servers
        await group.cleanup_all()
    assert stubborn.misused == []


# -- the event loop -----------------------------------------------------------------------------


def test_what_ends_the_program_ends_it_also_in_the_background():
    class Ending(Fake):
        async def connect(self) -> None:
            if self.did("connect"):
                raise KeyboardInterrupt
            await super().connect()

    async def main() -> None:
        async with group_of([Ending("a", "fails")], backoff=QUICK):
            await asyncio.sleep(BOUND)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())


def test_a_group_that_nobody_closed_ends_with_its_event_loop_and_serves_in_the_next():
    made: list[ServerGroup[Any]] = []

    async def first() -> list[Fake]:
        servers = fakes("fine", "fails", "hangs")
        made.append(group_of(servers, connect_timeout=0.02, backoff=QUICK))
        await made[0].connect_all()
        return servers

    async def second(servers: list[Fake]) -> None:
        async with asyncio.timeout(BOUND), made[0] as group:
            assert views(group) == ("a", "bc", "a")
        assert not any(server.is_open for server in servers)

    servers = asyncio.run(first())
    assert not any(server.is_open for server in servers)
    asyncio.run(second(servers))


async def test_a_group_is_used_in_one_event_loop_at_a_time():
    group = group_of(fakes("fine"))
    async with group:
        with pytest.raises(WrongLoop):
            await asyncio.to_thread(asyncio.run, group.cleanup_all())
        assert views(group) == ("a", "", "a")
    await asyncio.to_thread(asyncio.run, group.cleanup_all())
