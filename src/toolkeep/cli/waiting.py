"""A sign of life while servers are opened: on a terminal's standard error, and gone afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from toolkeep.cli.screen import Screen

PATIENCE = 0.7
"""Seconds that pass without a word: what is faster needs none."""
LONGEST = 60


@contextmanager
def waiting_for(names: Sequence[str], screen: Screen) -> Generator[Callable[[], None]]:
    """Until the block is left, or what it gives is called. In an event loop."""
    if not screen.can_redraw:
        yield lambda: None
        return
    listed = ", ".join(names)
    text = listed if len(listed) <= LONGEST else f"{len(names)} servers"
    sign = screen.side.status(f"opening {text} …")
    begun = asyncio.get_running_loop().call_later(PATIENCE, sign.start)

    def over() -> None:
        begun.cancel()
        sign.stop()

    try:
        yield over
    finally:
        over()
