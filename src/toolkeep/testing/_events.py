"""Event logs: what one SSE stream has said so far, apart from who is listening.

A tool writes to its log and never to a socket, so it can go on when the stream breaks, and whoever
comes with a Last-Event-ID reads the rest from the same log.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any


def encode(message: Any) -> bytes:
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()


class EventLog:
    """One stream's messages, in order. Written by one producer, read by any number of followers."""

    __slots__ = ("_waiting", "done", "events", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[bytes] = []
        self.done = False
        self._waiting: set[asyncio.Future[None]] = set()

    def append(self, payload: bytes) -> None:
        self.events.append(payload)
        self._wake()

    def finish(self) -> None:
        self.done = True
        self._wake()

    async def beyond(self, position: int, gone: asyncio.Future[None]) -> bool:
        """Wait for an event after `position`; False when there will be none, or the follower has
        left.
        """
        while position >= len(self.events) and not self.done and not gone.done():
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(change)
            try:
                await asyncio.wait((change, gone), return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._waiting.discard(change)
        return position < len(self.events) and not gone.done()

    def event_id(self, position: int) -> str:
        """Counts from 1, so that an id is also the position to go on from, and 0 can prime a
        stream.
        """
        return f"{self.name}.{position + 1}"

    def _wake(self) -> None:
        for change in self._waiting:
            if not change.done():
                change.set_result(None)


def parse_event_id(value: str) -> tuple[str, int] | None:
    name, _, position = value.rpartition(".")
    return (name, int(position)) if name and position.isdigit() else None
