"""Whoever cancels is obeyed, at every moment; whoever was not asked to and does it fails alone."""

import asyncio
from typing import Any

import anyio
import pytest

from tests.engine.helpers_group import (
    BOUND,
    LONG,
    QUICK,
    Broken,
    Fake,
    Fatal,
    Heard,
    fakes,
    group_of,
    names,
    views,
)
from tests.engine.helpers_tasks import WAYS_TO_CANCEL, Cancellable
from toolkeep.errors import ServerUnavailable
from toolkeep.events import ServerAdded, ServerLost

pytestmark = pytest.mark.requirement("G5")


@pytest.mark.parametrize("how", WAYS_TO_CANCEL)
@pytest.mark.parametrize("parallel", [True, False])
async def test_a_cancelled_opening_is_undone_and_says_that_it_was_cancelled(
    how: str, parallel: bool
):
    servers = fakes("fine", "hangs", "fails")
    group = group_of(servers, connect_timeout=LONG, parallel=parallel, backoff=QUICK)
    opening = Cancellable(how, group.connect_all)
    async with asyncio.timeout(BOUND):
        await servers[1].connecting.wait()
        opening.cancel()
        assert await opening.surfaced() == "cancelled"
        await group.cleanup_all()
    assert views(group) == ("", "", "")
    assert not any(server.is_open for server in servers)
    assert all(server.did("cleaned") == server.did("connect") for server in servers)


async def test_a_cancelled_opening_leaves_those_alone_that_were_open():
    servers = fakes("fine", "fine")
    async with group_of(servers, connect_timeout=LONG) as group, asyncio.timeout(BOUND):
        late = Fake("c", "hangs")
        adding = Cancellable("task", lambda: group.add(late))
        await late.connecting.wait()
        adding.cancel()
        assert await adding.surfaced() == "cancelled"
        assert (group.configured, views(group)) == (servers, ("ab", "", "ab"))
        assert [server.did("cleanup") for server in servers] == [0, 0]
        assert late.did("cleaned") == 1


@pytest.mark.parametrize("steps", range(12))
async def test_an_opening_may_be_cancelled_at_every_step(steps: int):
    servers = fakes("fine", "fails")
    group = group_of(servers)
    opening = asyncio.create_task(group.connect_all())
    for _ in range(steps):
        await asyncio.sleep(0)
    was_running = opening.cancel()
    await asyncio.wait((opening,), timeout=BOUND)
    assert opening.cancelled() == was_running
    if was_running:
        assert views(group) == ("", "", "")
    await group.cleanup_all()
    assert all(server.did("cleanup") == server.did("connect") for server in servers)
    assert [server.misused for server in servers] == [[], []]


@pytest.mark.requirement("G3")
async def test_who_was_closed_for_a_rebuild_that_was_cancelled_comes_back_by_itself():
    servers = fakes("fine", "fine")
    servers[1].parting = "hangs"
    async with group_of(servers, cleanup_timeout=LONG) as group, asyncio.timeout(BOUND):
        heard = Heard(group)
        rebuilding = asyncio.create_task(group.reconnect(failed_only=False))
        await servers[1].cleaning.wait()
        servers[0].manner = "hangs"
        servers[0].go = asyncio.Event()
        rebuilding.cancel()
        servers[1].go.set()
        await asyncio.wait((rebuilding,), timeout=BOUND)
        assert rebuilding.cancelled()
        assert "a" not in names(group.connected)
        servers[0].go.set()
        await heard.until(lambda: views(group) == ("ab", "", "ab"))


@pytest.mark.parametrize("how", WAYS_TO_CANCEL)
@pytest.mark.parametrize("what", ["connect_all", "reconnect", "cleanup_all"])
async def test_cancellation_while_waiting_for_ones_turn_is_not_swallowed(how: str, what: str):
    servers = fakes("fine", "hangs")
    group = group_of(servers, cleanup_timeout=LONG)
    servers[1].parting = "hangs"
    async with asyncio.timeout(BOUND):
        first = asyncio.create_task(group.connect_all())
        await servers[1].cleaning.wait()
        await first
        closing = asyncio.create_task(group.cleanup_all())
        waiting = Cancellable(how, getattr(group, what))
        await asyncio.sleep(0)
        waiting.cancel()
        assert await waiting.surfaced() == "cancelled"
        servers[1].go.set()
        await closing
    assert views(group) == ("", "", "")


@pytest.mark.parametrize("how", WAYS_TO_CANCEL)
async def test_a_cancelled_closing_goes_on_to_its_end(how: str):
    servers = fakes("fine", "fine")
    servers[1].parting = "hangs"
    group = group_of(servers, cleanup_timeout=LONG)
    await group.connect_all()
    closing = Cancellable(how, group.cleanup_all)
    async with asyncio.timeout(BOUND):
        await servers[1].cleaning.wait()
        closing.cancel()
        assert await closing.surfaced() == "cancelled"
        servers[1].go.set()
        await servers[0].cleaning.wait()
        await group.cleanup_all()
    assert views(group) == ("", "", "")
    assert [server.did("cleanup") for server in servers] == [1, 1]


async def test_a_body_that_is_cancelled_at_every_await_still_closes_its_group():
    servers = fakes("fine", "fine")
    group = group_of(servers)
    with anyio.CancelScope() as scope:
        async with group:
            scope.cancel()
            await anyio.sleep(LONG)
    assert scope.cancelled_caught
    await group.cleanup_all()
    assert [server.did("cleaned") for server in servers] == [1, 1]


@pytest.mark.parametrize("strict", [False, True])
async def test_closing_does_not_wait_for_an_opening_but_has_it_undone(strict: bool):
    servers = fakes("fine", "hangs")
    group = group_of(servers, connect_timeout=LONG, strict=strict)
    opening = asyncio.create_task(group.connect_all())
    queued = asyncio.create_task(group.reconnect(failed_only=False))
    async with asyncio.timeout(BOUND):
        await servers[1].connecting.wait()
        await group.cleanup_all()
        for task in (opening, queued):
            if strict:
                with pytest.raises(ServerUnavailable):
                    await task
            else:
                await task
    assert views(group) == ("", "", "")
    assert [server.did("cleaned") for server in servers] == [1, 1]
    assert [server.did("connect") for server in servers] == [1, 1]


# -- cancellations that nobody asked for --------------------------------------------------------


@pytest.mark.parametrize("phase", ["connect", "cleanup"])
async def test_a_librarys_own_cancellation_is_raised_where_that_is_wanted(phase: str):
    servers = fakes("fine", "fine")
    group = group_of(servers, suppress_cancelled=False)
    setattr(servers[1], "manner" if phase == "connect" else "parting", "astray")

    async def use() -> None:
        async with group:
            assert phase == "cleanup"

    task = asyncio.create_task(use())
    await asyncio.wait((task,), timeout=BOUND)
    assert task.cancelled()
    assert views(group) == ("", "", "")
    assert [server.did("cleaned") for server in servers] == [1, 1]


class Leaky(Fake):
    """Leaves a task group open in the task that connects it, as transports of the SDK do."""

    async def connect(self) -> None:
        await super().connect()
        self.breaks = asyncio.Event()
        self._tasks: Any = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._work)

    async def _work(self) -> None:
        await self.breaks.wait()
        raise Broken("the transport")

    async def cleanup(self) -> None:
        """Raises what the transport raised, once: an exit stack is empty then."""
        await super().cleanup()
        tasks, self._tasks = self._tasks, None
        self.is_unclean = tasks is not None
        if tasks is not None:
            tasks.cancel_scope.cancel()
            await tasks.__aexit__(None, None, None)
            self.is_unclean = False


@pytest.mark.requirement("G2", "G4")
async def test_a_transport_that_cancels_its_owner_costs_one_connection_and_nobody_else():
    servers: list[Any] = [Fake("a"), Leaky("b")]
    group = group_of(servers, backoff=QUICK)
    async with group:
        heard = Heard(group)
        for joins in (1, 2):
            servers[1].breaks.set()
            await heard.until(lambda joins=joins: len(heard.of(ServerAdded)) == joins)
        # Its cleanup is cancelled, too, and fails once more, outside of its task.
        lost = [type(event.error) for event in heard.of(ServerLost)]
        assert lost == [ServerUnavailable, RuntimeError] * 2
        assert servers[1].did("connect") == 3
        assert views(group) == ("ab", "", "ab")
        assert servers[0].did("cleanup") == 0
    assert servers[1].misused == []


async def test_what_ends_the_program_is_raised_when_all_others_are_closed():
    servers = fakes("fine", "fine", "fine")
    servers[1].parting = "fatal"
    group = group_of(servers)
    await group.connect_all()
    with pytest.raises(Fatal):
        await group.cleanup_all()
    assert [server.did("cleaned") for server in servers] == [1, 1, 1]
    assert views(group) == ("", "", "")
