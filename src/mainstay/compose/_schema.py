"""The JSON Schema of a plan, for whoever has a model write one.

It says what a plan looks like; whether one is sound, only the check can say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["plan_schema"]

_NAME = {
    "type": "string",
    "pattern": "^[A-Za-z0-9_-]{1,64}$",
    "description": "Unique in the plan. Later steps refer to it by this name.",
}
_REF = {
    "type": "object",
    "properties": {
        "$from": {
            "type": "string",
            "description": (
                "A path into what an earlier step gave, such as find.data.items[0].title. A step "
                "has data (structured), text and content. [*] means every element of a list."
            ),
        },
        "default": {"description": "Taken where the path leads nowhere."},
    },
    "required": ["$from"],
    "additionalProperties": False,
}
_VALUE = {"description": 'Any value. {"$from": "step.data.key"} in it refers to an earlier step.'}
_PAIR = {"type": "array", "items": _VALUE, "minItems": 2, "maxItems": 2}
_WHEN = {"$ref": "#/$defs/condition"}
_PART = {"$ref": "#/$defs/part"}
_PARTS = {"type": "array", "items": _PART, "minItems": 1}
_COUNT = {"type": "integer", "minimum": 1}


def plan_schema(tools: Iterable[str] | None = None) -> dict[str, Any]:
    """With `tools`, only these names may stand in it."""
    tool: dict[str, Any] = {"type": "string", "minLength": 1, "description": "server.tool"}
    if tools is not None:
        tool = {"enum": sorted(tools)}
    parts = [
        _object("Calls one tool.", ("name", "tool"), _step(tool)),
        _object("One after the other.", ("sequence",), {"sequence": _PARTS, "when": _WHEN}),
        _object("All at once.", ("parallel",), {"parallel": _PARTS, "when": _WHEN}),
        _object(
            "Does one part for every element of a list.",
            ("name", "for_each", "do", "limit"),
            _for_each(),
        ),
    ]
    return {
        "type": "object",
        "properties": {
            "steps": {**_PARTS, "description": "Done one after the other."},
            "siblings": {"enum": ["finish", "cancel"]},
            "at_once": _COUNT,
        },
        "required": ["steps"],
        "additionalProperties": False,
        "$defs": {"reference": _REF, "condition": _condition(), "part": {"oneOf": parts}},
    }


def _step(tool: dict[str, Any]) -> dict[str, Any]:
    fallback = _object("Goes on with this as the step's data.", ("fallback",), {"fallback": {}})
    return {
        "name": _NAME,
        "tool": tool,
        "arguments": {"type": "object", "additionalProperties": _VALUE},
        "when": _WHEN,
        "on_failure": {"anyOf": [{"enum": ["stop", "go_on"]}, fallback]},
        "timeout": {"type": "number", "exclusiveMinimum": 0, "description": "Seconds."},
    }


def _for_each() -> dict[str, Any]:
    return {
        "name": _NAME,
        "for_each": {"anyOf": [{"$ref": "#/$defs/reference"}, {"type": "array"}]},
        "do": _PART,
        "limit": {**_COUNT, "description": "More elements are refused."},
        "at_once": _COUNT,
        "item": {**_NAME, "description": "What the element is called inside. By default: item."},
        "when": _WHEN,
        "on_failure": {"enum": ["stop", "go_on"]},
    }


def _condition() -> dict[str, Any]:
    many = {"type": "array", "items": _WHEN}
    words: dict[str, Any] = {
        "exists": {"$ref": "#/$defs/reference"},
        "equals": _PAIR,
        "less": _PAIR,
        "in": _PAIR,
        "not": _WHEN,
        "all": many,
        "any": many,
    }
    return {"oneOf": [_object("", (word,), {word: held}) for word, held in words.items()]}


def _object(about: str, required: tuple[str, ...], properties: dict[str, Any]) -> dict[str, Any]:
    told = {"description": about} if about else {}
    return {
        "type": "object",
        **told,
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
