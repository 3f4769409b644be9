"""Opening again for those who only listen: once at a time, and less and less often."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from tests.engine.helpers_tasks import BOUND, until
from toolkeep._client.connection_manager import Reconnector

caller: ContextVar[str] = ContextVar("caller", default="nobody")


class Door:
    """Opens when it is allowed to; counts who tries."""

    def __init__(self, fails: int = 0) -> None:
        self._fails = fails
        self.allowed, self.opened = asyncio.Event(), asyncio.Event()
        self.tries: list[str] = []
        self.pauses: list[float] = []

    async def open_again(self) -> bool:
        self.tries.append(caller.get())
        await self.allowed.wait()
        if len(self.tries) > self._fails:
            self.opened.set()
        return self.opened.is_set()

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


@asynccontextmanager
async def reviving(door: Door) -> AsyncIterator[Reconnector]:
    found = Reconnector(door.open_again, door.pause)
    async with asyncio.timeout(BOUND):
        yield found
        await found.stop()


async def test_who_is_being_revived_is_not_revived_twice_nor_on_behalf_of_whoever_noticed():
    door = Door()
    caller.set("somebody")
    async with reviving(door) as found:
        for _ in range(3):
            found.start()
        await until(lambda: bool(door.tries), "the first try")
        found.start()
        door.allowed.set()
        await door.opened.wait()
    assert door.tries == ["nobody"]


async def test_a_server_that_stays_away_is_tried_less_and_less_often():
    door = Door(fails=4)
    door.allowed.set()
    async with reviving(door) as found:
        found.start()
        await door.opened.wait()
    assert len(door.tries) == 5
    assert door.pauses[0] > 0
    assert door.pauses == sorted(door.pauses)
    assert len(door.pauses) == 4


async def test_reviving_ends_when_it_is_told_to():
    door = Door()
    async with reviving(door) as found:
        found.start()
        await until(lambda: bool(door.tries), "the first try")
        await found.stop()
        door.allowed.set()
    assert not door.opened.is_set()


async def test_a_server_that_dies_right_after_it_was_opened_is_not_opened_again_at_once():
    door = Door()
    door.allowed.set()
    async with reviving(door) as found:
        for lives in (1, 2, 3):
            door.opened.clear()
            found.start()
            await door.opened.wait()
            assert (len(door.tries), len(door.pauses)) == (lives, lives - 1)
            await found.stop()
    assert door.pauses == sorted(door.pauses)
    assert door.pauses[0] > 0
