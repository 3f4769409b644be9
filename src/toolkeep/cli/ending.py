"""How a command ends: its exit code, and one sentence if it failed. Nobody is shown a traceback.

| code | |
|---|---|
| 0 | done |
| 1 | the thing failed: the server said no, the tool reported an error, nothing could be reached |
| 2 | the command cannot be carried out as it was given; nothing was sent |
| 3 | it may have run, and nobody knows: look before it is sent again |
| 130 | interrupted (Ctrl-C, SIGTERM): the server was told, sessions and programs were closed |

Who reads no more of standard output has had enough: that is the end, and 0.
An exception that is not ours is a bug of ours, and said to be one. TOOLKEEP_DEBUG=1 shows where.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import typer

from toolkeep.cli.screen import beside, nobody_reads

DONE, FAILED, USAGE, UNKNOWN, INTERRUPTED = 0, 1, 2, 3, 130

Work = Callable[[], Coroutine[Any, Any, int | None]]


class Misused(Exception):
    """The command cannot be carried out as it was given. The message names the remedy."""


def run(work: Work, *, json: bool = False) -> NoReturn:
    """Run this in an event loop, and end the command: with the code that it returns (None: 0)."""
    do(lambda: _in_a_loop(work), json=json)


def do(work: Callable[[], int | None], *, json: bool = False) -> NoReturn:
    """The same for what needs no event loop."""
    try:
        code = work() or DONE
        sys.stdout.flush()
    except BrokenPipeError:
        nobody_reads(sys.stdout)
        code = DONE
    except KeyboardInterrupt:
        code = INTERRUPTED
        # A terminal has written ^C where the cursor was.
        beside("\rinterrupted" if sys.stderr.isatty() else "interrupted")
    except typer.Exit:
        raise
    except Exception as error:
        code = _failed(error, json=json)
    raise typer.Exit(code)


def speak_plainly() -> None:
    """What the streams' encoding has no sign for is spelled out: a server may send anything."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def debugging() -> bool:
    return os.environ.get("TOOLKEEP_DEBUG", "") not in ("", "0")


def _in_a_loop(work: Work) -> int | None:
    import asyncio
    import signal

    async def cancellable() -> int | None:
        task = asyncio.current_task()
        assert task is not None
        if sys.platform != "win32":
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work()

    try:
        return asyncio.run(cancellable())  # which cancels it on the first Ctrl-C
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _failed(error: Exception, *, json: bool) -> int:
    from toolkeep.cli import failing

    if debugging():
        import traceback

        traceback.print_exception(error)
    try:
        failing.tell(error, json=json)
    except BrokenPipeError:
        nobody_reads(sys.stdout)
    return failing.code_of(error)
