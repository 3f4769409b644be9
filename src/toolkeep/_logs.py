"""Keeps every log line one line: what others wrote is escaped before any handler sees it.

Names of tools, words of servers and texts of exceptions go into log lines as arguments. A line
break in one would forge a second line, and a terminal would obey its control characters. The filter
is on every logger of toolkeep's, so no caller has to think of it; a test compares the names below
with those in the code.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Mapping

LOGGERS = (
    *("adapters", "auth", "catalogue", "chat", "client", "events", "group"),
    *("results", "runtime", "server", "sessions", "state", "stores", "tools", "wire"),
)


def escaped(text: str) -> str:
    """The text with everything unprintable in it written as an escape, as in `\\n`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


class EscapeFilter(logging.Filter):
    """Lets every record pass, with its arguments and its traceback escaped."""

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args
        if isinstance(args, tuple):
            record.args = tuple(_argument(one) for one in args)
        elif isinstance(args, Mapping):
            record.args = {name: _argument(one) for name, one in args.items()}
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            record.exc_text = _traceback("".join(traceback.format_exception(*record.exc_info)))
        return True


def _argument(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    return value if text.isprintable() else escaped(text)


def _traceback(text: str) -> str:
    """Indented, because an exception's own text may have lines that look like log lines."""
    lines = re.split(r"\r\n|\n", text.rstrip("\n"))
    return "\n".join(f"  {escaped(line)}" for line in lines)


def escape_log_lines() -> None:
    """Done once, when toolkeep is imported."""
    for name in LOGGERS:
        logging.getLogger(f"toolkeep.{name}").addFilter(_FILTER)


_FILTER = EscapeFilter()
