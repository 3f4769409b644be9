"""The JSON Schema of `toolkeep.toml`, for editors: made from the models, so it cannot be stale.

It knows every key that the file may have and refuses the others, as reading it does. What is not a
text may also be one with a `${…}` in it.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from toolkeep.config.dialects.own import DEFAULTS, SERVER
from toolkeep.config.spec import TLS, ServerSpec, Timeouts
from toolkeep.config.words import WAYS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PART = "#/$defs/{model}"
_REFERENCE = {"type": "string", "pattern": r"\$\{"}
_EXPANDED = ("integer", "number", "boolean")
_NAMES = "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"


def schema() -> dict[str, Any]:
    """Draft 2020-12; a dictionary of one's own, to be written where an editor finds it."""
    made = ServerSpec.model_json_schema(ref_template=_PART, schema_generator=_Quietly)
    parts = cast("dict[str, Any]", made.pop("$defs", {}))
    fields = cast("dict[str, Any]", made["properties"])
    for model, into in ((ServerSpec, made), (Timeouts, parts["Timeouts"]), (TLS, parts["TLS"])):
        _describe(model, into["properties"])
    call = parts["Timeouts"]["properties"]["call"]
    known: dict[str, Any] = {
        **fields,
        "type": {"enum": list(WAYS)},
        "transport": {"enum": list(WAYS)},
        "enabled": {"type": "boolean", "default": True},
        "env_file": {"type": "string"},
        "timeouts.call": call,
    }
    server = _table(SERVER.words.items(), known)
    return {
        "$schema": DIALECT,
        "title": "toolkeep.toml",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "defaults": {"$ref": "#/$defs/Defaults"},
            "servers": {
                "type": "object",
                "propertyNames": {"pattern": _NAMES},
                "additionalProperties": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Server"}]},
            },
        },
        "$defs": {
            **{name: _expandable(part) for name, part in parts.items()},
            "Server": server,
            "Defaults": _table(DEFAULTS.words.items(), known),
        },
    }


class _Quietly(GenerateJsonSchema):
    """A default that JSON cannot write, such as our frozen mappings, is left out."""

    ignored_warning_kinds = frozenset({"non-serializable-default"})  # pyright: ignore[reportAssignmentType]


def _describe(model: type[BaseModel], properties: dict[str, Any]) -> None:
    """From the texts below the fields. Pydantic can do that, but does it whenever the class is
    made, and reads the source for it: too dear for every import."""
    (made,) = ast.parse(inspect.getsource(model)).body
    body = cast("ast.ClassDef", made).body
    for field, text in pairwise(body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as said)),
            ) if name in properties:
                properties[name]["description"] = inspect.cleandoc(said)
            case _:
                pass


def _table(words: Iterable[tuple[str, str]], known: dict[str, Any]) -> dict[str, Any]:
    properties = {key: _expandable(known[ours]) for key, ours in words}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _expandable(part: Any) -> Any:
    """With a reference allowed wherever a number or a truth value is."""
    if isinstance(part, list):
        return [_expandable(one) for one in cast("list[Any]", part)]
    if not isinstance(part, dict):
        return part
    found = {
        key: value if key in ("default", "enum") else _expandable(value)
        for key, value in cast("dict[str, Any]", part).items()
    }
    if found.get("type") not in _EXPANDED:
        return found
    outer = {key: found.pop(key) for key in ("default", "title", "description") if key in found}
    return {**outer, "anyOf": [found, _REFERENCE]}
