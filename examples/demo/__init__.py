"""`make demo`: the main job, and what goes wrong in it.

Three servers are started on this machine: one of each era over HTTP, and a program. A `Runtime`
works with them while they are made to fail. Every line marked ✓ is a claim that was compared with
what the servers recorded, never with what the client thinks of itself. Exit code 0: all claims
held. Nothing outside of this machine is asked for anything.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TextIO

from examples.demo.acts import ACTS, Act
from examples.demo.claims import Claim, verdict
from examples.demo.screen import Screen, screen_for
from examples.demo.stage import LONGEST, play
from toolkeep.errors import ToolkeepError
from toolkeep.testing import PYTHON_SDK, SessionLoss

__all__ = ["ACTS", "Act", "Claim", "Screen", "main", "perform", "screen_for", "show", "verdict"]


async def perform(
    screen: Screen, acts: Sequence[Act] = ACTS, loss: SessionLoss = PYTHON_SDK
) -> list[Claim]:
    """These acts, one after the other, on servers of their own. An act that raises is a claim that
    does not hold, and the last one."""
    made: list[Claim] = []
    try:
        async with asyncio.timeout(LONGEST), play(screen, loss) as stage:
            for number, (title, act) in enumerate(acts, 1):
                screen.act(number, title)
                made += screen.claims(await act(stage))
    except (ToolkeepError, TimeoutError) as error:
        made += screen.claims([Claim("nothing went wrong but what was meant to", None, error)])
    return made


def main(loss: SessionLoss = PYTHON_SDK, out: TextIO | None = None) -> int:
    """`show` in a loop of its own."""
    return asyncio.run(show(loss, out))


async def show(loss: SessionLoss = PYTHON_SDK, out: TextIO | None = None) -> int:
    """All acts; the exit code. `loss`: how the server says that it does not know a session."""
    screen = screen_for(out or sys.stdout)
    screen.opening()
    claims = await perform(screen, loss=loss)
    screen.closing(held=sum(claim.holds for claim in claims), made=len(claims))
    return verdict(claims)
