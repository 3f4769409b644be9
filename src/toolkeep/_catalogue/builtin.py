"""`builtin`: plain Python functions as a server of the catalogue, with two that come with it.

It is a `ServerSpec` like any other, so its tools are called, filtered, tagged and replaced like
those of any other server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from pydantic import Field

from toolkeep.config import ServerSpec
from toolkeep.config.functions import ToolFunction, as_tools, tool

__all__ = ["NAME", "ToolFunction", "builtin", "chat_log", "echo", "tool"]

NAME = "builtin"
LONGEST_LINE = 10_000
"""Characters of what a model may write into a log at once."""

logger = logging.getLogger("toolkeep.chat")

Level = Literal["debug", "info", "warning", "error"]


def builtin(functions: Iterable[Callable[..., Any]] = ()) -> ServerSpec:
    """The server `builtin`: `echo`, `chat_log`, and these functions, sync or async, with typed
    parameters. One with the name of ours takes its place. For a name, hints or tags of its own
    give `tool(function, …)`. What cannot be a tool is a `ConfigError`.
    """
    given = as_tools(functions)
    taken = {one.name for one in given}
    ours = tuple(one for one in _OURS if one.name not in taken)
    return ServerSpec(name=NAME, server=(*ours, *given))


async def echo(text: Annotated[str, Field(description="What to give back.")]) -> str:
    """Give a text back, unchanged."""
    return text


def chat_log(
    message: Annotated[str, Field(description="What to write.")],
    level: Annotated[Level, Field(description="How grave it is.")] = "info",
) -> str:
    """Write a line into the log of the program that runs this chat, and give back what was
    written."""
    line = _one_line(message)
    logger.log(logging.getLevelNamesMapping()[level.upper()], "%s", line)
    return line


def _one_line(message: str) -> str:
    """A model's words can hold what a log's reader, or a terminal, would take for more lines."""
    cut = message if len(message) <= LONGEST_LINE else f"{message[:LONGEST_LINE]}…"
    if cut.isprintable():
        return cut
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in cut)


_OURS = (
    tool(echo, read_only=True, idempotent=True, destructive=False, open_world=False),
    tool(chat_log, read_only=False, destructive=False, open_world=False),
)
