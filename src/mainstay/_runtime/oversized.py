"""Results that are larger than whoever called wants to read at once.

By the server's configuration such a result is an error that holds it, or as much of it as fits and
says so, or it is set aside here and read in parts. What is set aside is its caller's alone, and is
kept for a while, within a bound: the oldest makes room. Nothing of it is altered.
"""

from __future__ import annotations

import json
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, cast

from mainstay.config import ServerSpec
from mainstay.errors import NotOffered, ResultTooLarge
from mainstay.results import CallResult

MOST = 64 * 1024 * 1024
"""Characters that are set aside, of all results together."""
KEPT = 600.0
"""Seconds."""
PART = 20_000
"""Characters of a part, if nothing else is said."""
_FIRST = 500
"""Characters that are shown of what was set aside."""
_MARK = "mainstay/oversized"


@dataclass(frozen=True, slots=True)
class ResultPart:
    """Some of a result that was set aside."""

    text: str
    start: int
    total: int
    """Characters of the whole."""

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def is_last(self) -> bool:
        return self.end >= self.total


@dataclass(frozen=True, slots=True)
class Aside:
    server: str
    owner: str | None
    text: str
    until: float


class Spill:
    """One for each runtime."""

    def __init__(self, most: int = MOST) -> None:
        self._kept: OrderedDict[str, Aside] = OrderedDict()
        self._most, self._size = most, 0

    def put(self, server: str, owner: str | None, text: str) -> str:
        """Its handle."""
        handle = f"result-{secrets.token_hex(16)}"
        self._kept[handle] = Aside(server, owner, text, monotonic() + KEPT)
        self._size += len(text)
        while self._kept and (self._size > self._most or self._oldest.until < monotonic()):
            self._size -= len(self._kept.popitem(last=False)[1].text)
        return handle

    def get(self, handle: str) -> Aside:
        """Raises `NotOffered` for what is not there, or not any more."""
        found = self._kept.get(handle)
        if found is None or found.until < monotonic():
            raise gone(handle)
        return found

    def clear(self) -> None:
        self._kept.clear()
        self._size = 0

    @property
    def _oldest(self) -> Aside:
        return next(iter(self._kept.values()))


def gone(handle: str) -> NotOffered:
    return NotOffered(
        f"there is no result {handle[:80]!r}, or not any more: they are kept for {KEPT / 60:g}"
        " minutes, for whoever made the call. Call the tool again, and ask for less"
    )


def part(found: Aside, start: int, length: int) -> ResultPart:
    begin = min(max(start, 0), len(found.text))
    return ResultPart(found.text[begin : begin + max(length, 1)], begin, len(found.text))


def fitted(result: CallResult, spec: ServerSpec, spill: Spill, owner: str | None) -> CallResult:
    """The result as it is handed on."""
    limit = spec.result_limit
    if limit is None or (size := size_of(result.raw)) <= limit:
        return result
    match spec.oversized:
        case "truncate":
            return replace(result, raw=truncated(result.raw, limit, size))
        case "spill":
            handle = spill.put(spec.name, owner, as_text(result))
            return replace(result, raw=_pointer(result, handle, size))
        case _:
            raise ResultTooLarge(
                f"{spec.name}: {result.tool} ran, but its result has {size:,} characters, and"
                f" result_limit is {limit:,}. Ask for less, raise it, or set oversized",
                server=spec.name,
                tool=result.tool,
                attempts=result.attempts,
                result=result,
            )


def size_of(raw: Mapping[str, Any]) -> int:
    """In characters, of all that is content."""
    blocks = cast("list[Mapping[str, Any]]", raw.get("content") or [])
    size = sum(_size_of_block(block) for block in blocks)
    structured = raw.get("structuredContent")
    return size if structured is None else size + len(json.dumps(structured, ensure_ascii=False))


def as_text(result: CallResult) -> str:
    """All of it: its text where that is all there is, otherwise as JSON."""
    blocks = cast("list[Mapping[str, Any]]", result.raw.get("content") or [])
    if result.data is None and all(block.get("type") == "text" for block in blocks):
        return result.text
    return json.dumps(dict(result.raw), ensure_ascii=False)


def truncated(raw: Mapping[str, Any], limit: int, size: int) -> dict[str, Any]:
    """As many blocks as fit, the last text cut; structured content fits whole, or goes."""
    structured, room = raw.get("structuredContent"), limit
    kept: dict[str, Any] = {key: value for key, value in raw.items() if key != "structuredContent"}
    blocks = list[Mapping[str, Any]]()
    for block in cast("list[Mapping[str, Any]]", raw.get("content") or []):
        if room > 0 and block.get("type") == "text":
            block = {**block, "text": str(block.get("text", ""))[:room]}
        if (taken := _size_of_block(block)) <= room:
            blocks.append(block)
            room -= taken
    if structured is not None and len(json.dumps(structured, ensure_ascii=False)) <= room:
        kept["structuredContent"] = structured
        room -= len(json.dumps(structured, ensure_ascii=False))
    said = f"[Cut: this is {limit - room:,} of {size:,} characters. Ask for less to see the rest.]"
    kept["content"] = [*blocks, {"type": "text", "text": said}]
    kept["_meta"] = {**(raw.get("_meta") or {}), _MARK: {"characters": size, "kept": limit - room}}
    return kept


def _pointer(result: CallResult, handle: str, size: int) -> dict[str, Any]:
    text = as_text(result)
    said = (
        f"The result has {len(text):,} characters. It is kept for {KEPT / 60:g} minutes as"
        f" {handle}: read it in parts with read_result(handle, start, length). It begins:\n"
    )
    kept = {key: value for key, value in result.raw.items() if key != "structuredContent"}
    kept["content"] = [{"type": "text", "text": said + text[:_FIRST]}]
    mark = {"characters": size, "handle": handle}
    kept["_meta"] = {**(result.raw.get("_meta") or {}), _MARK: mark}
    return kept


def _size_of_block(block: Mapping[str, Any]) -> int:
    resource = block.get("resource")
    inner = _size_of_block(cast("Mapping[str, Any]", resource)) if resource else 0
    return inner + sum(len(str(block.get(key) or "")) for key in ("text", "data", "blob"))
