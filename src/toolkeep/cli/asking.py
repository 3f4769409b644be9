"""A question to the person at the terminal, on standard error, so that output stays output.

The event loop goes on meanwhile, and Ctrl-C works: nobody waits in a thread that cannot be left.
"""

from __future__ import annotations

import asyncio
import getpass
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkeep.config.draft import Input

_MOST_TRIES = 3


def can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


async def line(question: str) -> str | None:
    """What the person typed, without the line's end; None at the end of input (Ctrl-D)."""
    sys.stderr.write(question)
    sys.stderr.flush()
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        if not typed.done():
            typed.set_result(sys.stdin.readline())

    loop.add_reader(sys.stdin, read)
    try:
        text = await typed
    finally:
        loop.remove_reader(sys.stdin)
    return text.rstrip("\r\n") if text else None


async def yes(question: str) -> bool:
    """Only a clear yes is one."""
    answer = await line(f"{question} [y/N] ")
    return (answer or "").strip().lower() in ("y", "yes")


def at_terminal() -> Callable[[Input], str | None] | None:
    """Asks the person for a configuration's `${input:…}`, before anything is opened. None: there is
    no terminal to ask at."""
    return _ask if can_ask() else None


def _ask(asked: Input) -> str | None:
    """What was typed; None for nothing, which means the default. A secret is not echoed."""
    options = f" ({', '.join(asked.options)})" if asked.options else ""
    default = f" [{asked.default}]" if asked.default and not asked.password else ""
    question = f"{_plain(asked.description or asked.id)}{_plain(options + default)}: "
    for _ in range(_MOST_TRIES):
        answer = _typed(question, hidden=asked.password)
        if not answer or not asked.options or answer in asked.options:
            return answer or None
        sys.stderr.write("It is none of the options.\n")
    return None


def _typed(question: str, *, hidden: bool) -> str | None:
    try:
        with _interruptible():
            if hidden:
                return getpass.getpass(question, stream=sys.stderr)
            sys.stderr.write(question)
            sys.stderr.flush()
            return sys.stdin.readline().rstrip("\r\n")
    except EOFError:
        return None


@contextmanager
def _interruptible() -> Generator[None]:
    """Ctrl-C ends the question at once: an event loop would note it and let the reading go on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _plain(text: str) -> str:
    """What a file says is shown as it is, and obeyed by no terminal."""
    return "".join(one if one.isprintable() else "?" for one in text)
