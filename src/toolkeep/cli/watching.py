"""A call that is watched: its progress as a bar, what it logs above it; and its questions.

All on standard error, so that standard output has the result alone. Where standard error is no
terminal, each event is a line. A bar is full when the server says so, never because time passed.

A server may ask for something in the middle of a call. A form is asked for at the terminal, if
there is one and the form is simple; everything else is declined, and said so.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from toolkeep.cli import asking, forms
from toolkeep.cli.screen import Screen, harmless, one_line

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from toolkeep import CallEvent, InputNeeded, Progress

BAR, SIDES = 24, 20
"""Columns of the bar, and of what stands beside it: the share, the time, and gaps."""


class Watcher:
    """Of one call. Called with its events, as they happen; entered while there are any."""

    def __init__(self, screen: Screen, watching: bool) -> None:
        self._screen = screen
        self._bar: Bar | None = None
        self._moved = False
        self._with_a_bar = watching and screen.can_redraw

    @property
    def can_answer(self) -> bool:
        return asking.can_ask()

    def __enter__(self) -> Self:
        if self._with_a_bar:
            self._bar = _bar(self._screen)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.live.transient = not self._moved
            self._bar.stop()
            self._bar = None

    def __call__(self, event: CallEvent) -> None:
        from toolkeep.events import Log, Progress, Replaying

        match event:
            case Progress():
                self._progress(event)
            case Log(level=level, data=data):
                self._say(f"{level}: {data if isinstance(data, str) else _json(data)}")
            case Replaying():
                again = "at once" if event.after < 0.05 else f"in {event.after:.1f} s"
                self._say(f"attempt {event.attempt} failed ({event.failure}); again {again}")
            case _:
                pass

    async def answer(self, needed: InputNeeded) -> Any:
        """For the runtime: what the person at the terminal says. None declines."""
        if self._bar is None:
            return await forms.fill_in(needed, self._screen)
        self._bar.stop()
        try:
            return await forms.fill_in(needed, self._screen)
        finally:
            self._bar.start()

    def _progress(self, event: Progress) -> None:
        message = one_line(event.message or "")
        if self._bar is None:
            self._say(" ".join(part for part in (_share(event), message) if part))
            return
        self._moved = True
        self._bar.update(
            self._bar.task_ids[0],
            total=event.total,
            completed=event.progress,
            description=message or event.tool,
            share=_share(event),
        )

    def _say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(harmless(text))
        else:
            self._screen.note(text)


def _share(event: Progress) -> str:
    if event.fraction is not None:
        return f"{event.fraction:4.0%}"
    return f"{event.progress:g}"


def _bar(screen: Screen) -> Bar:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    # Not the whole width: what the terminal echoes of Ctrl-C (^C) must not begin a new line.
    room = max(screen.side.width - BAR - SIDES, 10)
    words = Column(no_wrap=True, overflow="ellipsis", width=room)
    bar = Progress(
        TextColumn("{task.description}", markup=False, table_column=words),
        BarColumn(bar_width=BAR),
        TextColumn("{task.fields[share]}", markup=False),
        TimeElapsedColumn(),
        console=screen.side,
    )
    bar.add_task("waiting for the first sign of progress", total=None, share="")
    return bar


def _json(data: object) -> str:
    import json

    return json.dumps(data, ensure_ascii=False, default=str)
