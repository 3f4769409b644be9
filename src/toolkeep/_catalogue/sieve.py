"""Which items of a snapshot are kept, by a function that somebody else wrote.

Such a function may raise. Then the item is left out, because what a filter could not judge was not
let through by it; the log says so once a pass, with the first item and the type of the error. Its
message is not shown: it may quote a context, and a context holds secrets.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from toolkeep._catalogue.names import Named, short

logger = logging.getLogger("toolkeep.catalogue")

Item = TypeVar("Item", bound=Named)
Contra = TypeVar("Contra", bound=Named, contravariant=True)


class Sieve(Generic[Contra]):
    """Lives for one pass over one snapshot."""

    def __init__(self, keep: Callable[[Contra], bool]) -> None:
        self._keep = keep
        self._failed = 0
        self._first = ""

    def keeps(self, item: Contra) -> bool:
        try:
            return bool(settled(self._keep(item)))
        except Exception as error:
            self._failed += 1
            self._first = self._first or f"{short(item.name)}: {type(error).__name__}"
            return False

    def report(self) -> None:
        if self._failed:
            logger.warning(
                "a filter failed for %d items, which are left out (%s)", self._failed, self._first
            )


def settled(verdict: object) -> object:
    """The verdict, unless it is one to be awaited: a coroutine is true, and would keep all."""
    if not inspect.isawaitable(verdict):
        return verdict
    if inspect.iscoroutine(verdict):
        verdict.close()
    raise TypeError("the filter is asynchronous")


def firsts(items: Iterable[Item]) -> dict[str, Item]:
    """By full name. Of two with one name the first counts."""
    found: dict[str, Item] = {}
    for item in items:
        found.setdefault(item.name, item)
    return found
