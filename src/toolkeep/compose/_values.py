"""What a step gives to the steps after it.

- `data`: the structured content; of a tool without any, its text read as JSON, if that is an object
  or a list. Otherwise there is none.
- `text`: the text blocks, joined by newlines.
- `content`: all blocks, as the server sent them.

A fan-out gives a list: for every element an object with what its steps gave, by their names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from toolkeep.compose._refs import NOTHING, Ref, follow
from toolkeep.results import CallResult

__all__ = ["Nowhere", "given_by", "given_instead", "known", "resolved"]


def given_by(result: CallResult) -> dict[str, Any]:
    given = {"text": result.text, "content": list(result.raw.get("content") or [])}
    data = _parsed(result.text) if result.data is None else result.data
    return given if data is NOTHING else {"data": data, **given}


def given_instead(value: Any) -> dict[str, Any]:
    """What a step gives that failed and has a fallback."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {"data": value, "text": text, "content": []}


def _parsed(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return NOTHING
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return NOTHING


# -- references in place --------------------------------------------------------------------------


class Nowhere(Exception):
    """A reference that leads nowhere, and has no default."""


def resolved(value: Any, values: Mapping[str, Any]) -> Any:
    """The value with what its references lead to. Raises `Nowhere`."""
    match value:
        case Ref():
            found = follow(values, (value.step, *value.path))
            found = value.default if found is NOTHING else found
            if found is NOTHING:
                raise Nowhere(f"{value} leads nowhere")
            return found
        case Mapping():
            items = cast("Mapping[str, Any]", value).items()
            return {key: resolved(one, values) for key, one in items}
        case list():
            return [resolved(one, values) for one in cast("list[Any]", value)]
        case _:
            return value


def known(value: Any, values: Mapping[str, Any]) -> Any:
    """The same; NOTHING, if any of its references leads nowhere."""
    try:
        return resolved(value, values)
    except Nowhere:
        return NOTHING
