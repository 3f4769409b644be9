"""What is asked in a quiet moment: whether every server serves again, whoever asks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable

from chaos.judge import CALM, Broken
from chaos.scene import NOBODY, PRINCIPALS, token
from toolkeep import CallContext, Runtime, ToolkeepError

BACK = "when the troubles are over, every server works for every user again"
GLANCE = 0.05
"""Seconds between two tries of one caller."""
_ASKING = 2
"""Principals that ask in one moment, beside nobody."""


async def recovered(
    runtime: Runtime, servers: Iterable[str], moment: int, within: float
) -> tuple[float, list[Broken]]:
    """How long it took at most, and who is not served. Whose turn it is depends on the moment."""
    turn = [PRINCIPALS[(moment * _ASKING + n) % len(PRINCIPALS)] for n in range(_ASKING)]
    asking = (
        _served(runtime, server, principal, moment, within)
        for server in servers
        for principal in (NOBODY, *turn)
    )
    ended = await asyncio.gather(*asking)
    return max(seconds for seconds, _ in ended), [found for _, found in ended if found is not None]


async def _served(
    runtime: Runtime, server: str, principal: str, moment: int, within: float
) -> tuple[float, Broken | None]:
    began = time.monotonic()
    context = None
    if principal != NOBODY:
        headers = {"authorization": token(principal, moment)}
        context = CallContext(principal=principal, headers=headers)
    arguments = {"key": f"{CALM} {moment} of {principal or 'nobody'}"}
    last = "nothing was asked"
    while (left := began + within - time.monotonic()) > 0:
        try:
            result = await runtime.call(f"{server}.look", arguments, context=context, timeout=left)
            if result.text == json.dumps(arguments):
                return time.monotonic() - began, None
            last = f"a result of somebody else's: {result.text[:200]}"
        except ToolkeepError as error:
            last = f"{type(error).__name__}: {str(error)[:200]}"
        await asyncio.sleep(GLANCE)
    who = f"{principal or 'nobody'} at {server}, after {within:.0f} s without trouble"
    return within, Broken(BACK, None, last, who)
