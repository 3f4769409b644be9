"""Reports that came and were not read yet, within one budget of bytes.

Progress and log lines are reports: when more of them wait than the budget allows, the oldest go,
since the newest say the most. Whatever else waits (an answer, a question, the end) is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from toolkeep._rules.size import size_of

__all__ = ["MOST_UNREAD", "Unread", "size_of_report"]

MOST_UNREAD = 8 * 1024 * 1024
"""Bytes of reports that wait in one place: our choice. About 10,000 short ones."""

EACH_REPORT = 800
"""What a report takes in memory beside its contents."""

Item = TypeVar("Item")


class Unread(Generic[Item]):
    """In the order in which they came. `size` tells a report's bytes; None: to be kept."""

    def __init__(self, size: Callable[[Item], int | None], most: int = MOST_UNREAD) -> None:
        self._size, self._left = size, most
        self._waiting: deque[tuple[Item, int | None]] = deque()
        self.dropped = 0
        """How many are no longer there."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def append(self, item: Item) -> None:
        size = self._size(item)
        self._waiting.append((item, size))
        self._left -= size or 0
        while self._left < 0:
            self._drop_oldest()

    def popleft(self) -> Item:
        item, size = self._waiting.popleft()
        self._left += size or 0
        return item

    def _drop_oldest(self) -> None:
        place = next(at for at, (_, size) in enumerate(self._waiting) if size)
        self._left += self._waiting[place][1] or 0
        del self._waiting[place]
        self.dropped += 1


def size_of_report(report: object) -> int | None:
    """Of an event: what has a message or data of the server's is a report."""
    held = getattr(report, "message", None), getattr(report, "data", None)
    if not hasattr(report, "message") and not hasattr(report, "data"):
        return None
    return EACH_REPORT + size_of(list(held), MOST_UNREAD)
