"""Results above `max_result_chars`: refused, truncated, or spooled and read in parts.

A spooled result belongs to the caller that made the call, and is kept for a limited time within
a memory bound.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Protocol, cast
from weakref import WeakValueDictionary

from toolkeep._catalogue.tool import Tool
from toolkeep._client.call import Call
from toolkeep._rules.names import model_name
from toolkeep._runtime.builtin import OwnTool, tool_result
from toolkeep.config import ServerSpec
from toolkeep.context import CallContext
from toolkeep.errors import NotOffered, ResultTooLarge
from toolkeep.results import CallResult

SPOOL_MAX_BYTES = 64 * 1024 * 1024
"""Bytes of memory for all spooled results of a runtime."""
SPOOL_TTL = 600.0
"""Seconds that a result is kept."""
PART_LENGTH = 20_000
"""Default length of a part, in characters."""
MAX_PART_LENGTH = 100_000
"""Characters that a model may read at once: reading all of it would defeat the limit."""
_PREVIEW_LENGTH = 500
"""Characters of a spooled result that the notice shows."""
READ_TOOL = "read_result"
"""The tool with which a model reads a spooled result."""
OVERSIZED_META_KEY = "toolkeep/oversized"
"""Key in the `_meta` of a result that was truncated or spooled."""


@dataclass(frozen=True, slots=True)
class ResultPart:
    """A part of a spooled result."""

    text: str
    start: int
    total: int
    """Characters of the whole result."""

    @property
    def end(self) -> int:
        """Where the next part begins."""
        return self.start + len(self.text)

    @property
    def is_last(self) -> bool:
        return self.end >= self.total


@dataclass(frozen=True, slots=True)
class SpooledResult:
    tool: Tool
    owner: str | None
    """The key of the identity that made the call."""
    text: str
    expires_at: float

    @property
    def size(self) -> int:
        """Bytes in memory: up to four per character outside of ASCII."""
        return sys.getsizeof(self.text)

    @property
    def key(self) -> tuple[str | None, str, str, str]:
        return self.owner, *self.tool.key, self.text


@dataclass(eq=False, slots=True, weakref_slot=True)
class SpoolPermit:
    """Lets the running calls of one owner spool results, until the owner is forgotten."""

    owner: str | None
    is_void: bool = False


class ResultSpool:
    """The spooled results of one runtime, in memory."""

    def __init__(self, max_bytes: int = SPOOL_MAX_BYTES) -> None:
        self._results: OrderedDict[str, SpooledResult] = OrderedDict()
        self._handles: dict[tuple[str | None, str, str, str], str] = {}
        """By owner, server, tool and text: equal results share a handle."""
        self._bytes_by_owner: dict[str | None, int] = {}
        self._permits: WeakValueDictionary[str | None, SpoolPermit] = WeakValueDictionary()
        self._max_bytes, self._size = max_bytes, 0

    def __len__(self) -> int:
        return len(self._results)

    def permit_for(self, owner: str | None) -> SpoolPermit:
        """The permit of this owner. Kept alive by the calls that hold it."""
        found = self._permits.get(owner)
        if found is None:
            found = self._permits[owner] = SpoolPermit(owner)
        return found

    def put(self, tool: Tool, owner: str | None, text: str) -> str | None:
        """Store a result and return its handle; None: it is larger than the whole spool."""
        spooled = SpooledResult(tool, owner, text, monotonic() + SPOOL_TTL)
        if spooled.size > self._max_bytes:
            return None
        handle = self._handles.get(spooled.key)
        if handle is None:
            handle = f"result-{secrets.token_hex(16)}"
        else:
            self._drop(handle)
        self._make_room(spooled.size)
        self._results[handle], self._handles[spooled.key] = spooled, handle
        self._size += spooled.size
        self._bytes_by_owner[owner] = self._bytes_by_owner.get(owner, 0) + spooled.size
        return handle

    def get(self, handle: str) -> SpooledResult:
        """Raises `NotOffered` for an unknown or expired handle."""
        self._make_room()
        found = self._results.get(handle)
        if found is None:
            raise unknown_result(handle)
        return found

    def remove_owner(self, owner: str) -> None:
        """Drop the results of this identity, and void the permit of its running calls."""
        permit = self._permits.pop(owner, None)
        if permit is not None:
            permit.is_void = True
        for handle in [
            handle for handle, spooled in self._results.items() if spooled.owner == owner
        ]:
            self._drop(handle)

    def clear(self) -> None:
        for kept in (self._results, self._handles, self._bytes_by_owner):
            kept.clear()
        self._size = 0

    def _make_room(self, size: int = 0) -> None:
        """Drop what has expired; then, for `size` more bytes, the oldest result of the largest
        owner."""
        while (
            self._results
            and (oldest := next(iter(self._results.items())))[1].expires_at < monotonic()
        ):
            self._drop(oldest[0])
        while self._size + size > self._max_bytes:
            most = max(self._bytes_by_owner, key=lambda owner: self._bytes_by_owner[owner])
            self._drop(next(handle for handle, one in self._results.items() if one.owner == most))

    def _drop(self, handle: str) -> None:
        spooled = self._results.pop(handle)
        del self._handles[spooled.key]
        self._size -= spooled.size
        self._bytes_by_owner[spooled.owner] -= spooled.size
        if not self._bytes_by_owner[spooled.owner]:
            del self._bytes_by_owner[spooled.owner]


def unknown_result(handle: str) -> NotOffered:
    return NotOffered(
        f"there is no result {handle[:80]!r}: results are kept for {SPOOL_TTL / 60:g} minutes at"
        " most, for the caller that made the call. Call the tool again, and ask for less"
    )


def read_part(found: SpooledResult, start: int, length: int) -> ResultPart:
    begin = min(max(start, 0), len(found.text))
    return ResultPart(found.text[begin : begin + max(length, 1)], begin, len(found.text))


def fit_result(
    result: CallResult, spec: ServerSpec, tool: Tool, spool: ResultSpool, permit: SpoolPermit
) -> CallResult:
    """The result as it is returned: whole, truncated or spooled. Nothing is spooled for an owner
    that was forgotten meanwhile."""
    limit = spec.max_result_chars
    if limit is None or (size := result_size(result.raw)) <= limit:
        return result
    if spec.oversized == "truncate":
        return replace(result, raw=truncate(result.raw, limit, size))
    if spec.oversized == "spool" and not permit.is_void:
        text = result_text(result)
        handle = spool.put(tool, permit.owner, text)
        if handle is not None:
            return replace(result, raw=_spooled_notice(result.raw, handle, text, size))
    raise ResultTooLarge(
        f"{spec.name}: {result.tool} ran, but its result has {size:,} characters, and"
        f" max_result_chars is {limit:,}. Ask for less, raise it, or set oversized",
        server=spec.name,
        tool=result.tool,
        attempts=result.attempts,
        result=result,
    )


def result_size(raw: Mapping[str, Any]) -> int:
    """Characters of all content. `_meta` is for programs, and is not counted."""
    size = sum(_block_size(block) for block in _content_blocks(raw))
    structured = raw.get("structuredContent")
    return size if structured is None else size + len(_to_json(structured))


def result_text(result: CallResult) -> str:
    """The result as one text: its text blocks if they hold everything, otherwise JSON."""
    if all(
        block.get("type") == "text" for block in _content_blocks(result.raw)
    ) and _text_is_complete(result):
        return result.text
    return _to_json(dict(result.raw))


def _text_is_complete(result: CallResult) -> bool:
    """Whether the text holds the structured content, if there is any. Servers repeat it as text for
    clients that do not know structured content, and the SDK (2.3) wraps values that are not
    objects."""
    data, text = result.data, result.text
    if data is None or data == {"result": text}:
        return True
    try:
        return json.loads(text) in (data, data.get("result", data))
    except (ValueError, RecursionError, AttributeError):
        return False


def truncate(raw: Mapping[str, Any], limit: int, size: int) -> dict[str, Any]:
    """As many blocks as fit, the last text cut. Structured content is kept whole or dropped."""
    structured, room = raw.get("structuredContent"), limit
    kept: dict[str, Any] = {key: value for key, value in raw.items() if key != "structuredContent"}
    blocks = list[Mapping[str, Any]]()
    for block in _content_blocks(raw):
        if room > 0 and block.get("type") == "text":
            block = {**block, "text": str(block.get("text", ""))[:room]}
        if (taken := _block_size(block)) <= room:
            blocks.append(block)
            room -= taken
    if structured is not None and len(_to_json(structured)) <= room:
        kept["structuredContent"] = structured
        room -= len(_to_json(structured))
    notice = (
        f"[Cut: this is {limit - room:,} of {size:,} characters. Ask for less to see the rest.]"
    )
    kept["content"] = [*blocks, {"type": "text", "text": notice}]
    kept["_meta"] = {
        **(raw.get("_meta") or {}),
        OVERSIZED_META_KEY: {"characters": size, "kept": limit - room},
    }
    return kept


def _spooled_notice(raw: Mapping[str, Any], handle: str, text: str, size: int) -> dict[str, Any]:
    notice = (
        f"[The result has {len(text):,} characters: too many to show. It is kept for"
        f" {SPOOL_TTL / 60:g} minutes as {handle}. If there is a tool"
        f" {model_name('toolkeep', READ_TOOL)},"
        " read it in parts with that (handle, start, length); otherwise ask for less. It begins:]\n"
    )
    kept = {key: value for key, value in raw.items() if key != "structuredContent"}
    kept["content"] = [{"type": "text", "text": notice + text[:_PREVIEW_LENGTH]}]
    mark = {"characters": size, "handle": handle, "length": len(text)}
    kept["_meta"] = {**(raw.get("_meta") or {}), OVERSIZED_META_KEY: mark}
    return kept


def _content_blocks(raw: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return cast("list[Mapping[str, Any]]", raw.get("content") or [])


def _block_size(block: Mapping[str, Any]) -> int:
    if block.get("type") == "text":
        return len(str(block.get("text") or ""))
    return len(_to_json(dict(block)))


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


_READ_RESULT = OwnTool(
    READ_TOOL,
    "Read a result that was too large to be shown, in parts. Start at 0, then continue with the"
    " `next` of each part until it is null.",
    {
        "handle": {
            "type": "string",
            "minLength": 1,
            "description": "The name that was shown in place of the result, result-….",
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
            "maximum": MAX_PART_LENGTH,
            "default": PART_LENGTH,
            "description": "How many characters to show at most.",
        },
    },
    "handle",
)


class ResultSource(Protocol):
    """What the tool reads from: a `Runtime`."""

    async def read_result(
        self,
        handle: str,
        start: int = 0,
        length: int = PART_LENGTH,
        *,
        context: CallContext | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ResultPart: ...


def result_reader(runtime: ResultSource, context: CallContext | None = None) -> list[Tool]:
    """The tool `read_result`, in a list for an adapter: `tools([*tool_search(runtime),
    *result_reader(runtime)])`.

    It acts for `context`, unless a call gives another, and works as long as the runtime.
    """
    return [_READ_RESULT.tool(ResultReaderCaller(runtime), context)]


class ResultReaderCaller:
    """Runs the calls of the tool. Holds only the runtime."""

    def __init__(self, runtime: ResultSource) -> None:
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
        given = _READ_RESULT.check_arguments(arguments)
        return await _READ_RESULT.run_within(timeout, self._read(given, context, headers))

    def stream(
        self,
        name: Any,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        **options: Any,
    ) -> Call:
        return _READ_RESULT.as_call(lambda: self.call(name, arguments, context=context, **options))

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
            return tool_result(
                READ_TOOL, f"{str(error)[:1].upper()}{str(error)[1:]}.", is_error=True
            )
        following = None if part.is_last else part.end
        data = {"start": part.start, "total": part.total, "next": following, "text": part.text}
        where = f"[Characters {part.start:,} to {part.end:,} of {part.total:,}"
        more = "; that is all.]" if following is None else f"; continue with start={following}.]"
        return tool_result(READ_TOOL, f"{where}{more}\n{part.text}", data, monotonic() - began)
