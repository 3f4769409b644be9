"""How large is a JSON value? Counted before it is kept, so that what is kept has a bound.

About as many bytes as the value would take on the wire. In memory it takes up to thirty times as
much (numbers in a list, empty objects), so numbers and containers count more than they are long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

__all__ = ["portions", "size_of"]

PORTION = 5_000
"""Values that are counted at a time: well under a millisecond."""
EACH = 16
"""What a value counts for at least: small ones take more memory than they have characters."""


def size_of(value: Any, most: int) -> int:
    """The size of the value; when it exceeds `most`, some number above."""
    total = 0
    for portion in portions(value):
        total += portion
        if total > most:
            break
    return total


def portions(value: Any) -> Iterator[int]:
    """The sizes of the parts of the value, to be added up; between two there is time to yield."""
    waiting: list[Iterator[Any]] = [iter((value,))]
    counted = total = 0
    while waiting:
        for one in waiting[-1]:
            counted += 1
            total += EACH
            below = None
            if isinstance(one, str):
                total += len(one)
            elif isinstance(one, dict):
                total += sum(len(str(name)) + EACH for name in cast("dict[str, Any]", one))
                below = iter(cast("dict[str, Any]", one).values())
            elif isinstance(one, list):
                below = iter(cast("list[Any]", one))
            if counted >= PORTION:
                yield total
                counted = total = 0
            if below is not None:
                waiting.append(below)
                break
        else:
            waiting.pop()
    yield total
