"""A tool call, as its caller wants it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from toolkeep.context import CallContext
from toolkeep.results import CallResult

OnProgress = Callable[[float, float | None, str | None], Awaitable[None] | None]
"""Called with progress, total and message, in order, before the call ends."""

_MAPPINGS = ("arguments", "headers", "meta", "input_responses")


def is_duration(value: object) -> bool:
    """Whether this is a number of seconds that a clock can count."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value > 0 and (isinstance(value, float) or value <= sys.float_info.max)


@dataclass(slots=True)
class Wanted:
    """A tool call as its caller wants it. Nobody changes it; frozen, it takes four times as long
    to make."""

    name: str
    arguments: Mapping[str, Any] | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    meta: Mapping[str, Any] | None = None
    timeout: float | None = None
    on_progress: OnProgress | None = None
    input: Literal["answer", "return"] = "answer"
    input_responses: Mapping[str, Any] | None = None
    request_state: str | None = None
    context: CallContext | None = None
    """Handed on to whoever answers what the server asks."""
    settled: bool = False
    """Whether all this is checked already, and its headers have lower-case names."""
    fit: Callable[[CallResult], CallResult] | None = None
    """What is handed on of its result. May raise a `ToolkeepError` instead."""

    def _is_plain(self) -> bool:
        """Whether it is what most are: a name, and some arguments."""
        return (
            type(self.name) is str
            and (self.arguments is None or type(self.arguments) is dict)
            and self.headers is self.meta is self.timeout is None
            and self.on_progress is self.input_responses is None
            and self.input == "answer"
        )

    def problem(self) -> str:
        """What is wrong with it, whatever the tool; empty if nothing is."""
        if self._is_plain():
            return ""
        if not isinstance(cast("object", self.name), str):
            return "a tool's name is a text"
        for what in _MAPPINGS:
            given = getattr(self, what)
            if given is not None and not isinstance(given, Mapping):
                return f"its {what} are no mapping"
        if self.timeout is not None and not is_duration(self.timeout):
            return "its timeout is no positive number of seconds"
        if self.on_progress is not None and not callable(cast("object", self.on_progress)):
            return "its on_progress is no function"
        if self.input not in ("answer", "return"):
            return "its input is neither 'answer' nor 'return'"
        return ""
