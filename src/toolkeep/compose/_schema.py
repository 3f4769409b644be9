"""The JSON Schema of a plan, for whoever has a model write one.

It says what a plan looks like, as far as a schema can; whether one is sound, only the check can
say. It never refuses what `Plan.from_json` takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from toolkeep.compose._reading import MOST_AT_ONCE, MOST_ELEMENTS, MOST_SECONDS
from toolkeep.compose._refs import LONGEST, WORD

__all__ = ["plan_schema"]

_NAME = {
    "type": "string",
    "pattern": f"^{WORD.pattern}$",
    "description": "Unique in the plan. Later steps refer to it by this name.",
}
_PATH = rf'^{WORD.pattern}(\.{WORD.pattern}|\[[0-9]{{1,9}}\]|\[\*\]|\["([^"\\]|\\.)*"\])*$'
_REF = {
    "type": "object",
    "properties": {
        "$from": {
            "type": "string",
            "pattern": _PATH,
            "maxLength": LONGEST,
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
_VALUE = {"$ref": "#/$defs/value"}
_ANY_VALUE = {
    "description": 'Any value. {"$from": "step.data.key"} in it refers to an earlier step.',
    "if": {"type": "object", "required": ["$from"]},
    "then": {"$ref": "#/$defs/reference"},
    "else": {"items": _VALUE, "additionalProperties": _VALUE},
}
_PAIR = {"type": "array", "items": _VALUE, "minItems": 2, "maxItems": 2}
_WHEN = {"$ref": "#/$defs/condition"}
_MAYBE = {"anyOf": [_WHEN, {"type": "null"}]}
_PART = {"$ref": "#/$defs/part"}
_PARTS = {"type": "array", "items": _PART, "minItems": 1}


def plan_schema(tools: Iterable[str] | None = None) -> dict[str, Any]:
    """The schema of `Plan.from_json`. With `tools`, only these names may stand in it."""
    tool: dict[str, Any] = {"type": "string", "minLength": 1, "description": "server.tool"}
    if tools is not None:
        tool = {"enum": sorted(tools)}
    parts = [
        _object("Calls one tool.", ("name", "tool"), _step(tool)),
        _object("One after the other.", ("sequence",), {"sequence": _PARTS, "when": _MAYBE}),
        _object("All at once.", ("parallel",), {"parallel": _PARTS, "when": _MAYBE}),
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
            "at_once": _count(MOST_AT_ONCE),
        },
        "required": ["steps"],
        "additionalProperties": False,
        "$defs": {
            "reference": _REF,
            "value": _ANY_VALUE,
            "condition": _condition(),
            "part": {"oneOf": parts},
        },
    }


def _step(tool: dict[str, Any]) -> dict[str, Any]:
    fallback = _object("Goes on with this as the step's data.", ("fallback",), {"fallback": {}})
    return {
        "name": _NAME,
        "tool": tool,
        "arguments": {
            "type": "object",
            "properties": {"$from": False},
            "additionalProperties": _VALUE,
        },
        "when": _MAYBE,
        "on_failure": {"anyOf": [{"enum": ["stop", "go_on"]}, fallback]},
        "timeout": {
            "type": ["number", "null"],
            "exclusiveMinimum": 0,
            "maximum": MOST_SECONDS,
            "description": "Seconds.",
        },
    }


def _for_each() -> dict[str, Any]:
    a_list = {"type": "array", "items": _VALUE}
    return {
        "name": _NAME,
        "for_each": {"anyOf": [{"$ref": "#/$defs/reference"}, a_list]},
        "do": _PART,
        "limit": {**_count(MOST_ELEMENTS), "description": "More elements are refused."},
        "at_once": _count(MOST_AT_ONCE),
        "item": {**_NAME, "description": "What the element is called inside. By default: item."},
        "when": _MAYBE,
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


def _count(most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": 1, "maximum": most}


def _object(about: str, required: tuple[str, ...], properties: dict[str, Any]) -> dict[str, Any]:
    told = {"description": about} if about else {}
    return {
        "type": "object",
        **told,
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
