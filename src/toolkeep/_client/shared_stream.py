"""`SharedStream`: the notifications of one legacy session that several processes use.

Servers give the stream of a session to one client at a time. One process holds it, by a lease, and
publishes what arrives; the others hear it from the store. When the holder dies, the next takes over
within seconds, and has what it may have missed listed again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from toolkeep.errors import StoreUnavailable
from toolkeep.state.shared import LEASE_TTL, SharedState, name_of

logger = logging.getLogger("toolkeep.client")

Listen = Callable[[], Awaitable[None]]
Deliver = Callable[[str, Mapping[str, Any]], None]
_MAX_UNSENT = 1000


class SharedStream:
    """One session, as one process uses it. Lives as long as its connection.

    `deliver` is called with method and parameters of what other processes received.
    """

    def __init__(self, state: SharedState, session: str, deliver: Deliver) -> None:
        self._state, self._deliver = state, deliver
        self._name = name_of("stream", session)
        self._id = uuid.uuid4().hex
        self._unsent: asyncio.Queue[bytes] | None = None
        """None: this process does not listen."""

    def publish(self, method: str, params: Mapping[str, Any]) -> None:
        """Tell the other processes what the server told this one."""
        if self._unsent is not None and not self._unsent.full():
            told = {"by": self._id, "method": method, "params": dict(params)}
            self._unsent.put_nowait(json.dumps(told).encode())

    async def listen(self, listen: Listen, on_open: Callable[[], None]) -> None:
        """Hear the notifications of the session for as long as the connection lasts. `listen` holds
        the server's stream; `on_open` is called when another process holds it."""
        self._unsent = asyncio.Queue(_MAX_UNSENT)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send(self._unsent))
            tasks.create_task(self._hear())
            await self._hold(listen, on_open)

    async def _hold(self, listen: Listen, on_open: Callable[[], None]) -> None:
        follows = False
        while True:
            try:
                async with self._state.holding(self._name) as held:
                    if held is not None:
                        await _until(listen, held.lost)
                        if not held.lost.is_set():
                            return  # the server has no such stream, or the connection is over
            except StoreUnavailable:
                if not follows:
                    await _until(listen, asyncio.Event())  # as if it were alone
                    return
            if not follows:
                follows = True
                on_open()
            await asyncio.sleep(LEASE_TTL / 3)

    async def _send(self, unsent: asyncio.Queue[bytes]) -> None:
        while True:
            message = await unsent.get()
            try:
                await self._state.ask(lambda store, sent=message: store.publish(self._name, sent))
            except StoreUnavailable:
                continue  # who takes over lists again

    async def _hear(self) -> None:
        store = self._state.store
        while store is not None:
            try:
                async with store.subscribe(self._name) as messages:
                    async for message in messages:
                        self._receive(message)
            except StoreUnavailable:
                pass
            await asyncio.sleep(LEASE_TTL / 3)

    def _receive(self, message: bytes) -> None:
        try:
            found: Any = json.loads(message)
        except (ValueError, RecursionError):
            return
        match found:
            case {"by": str(by), "method": str(method), "params": dict()} if by != self._id:
                self._deliver(method, cast("dict[str, Any]", found["params"]))
            case _:
                pass


async def _until(listen: Listen, lost: asyncio.Event) -> None:
    """Listen until that ends, or the lease is lost."""
    listening = asyncio.ensure_future(listen())
    waiting = asyncio.ensure_future(lost.wait())
    try:
        await asyncio.wait((listening, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (listening, waiting):
            task.cancel()
        await asyncio.wait((listening, waiting))
    if not listening.cancelled() and (error := listening.exception()) is not None:
        # If the connection failed, the next call finds out.
        logger.debug("a notification stream ended: %s", type(error).__name__)
