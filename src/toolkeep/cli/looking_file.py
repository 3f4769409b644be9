"""`watch --events`: the servers and calls of another process, from the events that it writes down.

    runtime.observe(lambda event: print(event.to_json(), file=events, flush=True))

The file is read from near its end, and then as it grows; when it is cut or replaced, from its
beginning. A line that is no event is passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json as json_
import os
import stat
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from toolkeep.cli import columns
from toolkeep.cli.ending import DONE, Misused
from toolkeep.cli.looking_events import Teller
from toolkeep.cli.looking_ledger import HEADS, Ledger, Running
from toolkeep.cli.looking_loop import MOST, stage
from toolkeep.cli.screen import Screen

if TYPE_CHECKING:
    from rich.console import RenderableType

LATEST = 16 * 1024 * 1024
"""Bytes before its end at which a file is begun, and the longest line."""
PAUSE = 0.2
"""Seconds between two looks at the file."""
BAR, SHOWN = 24, 10
"""Columns of a bar; calls that are shown."""


async def following(path: str, *, alone: bool, once: bool, json: bool) -> int:
    """Until Ctrl-C; `once`: as it is now."""
    if not alone:
        raise Misused("--events looks at a file, and opens no server: leave the others out")
    if json and not once:
        raise Misused("--events FILE is JSON already; --once --json adds it up")
    screen = Screen(json)
    with contextlib.closing(Growing(path)) as file, contextlib.suppress(asyncio.CancelledError):
        ledger = Ledger()
        for told in file.new():
            ledger.take(told)
        if once or not screen.terminal:
            columns.show(screen, HEADS, ledger.rows())
            screen.say(ledger.summary())
            screen.give({**ledger.as_dict(), "summary": ledger.summary()})
        if not once:
            await (_live if screen.terminal else _lines)(file, ledger, screen)
    return DONE


async def _lines(file: Growing, ledger: Ledger, screen: Screen) -> None:
    tell = Teller(ledger.servers)
    while True:
        for told in file.new():
            line = tell(told)
            if line is not None:
                screen.write(f"{line}\n")
        await asyncio.sleep(PAUSE)


async def _live(file: Growing, ledger: Ledger, screen: Screen) -> None:
    tell, lines = Teller(ledger.servers), deque[str](maxlen=MOST)
    with stage(screen) as (draw, ended):
        while not ended.is_set():
            for told in file.new():
                ledger.take(told)
                lines.extend(filter(None, (tell(told),)))
            draw(picture(ledger, list(lines), screen.console.width, screen.console.height))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), PAUSE)
    screen.say(ledger.summary())


def picture(ledger: Ledger, lines: Sequence[str], width: int, height: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    calls = list(ledger.running.values())[-SHOWN:]
    servers = columns.table(HEADS, ledger.rows(), width)
    summary = Text(f"{ledger.summary()}  ·  q ends", style="dim")
    room = max(height - len(ledger.servers) - len(calls) - 6, 0)
    last = [Text(one, no_wrap=True, overflow="ellipsis") for one in (lines[-room:] if room else ())]
    running = [_bars(calls, width), Text()] if calls else []
    return Group(servers, Text(), *running, summary, Text(), *last)


def _bars(calls: Sequence[Running], width: int) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), width=width)
    for ratio, fixed in ((1, None), (None, BAR), (None, 6), (None, 8), (1, None)):
        made.add_column(no_wrap=True, overflow="ellipsis", ratio=ratio, width=fixed)
    for one in calls:
        share = one.fraction
        bar = "" if share is None else ProgressBar(total=1.0, completed=share, width=BAR)
        took = f"{max(time.time() - one.since, 0):.0f} s"
        made.add_row(Text(f"{one.server}.{one.tool}"), bar, one.share, took, Text(one.message))
    return made


class Growing:
    """A file of lines, to which somebody else adds. Closed by who opened it."""

    def __init__(self, path: str) -> None:
        self._path, self._rest = path, b""
        self._file = self._opened()
        size = os.fstat(self._file.fileno()).st_size
        if size > LATEST:
            self._file.seek(size - LATEST)
            self._file.readline()

    def new(self) -> Iterator[dict[str, Any]]:
        """The events that were added since the last time."""
        if self._is_another():
            with contextlib.suppress(Misused):  # it will be there again, or not
                replaced = self._opened()
                self._file.close()
                self._file, self._rest = replaced, b""
        *lines, self._rest = (self._rest + self._file.read(LATEST)).split(b"\n")
        if len(self._rest) > LATEST:
            self._rest = b""
        for line in lines:
            told = _event(line)
            if told is not None:
                yield told

    def close(self) -> None:
        self._file.close()

    def _opened(self) -> BinaryIO:
        try:
            # Not blocking: a pipe that nobody writes to would be waited for.
            opener = os.open(self._path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            raise Misused(f"--events {self._path}: {error.strerror}") from None
        file = os.fdopen(opener, "rb")
        if not stat.S_ISREG(os.fstat(opener).st_mode):
            file.close()
            raise Misused(f"--events {self._path}: it is no file that can be read again")
        return file

    def _is_another(self) -> bool:
        try:
            there, ours = os.stat(self._path), os.fstat(self._file.fileno())
        except OSError:
            return False
        cut = ours.st_size < self._file.tell()
        return cut or (there.st_ino, there.st_dev) != (ours.st_ino, ours.st_dev)


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        told: object = json_.loads(line)
    except (ValueError, RecursionError):
        return None
    is_one = isinstance(told, dict) and "event" in told
    return cast("dict[str, Any]", told) if is_one else None
