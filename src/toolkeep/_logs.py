"""A logging filter that keeps every log record on one line.

Tool names, server messages and exception texts come from outside. A line break in one of them
would forge a second record, and a terminal would obey control characters. The filter escapes
both, on every logger in `LOGGERS`; a test compares that list with the code.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Mapping

LOGGERS = (
    *("adapters", "auth", "catalogue", "chat", "client", "console", "events", "gateway", "group"),
    *("results", "runtime", "server", "sessions", "state", "stores", "tools", "transport"),
)


def escape(text: str) -> str:
    """The text with every unprintable character written as an escape, such as `\\n`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


class EscapeFilter(logging.Filter):
    """Escapes the arguments and the traceback of every record. Drops none."""

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args
        if isinstance(args, tuple):
            record.args = tuple(_escape_argument(one) for one in args)
        elif isinstance(args, Mapping):
            record.args = {name: _escape_argument(one) for name, one in args.items()}
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            record.exc_text = _escape_traceback(
                "".join(traceback.format_exception(*record.exc_info))
            )
        return True


def _escape_argument(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    return value if text.isprintable() else escape(text)


def _escape_traceback(text: str) -> str:
    """The traceback, escaped and indented: an exception's text may look like a log line."""
    lines = re.split(r"\r\n|\n", text.rstrip("\n"))
    return "\n".join(f"  {escape(line)}" for line in lines)


_FILTER = EscapeFilter()


def escape_log_lines() -> None:
    """Add the filter to every logger in `LOGGERS`. Called once, when toolkeep is imported."""
    for name in LOGGERS:
        logging.getLogger(f"toolkeep.{name}").addFilter(_FILTER)
