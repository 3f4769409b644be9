"""`SharedBreaker`: the breaker of one endpoint, and the hints of processes that share a store.

A process whose breaker opens, or whose probe has ended, tells the others. Before a probe it takes a
lease, so that one process probes for all. A hint may be lost, and no call waits for one: without
the store each process probes by itself.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from time import monotonic
from typing import Any

from toolkeep._rules.breaker import Breaker, BreakerHint, BreakerState
from toolkeep.config import ServerSpec
from toolkeep.errors import StoreUnavailable
from toolkeep.state.shared import SharedState, name_of


class SharedBreaker:
    """Lives as long as its endpoint. Decides nothing: `breaker` does."""

    def __init__(self, spec: ServerSpec, breaker: Breaker, state: SharedState) -> None:
        self._breaker, self._state = breaker, state
        self._is_shared = bool(spec.url)  # a program belongs to one process
        self._key = name_of("breaker", spec.name, spec.url)
        self._is_told_open = False

    @asynccontextmanager
    async def probing(self) -> AsyncGenerator[bool]:
        """In the block: whether this process may probe, because no other does."""
        async with AsyncExitStack() as stack:
            is_free = True
            if self._is_shared and self._state:
                try:
                    lease = await stack.enter_async_context(self._state.holding(self._key))
                    is_free = lease is not None
                except StoreUnavailable:
                    pass
            yield is_free

    def tell(self) -> None:
        """Tell the other processes if the breaker has opened, or closed after that."""
        is_open = self._breaker.state is BreakerState.OPEN
        news = self._state.news if self._is_shared else None
        if news is not None and (is_open or self._is_told_open):
            hint = self._breaker.hint(monotonic())
            news.announce("breaker", key=self._key, **asdict(hint))
        self._is_told_open = is_open

    def hear(self, about: Mapping[str, Any]) -> None:
        """Another process has told this about a breaker: perhaps about this one."""
        numbers: list[Any] = [about.get(name) for name in ("wait", "cooldown", "failing")]
        if about.get("key") == self._key and all(map(_is_duration, numbers)):
            self._breaker.hear(BreakerHint(*numbers), monotonic())
            self._is_told_open = self._breaker.state is BreakerState.OPEN


def _is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0
