"""Asking one member for signs of life, again and again, for as long as it is connected.

A check asks on the session there is. The first one comes at a random moment of the interval, so
that fifty servers that were opened together are not asked together.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Never, cast

from toolkeep._rules.budget import Backoff
from toolkeep._rules.membership import Health, health_after, wait_for_check
from toolkeep._wire.cancelling import cancellations, is_cancelled

Ping = Callable[[], Awaitable[Any]]

check_within: ContextVar[float | None] = ContextVar("toolkeep_check_within", default=None)
"""Seconds that a ping may take in this check; None: as long as a call. A client that knows it can
tell a session that does not answer from a check that was cancelled."""
_OWN_SHARE = 0.9
"""Of a check's time. The rest is for what the client does about a ping without an answer."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What one check found."""

    health: Health
    error: BaseException | None = None
    latency: float | None = None


async def watch(
    ping: Ping,
    interval: float,
    within: float,
    backoff: Backoff,
    tell: Callable[[Beat], None],
    doubted: asyncio.Event,
) -> Never:
    """Check until cancelled; soon after it is `doubted` that the server can be used."""
    misses, wait = 0, interval * random.random()
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await doubted.wait()
                await asyncio.sleep(backoff.delay(1, random.random()))
        doubted.clear()
        beat = await check(ping, within)
        misses = misses + 1 if beat.health is Health.DOWN else 0
        tell(beat)
        wait = wait_for_check(
            beat.health, misses, backoff, interval=interval, jitter=random.random()
        )


async def check(ping: Ping, within: float) -> Beat:
    clock, before = asyncio.get_running_loop().time, cancellations()
    started = clock()
    token = check_within.set(within * _OWN_SHARE)
    try:
        async with asyncio.timeout(within):
            said = await ping()
    except asyncio.CancelledError as error:
        if is_cancelled(before):
            raise
        return Beat(Health.DOWN, error)
    except Exception as error:
        return Beat(health_after(error), error, None)
    finally:
        check_within.reset(token)
    took = said if isinstance(said, float) else clock() - started
    return Beat(Health.HEALTHY, latency=took)


def ping_of(server: object) -> Ping | None:
    ping = getattr(server, "ping", None)
    return cast("Ping", ping) if callable(ping) else None
