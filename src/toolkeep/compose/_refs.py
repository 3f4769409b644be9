"""References: what an earlier step gave, named by a path.

`find.data.items[0].title` begins with the name of a step, of a fan-out's item, or with `inputs`,
and goes on by keys, by places in lists, or by `[*]`: the same path in each element. A key that is
no plain word is written `["so"]`. That is the whole language: nothing in it computes anything.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

__all__ = ["EACH", "INPUTS", "NOTHING", "Key", "Ref", "follow", "is_word", "parse", "ref"]

LONGEST = 1_000
"""Characters of a path: our choice."""

INPUTS = "inputs"
"""The name under which a plan finds what it was started with."""

WORD = re.compile("[A-Za-z0-9_-]{1,64}")

_DECODER = json.JSONDecoder()


class Missing(enum.Enum):
    NOTHING = "nothing"


class Star(enum.Enum):
    EACH = "*"


NOTHING: Final = Missing.NOTHING
"""Where a path leads nowhere. JSON's null is something."""
EACH: Final = Star.EACH
"""In a path: the rest of it, in every element of the list here."""

Key = str | int | Literal[Star.EACH]


@dataclass(frozen=True, slots=True)
class Ref:
    """A place in what was given before. Usually made by `ref`."""

    step: str
    path: tuple[Key, ...] = ()
    default: Any = NOTHING
    """Taken where the path leads nowhere."""

    def __str__(self) -> str:
        return f"{self.step}{''.join(map(_written, self.path))}"


def ref(path: str, default: Any = NOTHING) -> Ref:
    """`ref("find.data.items[0]")`. Raises ValueError where the path cannot be read."""
    step, keys = parse(path)
    return Ref(step, keys, default)


def is_word(text: str) -> bool:
    """Whether it can be a name, and a key without quotes."""
    return WORD.fullmatch(text) is not None


def parse(text: str) -> tuple[str, tuple[Key, ...]]:
    """The name and the keys of a path. Raises ValueError."""
    if len(text) > LONGEST:
        raise ValueError(f"a path has at most {LONGEST} characters")
    step, at = _word(text, 0)
    keys: list[Key] = []
    while at < len(text):
        key, at = _key(text, at)
        keys.append(key)
    return step, tuple(keys)


def _key(text: str, at: int) -> tuple[Key, int]:
    if text[at] == ".":
        return _word(text, at + 1)
    if text[at] != "[":
        raise ValueError(f"at character {at + 1} of {text!r} there is neither a dot nor a bracket")
    if text[at + 1 : at + 2] == '"':
        key, end = _quoted(text, at + 1)
    else:
        end = text.find("]", at)
        inner = text[at + 1 : end]
        if inner != "*" and not (inner.isascii() and inner.isdigit() and len(inner) < 10):
            raise ValueError(f'in {text!r} a bracket holds no number, no "key" and no *')
        key = EACH if inner == "*" else int(inner)
    if text[end : end + 1] != "]":
        raise ValueError(f"in {text!r} a bracket is not closed")
    return key, end + 1


def _quoted(text: str, at: int) -> tuple[str, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except ValueError:
        raise ValueError(f"in {text!r} a quoted key does not end") from None


def _word(text: str, at: int) -> tuple[str, int]:
    end = at
    while end < len(text) and text[end] not in ".[":
        end += 1
    word = text[at:end]
    if not is_word(word):
        raise ValueError(f'in {text!r}, {word!r} is no name; a key with other characters is ["so"]')
    return word, end


def _written(key: Any) -> str:
    match key:
        case str():
            return f".{key}" if is_word(key) else f"[{json.dumps(key)}]"
        case int():
            return f"[{key}]"
        case Star.EACH:
            return "[*]"
        case _:  # whoever reads it says what is wrong with it
            return f"[{key!r}]"


def follow(value: Any, path: tuple[Key, ...]) -> Any:
    """What is at the end of the path, or NOTHING. Of `[*]`, what there is: a list."""
    for at, key in enumerate(path):
        if key is EACH:
            if not isinstance(value, list):
                return NOTHING
            rest = path[at + 1 :]
            found = [follow(one, rest) for one in cast("list[Any]", value)]
            return [one for one in found if one is not NOTHING]
        value = _step(value, key)
        if value is NOTHING:
            return NOTHING
    return value


def _step(value: Any, key: str | int) -> Any:
    if isinstance(key, int):
        held = cast("list[Any]", value) if isinstance(value, list) else []
        return held[key] if key < len(held) else NOTHING
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).get(key, NOTHING)
    return NOTHING
