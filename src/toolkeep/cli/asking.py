"""A question to the person at the terminal, on standard error, so that output stays output.

The event loop goes on meanwhile, and Ctrl-C works: nobody waits in a thread that cannot be left.
"""

from __future__ import annotations

import asyncio
import sys


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
