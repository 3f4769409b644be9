"""Results that are larger than whoever called wants to read at once.

By the server's configuration such a result is an error that holds it, or as much of it as fits and
says so, or it is set aside here and read in parts. What is set aside is its caller's alone, for as
long as that may call its tool, and is kept for a while, within a bound: the oldest of whoever holds
most makes room. The same is kept once, and nothing of it is altered.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, cast
from weakref import WeakValueDictionary

from toolkeep._catalogue.tool import Tool
from toolkeep._rules.naming import model_name
from toolkeep.config import ServerSpec
from toolkeep.errors import NotOffered, ResultTooLarge
from toolkeep.results import CallResult

MOST = 64 * 1024 * 1024
"""Bytes of memory for what is set aside, of all results together."""
KEPT = 600.0
"""Seconds."""
PART = 20_000
"""Characters of a part, if nothing else is said."""
_FIRST = 500
"""Characters that are shown of what was set aside."""
READ = "read_result"
"""The tool with which a model reads on, where it was given that."""
MARK = "toolkeep/oversized"
"""In the `_meta` of a result that was cut or set aside."""


@dataclass(frozen=True, slots=True)
class ResultPart:
    """Some of a result that was set aside."""

    text: str
    start: int
    total: int
    """Characters of the whole."""

    @property
    def end(self) -> int:
        """Where the next part begins."""
        return self.start + len(self.text)

    @property
    def is_last(self) -> bool:
        return self.end >= self.total


@dataclass(frozen=True, slots=True)
class Aside:
    tool: Tool
    owner: str | None
    """The key of the identity whose call brought it."""
    text: str
    until: float

    @property
    def size(self) -> int:
        """Bytes: a text that is not plain ASCII takes up to four for a character."""
        return sys.getsizeof(self.text)

    @property
    def key(self) -> tuple[str | None, str, str, str]:
        return self.owner, *self.tool.key, self.text


@dataclass(eq=False, slots=True, weakref_slot=True)
class Claim:
    """What calls under way have to set something aside by, until their owner is forgotten."""

    owner: str | None
    is_void: bool = False


class Spill:
    """One for each runtime."""

    def __init__(self, most: int = MOST) -> None:
        self._kept: OrderedDict[str, Aside] = OrderedDict()
        self._handles: dict[tuple[str | None, str, str, str], str] = {}
        """By owner, server, tool and text: the same is kept once."""
        self._held: dict[str | None, int] = {}
        """Bytes, of each owner."""
        self._claims: WeakValueDictionary[str | None, Claim] = WeakValueDictionary()
        self._most, self._size = most, 0

    def __len__(self) -> int:
        return len(self._kept)

    def claim(self, owner: str | None) -> Claim:
        """For as long as a call is under way."""
        found = self._claims.get(owner)
        if found is None:
            found = self._claims[owner] = Claim(owner)
        return found

    def put(self, tool: Tool, owner: str | None, text: str) -> str | None:
        """Its handle; None: it is larger than all that may be kept."""
        aside = Aside(tool, owner, text, monotonic() + KEPT)
        if aside.size > self._most:
            return None
        handle = self._handles.get(aside.key)
        if handle is None:
            handle = f"result-{secrets.token_hex(16)}"
        else:
            self._drop(handle)
        self._make_room(aside.size)
        self._kept[handle], self._handles[aside.key] = aside, handle
        self._size += aside.size
        self._held[owner] = self._held.get(owner, 0) + aside.size
        return handle

    def get(self, handle: str) -> Aside:
        """Raises `NotOffered` for what is not there, or not any more."""
        self._make_room()
        found = self._kept.get(handle)
        if found is None:
            raise gone(handle)
        return found

    def forget(self, owner: str) -> None:
        """What was set aside for this identity, and what its calls under way would set aside."""
        claim = self._claims.pop(owner, None)
        if claim is not None:
            claim.is_void = True
        for handle in [handle for handle, aside in self._kept.items() if aside.owner == owner]:
            self._drop(handle)

    def clear(self) -> None:
        for kept in (self._kept, self._handles, self._held):
            kept.clear()
        self._size = 0

    def _make_room(self, size: int = 0) -> None:
        """For so many bytes more: of whoever holds most, the oldest goes."""
        while self._kept and (oldest := next(iter(self._kept.items())))[1].until < monotonic():
            self._drop(oldest[0])
        while self._size + size > self._most:
            most = max(self._held, key=lambda owner: self._held[owner])
            self._drop(next(handle for handle, one in self._kept.items() if one.owner == most))

    def _drop(self, handle: str) -> None:
        aside = self._kept.pop(handle)
        del self._handles[aside.key]
        self._size -= aside.size
        self._held[aside.owner] -= aside.size
        if not self._held[aside.owner]:
            del self._held[aside.owner]


def gone(handle: str) -> NotOffered:
    return NotOffered(
        f"there is no result {handle[:80]!r}, or not any more: they are kept for {KEPT / 60:g}"
        " minutes at most, for whoever made the call. Call the tool again, and ask for less"
    )


def part(found: Aside, start: int, length: int) -> ResultPart:
    begin = min(max(start, 0), len(found.text))
    return ResultPart(found.text[begin : begin + max(length, 1)], begin, len(found.text))


def fitted(
    result: CallResult, spec: ServerSpec, tool: Tool, spill: Spill, claim: Claim
) -> CallResult:
    """The result as it is handed on. For whoever was forgotten meanwhile nothing is set aside."""
    limit = spec.result_limit
    if limit is None or (size := size_of(result.raw)) <= limit:
        return result
    if spec.oversized == "truncate":
        return replace(result, raw=truncated(result.raw, limit, size))
    if spec.oversized == "spill" and not claim.is_void:
        text = as_text(result)
        handle = spill.put(tool, claim.owner, text)
        if handle is not None:
            return replace(result, raw=_pointer(result.raw, handle, text, size))
    raise ResultTooLarge(
        f"{spec.name}: {result.tool} ran, but its result has {size:,} characters, and result_limit"
        f" is {limit:,}. Ask for less, raise it, or set oversized",
        server=spec.name,
        tool=result.tool,
        attempts=result.attempts,
        result=result,
    )


def size_of(raw: Mapping[str, Any]) -> int:
    """In characters, of all that is content. The server's `_meta` is for programs, not counted."""
    size = sum(_size_of_block(block) for block in _blocks(raw))
    structured = raw.get("structuredContent")
    return size if structured is None else size + len(_json(structured))


def as_text(result: CallResult) -> str:
    """All of it: its text where that says everything, otherwise as JSON."""
    if all(block.get("type") == "text" for block in _blocks(result.raw)) and _says_all(result):
        return result.text
    return _json(dict(result.raw))


def _says_all(result: CallResult) -> bool:
    """Whether the structured content is none, or the same once more: servers write it as text for
    clients that know no other, and the SDK (2.3) wraps what is no object."""
    data, text = result.data, result.text
    if data is None or data == {"result": text}:
        return True
    try:
        return json.loads(text) in (data, data.get("result", data))
    except (ValueError, RecursionError, AttributeError):
        return False


def truncated(raw: Mapping[str, Any], limit: int, size: int) -> dict[str, Any]:
    """As many blocks as fit, the last text cut; structured content fits whole, or goes."""
    structured, room = raw.get("structuredContent"), limit
    kept: dict[str, Any] = {key: value for key, value in raw.items() if key != "structuredContent"}
    blocks = list[Mapping[str, Any]]()
    for block in _blocks(raw):
        if room > 0 and block.get("type") == "text":
            block = {**block, "text": str(block.get("text", ""))[:room]}
        if (taken := _size_of_block(block)) <= room:
            blocks.append(block)
            room -= taken
    if structured is not None and len(_json(structured)) <= room:
        kept["structuredContent"] = structured
        room -= len(_json(structured))
    said = f"[Cut: this is {limit - room:,} of {size:,} characters. Ask for less to see the rest.]"
    kept["content"] = [*blocks, {"type": "text", "text": said}]
    kept["_meta"] = {**(raw.get("_meta") or {}), MARK: {"characters": size, "kept": limit - room}}
    return kept


def _pointer(raw: Mapping[str, Any], handle: str, text: str, size: int) -> dict[str, Any]:
    said = (
        f"[The result has {len(text):,} characters: too many to show. It is kept for"
        f" {KEPT / 60:g} minutes as {handle}. If there is a tool {model_name('toolkeep', READ)},"
        " read it in parts with that (handle, start, length); otherwise ask for less. It begins:]\n"
    )
    kept = {key: value for key, value in raw.items() if key != "structuredContent"}
    kept["content"] = [{"type": "text", "text": said + text[:_FIRST]}]
    mark = {"characters": size, "handle": handle, "length": len(text)}
    kept["_meta"] = {**(raw.get("_meta") or {}), MARK: mark}
    return kept


def _blocks(raw: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return cast("list[Mapping[str, Any]]", raw.get("content") or [])


def _size_of_block(block: Mapping[str, Any]) -> int:
    if block.get("type") == "text":
        return len(str(block.get("text") or ""))
    return len(_json(dict(block)))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
