"""`News`: what the processes of a fleet tell each other, such as that a principal was forgotten.

A log holds it, and messages say that there is more to read: messages may be lost, so the log is
also read every few seconds. That also finds out whether the store is down, and when it is back.
Hints, which may be lost, are messages only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from typing import Any, cast

from toolkeep.errors import StoreUnavailable
from toolkeep.state.shared import COOLDOWN, SharedState

logger = logging.getLogger("toolkeep.state")

LOG = "toolkeep:news"
MAX_ENTRIES = 1000
TTL = 86_400.0
POLL = 5.0
"""Seconds after which a message that was lost is noticed."""

MAX_UNSENT = 100

Told = Callable[[str, Mapping[str, Any]], Awaitable[None]]


class News:
    """Tells the other processes, and calls `told` with what they tell, from `start` to `stop`."""

    def __init__(self, state: SharedState, told: Told) -> None:
        self._state, self._told = state, told
        self._id = uuid.uuid4().hex
        self._after: int | None = None
        """The last entry that was read; None: none yet."""
        self._make_queues()
        self._tasks: list[asyncio.Task[None]] = []

    def _make_queues(self) -> None:
        self._more = asyncio.Event()
        self._unsent: asyncio.Queue[bytes] = asyncio.Queue(MAX_UNSENT)

    async def start(self) -> None:
        """What was told before is not news."""
        if self._state and not self._tasks:
            self._make_queues()  # they belong to the event loop
            await self._read_log()
            create = asyncio.get_running_loop().create_task
            work = self._read, self._listen, self._send
            self._tasks = [create(one(), context=Context()) for one in work]
            self._state.news = self

    async def stop(self) -> None:
        self._state.news = None
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def detach(self) -> None:
        """The event loop is gone, and the tasks with it."""
        self._state.news = None
        self._tasks = []

    async def tell(self, what: str, **about: Any) -> None:
        """Raises `StoreUnavailable`."""
        entry = json.dumps({"by": self._id, "what": what, **about}).encode()
        await self._state.ask(
            lambda store: store.append(LOG, entry, max_entries=MAX_ENTRIES, ttl=TTL)
        )
        await self._state.ask(lambda store: store.publish(LOG, b""))

    def announce(self, what: str, **about: Any) -> None:
        """Tell those who listen now, soon. Dropped if there are too many."""
        if not self._unsent.full():
            hint = {"by": self._id, "what": what, **about}
            self._unsent.put_nowait(json.dumps(hint).encode())

    async def _send(self) -> None:
        while True:
            hint = await self._unsent.get()
            with contextlib.suppress(StoreUnavailable):
                await self._state.ask(lambda store, sent=hint: store.publish(LOG, sent))

    async def _read(self) -> None:
        while True:
            status = self._state.status
            pause = POLL if status is None or status.available else COOLDOWN
            try:
                async with asyncio.timeout(pause):
                    await self._more.wait()
            except TimeoutError:
                pass
            self._more.clear()
            await self._read_log()

    async def _read_log(self) -> None:
        """Read what is new; at the first time, only where the log ends."""
        first, after = self._after is None, self._after or 0
        try:
            while found := await self._state.ask(
                lambda store, after=after: store.read(LOG, after, limit=MAX_ENTRIES)
            ):
                after = found[-1][0]
                for _, entry in () if first else found:
                    await self._tell(entry)
            self._after = after
        except StoreUnavailable:
            self._after = None if first else after

    async def _tell(self, entry: bytes) -> None:
        try:
            found: Any = json.loads(entry)
            if isinstance(found, dict):
                about = cast("dict[str, Any]", found)
                if about.get("by") != self._id:
                    await self._told(str(about.get("what")), about)
        except (ValueError, RecursionError):
            logger.warning("an entry of %s is not ours; it is skipped", LOG)
        except Exception:
            logger.exception("what another process told could not be applied")

    async def _listen(self) -> None:
        while True:
            try:
                store = self._state.store
                assert store is not None
                async with store.subscribe(LOG) as messages:
                    self._more.set()  # what was told before this is not delivered
                    async for hint in messages:
                        if hint:
                            await self._tell(hint)
                        else:
                            self._more.set()
            except Exception as error:
                logger.debug("messages of the store cannot be heard: %s", type(error).__name__)
            await asyncio.sleep(COOLDOWN)
