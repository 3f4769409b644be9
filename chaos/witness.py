"""Hears all that a runtime tells the world: events, log lines, warnings, and errors that nobody
was there to catch. Finds what is wrong with them, and how long the event loop stood still.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
import warnings
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from chaos.judge import HUSHED, Broken
from chaos.scene import SECRET
from toolkeep.events import CallEvent, Event, Started

ONE_END = "a call has one beginning and one end among the events, and nothing after"
CAUGHT = "no background task fails unseen"
_TELLING = (ResourceWarning, RuntimeWarning)
"""A socket that nobody closed; a coroutine that nobody awaited."""
_TICK = 0.05
_MOST = 20
"""Findings of one kind; more would say nothing more."""


class Witness(logging.Handler):
    """An observer of one runtime at a time, and a handler of toolkeep's log."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lag = self.work = 0.0
        """Seconds that the event loop stood still at most; and that it worked at most without a
        pause: the rest of the former is the machine's.
        """
        self._stalls: deque[tuple[float, float]] = deque(maxlen=1_000)
        """When it last stood still, from and to."""
        self._expected = math.inf
        """When it is looked at next."""
        self._running: set[str] = set()
        self._ended: set[str] = set()
        self._broken: list[Broken] = []

    def __call__(self, event: Event) -> None:
        self._look_for_secrets(event.to_json())
        self._look_for_secrets(repr(event))
        if not isinstance(event, CallEvent) or not event.call_id:
            return
        if event.call_id in self._ended or (
            isinstance(event, Started) and event.call_id in self._running
        ):
            self._accuse(ONE_END, f"{event.kind} of {event.call_id}, which had it already")
        self._running.add(event.call_id)
        if event.is_final:
            self._running.discard(event.call_id)
            self._ended.add(event.call_id)

    def emit(self, record: logging.LogRecord) -> None:
        self._look_for_secrets(self.format(record))

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """To everything but events. Nobody else has to read the log: it is full of troubles that
        were ordered.
        """
        log, loop = logging.getLogger("toolkeep"), asyncio.get_running_loop()
        handed_on, log.propagate = log.propagate, False
        level = log.level
        log.setLevel(logging.DEBUG)
        log.addHandler(self)
        loop.set_exception_handler(self._on_uncaught)
        ticking = asyncio.create_task(self._tick())
        try:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                yield
            for warning in heard:
                if issubclass(warning.category, _TELLING):
                    self._accuse(CAUGHT, f"{warning.category.__name__}: {warning.message}")
        finally:
            ticking.cancel()
            loop.set_exception_handler(None)
            log.removeHandler(self)
            log.propagate = handed_on
            log.setLevel(level)

    def _on_uncaught(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._accuse(CAUGHT, f"{context.get('message')}: {context.get('exception')!r}"[:500])

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._expected, worked = loop.time() + _TICK, time.thread_time()
            await asyncio.sleep(_TICK)
            now = loop.time()
            self._stalls.append((self._expected, now))
            self.lag = max(self.lag, now - self._expected)
            self.work = max(self.work, time.thread_time() - worked)

    def stood_since(self, when: float) -> float:
        """Seconds in which the event loop stood still since then, until now."""
        now = asyncio.get_running_loop().time()
        stalls = itertools.takewhile(
            lambda stall: stall[1] > when,
            itertools.chain([(self._expected, now)], reversed(self._stalls)),
        )
        return sum(max(0.0, end - max(begin, when)) for begin, end in stalls)

    def findings(self, *, quiet: bool) -> list[Broken]:
        """Since the last time. When it is quiet, every call has had its end."""
        if quiet:
            for call in self._running:
                self._accuse(ONE_END, f"{call} began, and has no end")
            self._running.clear()
        self._ended.clear()
        found, self._broken = self._broken, []
        return found

    def _look_for_secrets(self, text: str) -> None:
        if (place := text.find(SECRET)) >= 0:
            self._accuse(HUSHED, text[max(0, place - 200) : place + 100])

    def _accuse(self, invariant: str, evidence: str) -> None:
        if sum(broken.invariant == invariant for broken in self._broken) < _MOST:
            self._broken.append(Broken(invariant, None, evidence, "what a witness heard"))
