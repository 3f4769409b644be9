"""References within a JSON Schema: which part `#/…` points to.

Nothing is fetched. What points elsewhere, or to nothing, resolves to True: the schema that accepts
everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

MAX_INDEX_DIGITS = 6


def resolve_reference(reference: Any, root: Mapping[str, Any]) -> Any:
    """The part of the schema that a `$ref` of `#` or `#/…` points to."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return True
    pointer = decode_fragment(reference[1:])
    return resolve_pointer(pointer, root) if pointer[:1] in ("", "/") else True


def resolve_pointer(pointer: str, root: Any) -> Any:
    """The part at a JSON pointer (RFC 6901): `""` for the root, else `/…`."""
    found: Any = root
    for token in pointer.split("/")[1:]:
        step = token.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = cast("Mapping[str, Any]", found).get(step, True)
        elif isinstance(found, list):
            found = _item(cast("list[Any]", found), step)
        else:
            return True
    return found


def decode_fragment(fragment: str) -> str:
    """The fragment of a reference, without percent-encoding."""

    def decoded(run: re.Match[str]) -> str:
        return bytes.fromhex(run[0].replace("%", "")).decode("utf-8", "replace")

    return re.sub(r"(?:%[0-9a-fA-F]{2})+", decoded, fragment)


def _item(items: list[Any], step: str) -> Any:
    is_index = step.isascii() and step.isdigit() and len(step) <= MAX_INDEX_DIGITS
    return items[int(step)] if is_index and int(step) < len(items) else True
