"""What `watch` does while it runs: hears, keeps little, and shows.

Events are written by the task that watches and not where they happen, so that a reader who has gone
is noticed and a slow one delays nobody. Nothing grows: the oldest events give way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json as json_
import sys
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from toolkeep.cli import columns
from toolkeep.cli.ending import DONE
from toolkeep.cli.looking_events import Teller, plain
from toolkeep.cli.looking_view import HEADS, dict_of, picture, row_of
from toolkeep.cli.place import Place, opened
from toolkeep.cli.screen import Screen
from toolkeep.cli.standing import standings, tell_troubles
from toolkeep.events import Event

if TYPE_CHECKING:
    from rich.console import RenderableType

    from toolkeep import Runtime, ServerStatus

Draw: TypeAlias = "Callable[[RenderableType], None]"

MOST = 1000
"""Events that are kept."""
BEAT = 1.0
"""Seconds after which the view is drawn again, whether or not something happened."""


async def looking(place: Place, interval: float, *, once: bool, json: bool) -> int:
    """Until Ctrl-C, which is how it is meant to end."""
    from toolkeep import Backoff

    screen = Screen(json)
    looks = opened(place, screen, live=not once, health_interval=interval, backoff=Backoff())
    with contextlib.suppress(asyncio.CancelledError):
        async with looks as runtime:
            if once:
                await _frame(runtime, screen)
            elif screen.terminal and not json:
                await _live(runtime, screen)
            else:
                await _lines(runtime, screen)
    return DONE


async def _now(runtime: Runtime) -> list[ServerStatus]:
    """With a sign of life of each: the first check of their health is yet to come."""
    took = {one.name: one.latency for one in await standings(runtime, ())}
    return [replace(one, latency=took.get(one.name)) for one in runtime.servers]


async def _frame(runtime: Runtime, screen: Screen) -> None:
    now = await _now(runtime)
    screen.give({"servers": [dict_of(one) for one in now]})
    if not screen.json:
        columns.show(screen, HEADS, [row_of(one) for one in now])
        tell_troubles(runtime, screen)
        screen.say(runtime.summary())


class Heard:
    """What has happened and was not shown yet, the oldest first."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=MOST)
        self._missed = 0
        self._news = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self._missed += len(self._events) == MOST
        self._events.append(event)
        self._news.set()

    async def wait(self, longest: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest):
                await self._news.wait()
        self._news.clear()

    def take(self) -> tuple[list[Event], int]:
        """All of them, and how many gave way."""
        taken, missed = list(self._events), self._missed
        self._events.clear()
        self._missed = 0
        return taken, missed


async def _lines(runtime: Runtime, screen: Screen) -> None:
    heard, told = Heard(), _teller(runtime)
    with contextlib.closing(runtime.observe(heard)):
        if not screen.json:
            await _frame(runtime, screen)
        for status in await _now(runtime) if screen.json else ():
            status_now = {"event": "status", **dict_of(status)}
            screen.write(json_.dumps(status_now, ensure_ascii=False) + "\n")
        while True:
            await heard.wait()
            events, missed = heard.take()
            if missed:
                screen.note(f"warning: {missed} events came too fast, and are not shown")
            for event in events:
                line = event.to_json() if screen.json else told(plain(event))
                if line is not None:
                    screen.write(f"{line}\n")


def _teller(runtime: Runtime) -> Teller:
    return Teller(status.name for status in runtime.servers)


async def _live(runtime: Runtime, screen: Screen) -> None:
    heard, told, lines = Heard(), _teller(runtime), deque[str](maxlen=MOST)
    with contextlib.closing(runtime.observe(heard)), stage(screen) as (draw, ended):
        while not ended.is_set():
            draw(picture(runtime, list(lines), screen.console.height))
            await heard.wait(BEAT)
            lines.extend(filter(None, map(told, map(plain, heard.take()[0]))))
    screen.say(runtime.summary())


@contextlib.contextmanager
def stage(screen: Screen) -> Generator[tuple[Draw, asyncio.Event]]:
    """The whole terminal, given back at the end. The event is set once somebody presses q."""
    from rich.live import Live

    ended = asyncio.Event()
    with _keys(ended.set), Live(console=screen.console, screen=True, auto_refresh=False) as live:
        yield lambda what: live.update(what, refresh=True), ended


@contextlib.contextmanager
def _keys(end: Callable[[], None]) -> Generator[None]:
    """q ends it, where a terminal tells of single keys."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    import os
    import termios
    import tty

    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(keyboard)

    def pressed() -> None:
        if b"q" in os.read(keyboard, 64):
            end()

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, pressed)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
