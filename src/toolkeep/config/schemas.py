"""`schema`: the JSON Schema of `toolkeep.toml`, for editors.

Generated from the models, so it cannot become stale. It allows exactly the keys that the loader
accepts. Every value that is not a string may also be a string with a `${…}` reference.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from toolkeep.config.auth import Auth
from toolkeep.config.dialects.draft import TRANSPORT_KEYWORDS
from toolkeep.config.dialects.mcp_json import OWN_DEFAULTS_KEYS, OWN_SERVER_KEYS
from toolkeep.config.gateway import (
    ApiKey,
    Audit,
    GatewaySettings,
    Jwt,
    Limits,
    ProfileSettings,
)
from toolkeep.config.spec import TLS, Egress, ServerSpec, Timeouts

JSON_SCHEMA_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_REF_TEMPLATE = "#/$defs/{model}"
_REFERENCE_SCHEMA = {"type": "string", "pattern": r"\$\{"}
_STATE: dict[str, Any] = {
    "state": {"type": "string", "description": "The URL of the store that processes share."},
    "state_keys": {
        "type": "array",
        "items": {"type": "string"},
        "description": "Keys that encrypt what is in the store. The first encrypts, all decrypt.",
    },
}
GATEWAY_MODELS = (GatewaySettings, ApiKey, Jwt, ProfileSettings, Limits, Audit)
_EXPANDABLE_TYPES = ("integer", "number", "boolean")
_NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"


def schema() -> dict[str, Any]:
    """The schema in Draft 2020-12, as a new dictionary."""
    made = ServerSpec.model_json_schema(
        ref_template=_REF_TEMPLATE, schema_generator=_SchemaGenerator
    )
    parts = cast("dict[str, Any]", made.pop("$defs", {}))
    fields = cast("dict[str, Any]", made["properties"])
    gateway = GatewaySettings.model_json_schema(
        ref_template=_REF_TEMPLATE, schema_generator=_SchemaGenerator
    )
    parts |= {**gateway.pop("$defs"), "GatewaySettings": gateway}
    for model, into in _models(made, parts):
        _add_descriptions(model, into["properties"])
    _allow_short_forms(parts)
    call = parts["Timeouts"]["properties"]["call"]
    known: dict[str, Any] = {
        **fields,
        "type": {"enum": list(TRANSPORT_KEYWORDS)},
        "transport": {"enum": list(TRANSPORT_KEYWORDS)},
        "enabled": {"type": "boolean", "default": True},
        "env_file": {"type": "string"},
        "timeouts.call": call,
    }
    server = _table_schema(OWN_SERVER_KEYS.keys.items(), known)
    return {
        "$schema": JSON_SCHEMA_DRAFT,
        "title": "toolkeep.toml",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            **_STATE,
            "defaults": {"$ref": "#/$defs/Defaults"},
            "gateway": {"$ref": "#/$defs/GatewaySettings"},
            "servers": {
                "type": "object",
                "propertyNames": {"pattern": _NAME_PATTERN},
                "additionalProperties": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Server"}]},
            },
        },
        "$defs": {
            **{name: _allow_references(part) for name, part in parts.items()},
            "Server": server,
            "Defaults": _table_schema(OWN_DEFAULTS_KEYS.keys.items(), known),
        },
    }


def _models(made: Any, parts: Any) -> Iterable[tuple[type[BaseModel], Any]]:
    yield ServerSpec, made
    for model in (Timeouts, TLS, Auth, Egress, *GATEWAY_MODELS):
        yield model, parts[model.__name__]


def _allow_short_forms(parts: dict[str, Any]) -> None:
    """What a gateway's table may have in place of tables: the hashes of a key, the file of the
    audit stream. A profile has the name of its entry."""
    settings = parts["GatewaySettings"]["properties"]
    key = parts["ApiKey"]["properties"]["hash"]
    short = [{"$ref": "#/$defs/ApiKey"}, *cast("list[Any]", key["anyOf"])]
    settings["keys"]["additionalProperties"] = {"anyOf": short}
    settings["audit"]["anyOf"].append({"type": "string"})
    parts["ProfileSettings"]["required"].remove("name")


class _SchemaGenerator(GenerateJsonSchema):
    """Leaves out defaults that JSON cannot represent, such as frozen mappings."""

    ignored_warning_kinds = frozenset({"non-serializable-default"})  # pyright: ignore[reportAssignmentType]


def _add_descriptions(model: type[BaseModel], properties: dict[str, Any]) -> None:
    """Add the docstrings below the fields. Pydantic can do that too, but it would read the source
    at every import."""
    (made,) = ast.parse(inspect.getsource(model)).body
    body = cast("ast.ClassDef", made).body
    for field, text in pairwise(body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as docstring)),
            ) if name in properties:
                properties[name]["description"] = inspect.cleandoc(docstring)
            case _:
                pass


def _table_schema(keys: Iterable[tuple[str, str]], known: dict[str, Any]) -> dict[str, Any]:
    properties = {key: _allow_references(known[ours]) for key, ours in keys}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _allow_references(part: Any) -> Any:
    """The schema with a `${…}` reference allowed wherever a number or boolean is."""
    if isinstance(part, list):
        return [_allow_references(one) for one in cast("list[Any]", part)]
    if not isinstance(part, dict):
        return part
    found = {
        key: value if key in ("default", "enum") else _allow_references(value)
        for key, value in cast("dict[str, Any]", part).items()
    }
    if found.get("type") not in _EXPANDABLE_TYPES:
        return found
    outer = {key: found.pop(key) for key in ("default", "title", "description") if key in found}
    return {**outer, "anyOf": [found, _REFERENCE_SCHEMA]}
