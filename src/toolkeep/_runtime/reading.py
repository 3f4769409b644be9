"""One tool with which a model reads a result that was set aside: `read_result`.

For servers with `oversized = "spill"`. It shows a caller what was set aside for that caller, and to
everybody else it says that there is nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any, Protocol

from toolkeep._catalogue.tool import Tool
from toolkeep._engine.call import Call
from toolkeep._runtime.oversized import PART, READ, ResultPart
from toolkeep._runtime.own_tools import Kind, answer
from toolkeep.context import CallContext
from toolkeep.errors import NotOffered
from toolkeep.results import CallResult

__all__ = ["reading"]

LONGEST_PART = 100_000
"""Characters: a model that asks for everything at once would have what it was to be spared."""

_READ = Kind(
    READ,
    "Read a result that was too large to be shown, in parts. Begin at 0, and go on with the `next`"
    " of each part until that is null.",
    {
        "handle": {
            "type": "string",
            "minLength": 1,
            "description": "The name that was given in place of the result, result-….",
        },
        "start": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "The character to begin at.",
        },
        "length": {
            "type": "integer",
            "minimum": 1,
            "maximum": LONGEST_PART,
            "default": PART,
            "description": "How many characters to show at most.",
        },
    },
    "handle",
)


class Read(Protocol):
    """Whose results are read: a `Runtime`."""

    async def read_result(
        self,
        handle: str,
        start: int = 0,
        length: int = PART,
        *,
        context: CallContext | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ResultPart: ...


def reading(runtime: Read, context: CallContext | None = None) -> list[Tool]:
    """The tool, in a list, for an adapter: `tools([*browsing(runtime), *reading(runtime)])`.

    It speaks for `context`, unless a call says for whom, and may be kept as long as the runtime.
    """
    return [_READ.tool(Reader(runtime), context)]


class Reader:
    """The caller of it. Holds nothing but the runtime."""

    def __init__(self, runtime: Read) -> None:
        self._runtime = runtime

    async def call(
        self,
        name: Any,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> CallResult:
        given = _READ.checked(arguments)
        return await _READ.within(timeout, self._read(given, context, headers))

    def stream(
        self,
        name: Any,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> Call:
        return _READ.watched(lambda: self.call(name, arguments, context=context, **options))

    async def _read(
        self,
        given: Mapping[str, Any],
        context: CallContext | None,
        headers: Mapping[str, str] | None,
    ) -> CallResult:
        began = monotonic()
        try:
            part = await self._runtime.read_result(**given, context=context, headers=headers)
        except NotOffered as error:
            return answer(READ, f"{str(error)[:1].upper()}{str(error)[1:]}.", is_error=True)
        following = None if part.is_last else part.end
        data = {"start": part.start, "total": part.total, "next": following, "text": part.text}
        where = f"[Characters {part.start:,} to {part.end:,} of {part.total:,}"
        more = "; that is all.]" if following is None else f"; go on with start={following}.]"
        return answer(READ, f"{where}{more}\n{part.text}", data, monotonic() - began)
