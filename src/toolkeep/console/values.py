"""Values of others as bounded JSON: copies that are cut to a size, and masked copies.

Everything that the console keeps or sends of arguments, results, questions and definitions passes
here. Nothing is consumed: a value that is no plain JSON (an iterator, for example) is named by its
type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

MAX_VALUE = 1024 * 1024
"""Characters of one value that are kept."""
MAX_HEAD = 64 * 1024
"""Characters that are shown of a value that is larger."""
MAX_DEPTH = 64
MAX_NODES = 50_000
MASKED_DEPTH = 4
"""Levels of a masked value; what lies deeper is counted."""

Redact = Callable[[Any], Any]
"""Takes the secrets of a server out of a JSON value."""

_PLAIN_TEXTS = {
    "type": {"text", "image", "audio", "resource", "resource_link"},
    "action": {"accept", "decline", "cancel"},
    "role": {"user", "assistant"},
}
"""Words of the protocol, which are shown in masked values."""


class _Budget:
    def __init__(self, characters: int) -> None:
        self.characters, self.nodes, self.is_spent = characters, MAX_NODES, False

    def take(self, characters: int) -> bool:
        self.characters -= characters + 2
        self.nodes -= 1
        self.is_spent = self.is_spent or self.characters < 0 or self.nodes < 0
        return not self.is_spent


def cut_json(value: object, limit: int = MAX_VALUE) -> tuple[Any, bool]:
    """A copy as plain JSON, with at most about `limit` characters, and whether it is cut."""
    budget = _Budget(limit)
    copied = _copy(value, budget, MAX_DEPTH)
    return copied, budget.is_spent


def _copy(value: object, budget: _Budget, depth: int) -> Any:
    match value:
        case str():
            room = max(budget.characters, 0)
            return value if budget.take(len(value)) else _cut_text(value, room)
        case None | bool() | int():
            budget.take(8)
            return value
        case float():
            budget.take(8)
            return value if math.isfinite(value) else str(value)
        case dict() | list() | tuple() | Mapping() if depth <= 0:
            budget.is_spent = True
            return "…"
        case dict() | Mapping():
            copied: dict[str, Any] = {}
            for key, item in cast("Mapping[Any, Any]", value).items():
                name = str(key)
                if not budget.take(len(name)):
                    break
                copied[name] = _copy(item, budget, depth - 1)
            return copied
        case list() | tuple():
            items: list[Any] = []
            for item in cast("list[Any]", value):
                if budget.is_spent:
                    break
                items.append(_copy(item, budget, depth - 1))
            return items
        case _:
            budget.take(16)
            return f"<{type(value).__name__}>"


def _cut_text(text: str, room: int) -> str:
    return f"{text[:room]}… ({len(text) - min(room, len(text))} more characters)"


def cut_redacted(value: object, redact: Redact, limit: int) -> tuple[Any, bool]:
    """`cut_json` of a value without secrets. Redacting recurses, so it cuts before as well; at
    twice the limit, so that no part of a secret is left at the end."""
    roomy, _ = cut_json(value, 2 * limit)
    return cut_json(redact(roomy), limit)


def cut_text(text: str, limit: int) -> str:
    return text if len(text) <= limit else _cut_text(text, limit)


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dump(value: object) -> str:
    text = _encode(value)
    # Lone surrogates are JSON, but cannot be sent as UTF-8.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class Kept:
    """One value, kept as JSON text."""

    __slots__ = ("size", "text", "truncated")

    def __init__(self, value: object) -> None:
        copied, self.truncated = cut_json(value)
        text = dump(copied)
        self.size = len(text)
        self.text = text[: 2 * MAX_HEAD] if self.truncated else text

    def shown(self, redact: Redact) -> Any:
        if self.truncated:
            return {"truncated": True, "bytes": None, "head": redact(self.text)[:MAX_HEAD]}
        return redact(json.loads(self.text))

    def masked(self) -> Any:
        if self.truncated:
            return f"object of more than {MAX_VALUE} bytes"
        return mask(json.loads(self.text))


def mask(value: Any, depth: int = MASKED_DEPTH, key: str = "") -> Any:
    """The structure of a value: each leaf is replaced by its type."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            known = value in _PLAIN_TEXTS.get(key, ())
            return value if known else f"string({len(value)})"
        case dict():
            mapping = cast("dict[str, Any]", value)
            if depth <= 0:
                return f"object({len(mapping)})"
            return {name: mask(item, depth - 1, name) for name, item in mapping.items()}
        case list():
            items = cast("list[Any]", value)
            if depth <= 0:
                return f"array({len(items)})"
            return [mask(item, depth - 1) for item in items[:100]]
        case _:
            return "unknown"
