"""The HTTP headers that mirror a modern request: `Mcp-Method`, `Mcp-Name` and `Mcp-Param-*`.

A tool's input schema names the arguments that also travel as headers (`x-mcp-header`). Such an
annotation is valid only on a property that a chain of `properties` reaches from the root.
References are not followed.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

VERSION_HEADER = "mcp-protocol-version"
METHOD_HEADER = "mcp-method"
NAME_HEADER = "mcp-name"
PARAM_PREFIX = "mcp-param-"
ANNOTATION = "x-mcp-header"

NAME_PARAMS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The parameter that `Mcp-Name` repeats, by method."""

_TYPES = ("string", "integer", "boolean")
"""Types whose text is the same everywhere; numbers with a fraction are not."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A header name, by RFC 9110."""
_PLAIN = re.compile(r"(?! )[\x20-\x7e]*(?<! )")
_ENCODED = re.compile(r"=\?base64\?.*\?=")

_ONE_SCHEMA = frozenset(
    (
        *("items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames"),
        *("unevaluatedProperties", "not", "if", "then", "else", "contentSchema"),
    )
)
_SCHEMA_LIST = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_SCHEMA_MAP = frozenset(("patternProperties", "dependentSchemas", "$defs", "definitions"))

Path = tuple[str, ...]


def encode_header_value(value: str) -> str:
    """The value as it is, or in base64 if a header cannot carry it."""
    if _PLAIN.fullmatch(value) and not _ENCODED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'replace')).decode('ascii')}?="


def annotation_problem(schema: Mapping[str, Any]) -> str:
    """Why the header annotations of an input schema are invalid; empty if they are valid."""
    seen: dict[str, Path] = {}
    for path, part in _parts(schema):
        if ANNOTATION not in part:
            continue
        if not path:
            return f"{ANNOTATION} stands where no chain of properties leads"
        where, header, kind = ".".join(path), part[ANNOTATION], part.get("type")
        if not isinstance(header, str) or not _TOKEN.fullmatch(header):
            return f"the {ANNOTATION} of {where!r} is not a header name"
        if kind not in _TYPES:
            return f"{where!r} has an {ANNOTATION} and is not of type {', '.join(_TYPES)}"
        first = seen.setdefault(header.lower(), path)
        if first != path:
            return f"the {ANNOTATION} of {where!r} is that of {'.'.join(first)!r}"
    return ""


def annotated_paths(schema: Mapping[str, Any]) -> dict[Path, str]:
    """The path of each annotated property, with its header. The annotations must be valid."""
    return {
        path: PARAM_PREFIX + part[ANNOTATION].lower()
        for path, part in _parts(schema)
        if path and isinstance(part.get(ANNOTATION), str)
    }


def param_headers(paths: Mapping[Path, str], arguments: Mapping[str, Any]) -> dict[str, str]:
    """The headers for these arguments. A missing or null argument has none."""
    headers: dict[str, str] = {}
    for path, header in paths.items():
        text = _as_text(_value_at(arguments, path))
        if text is not None:
            headers[header] = encode_header_value(text)
    return headers


def _value_at(arguments: Any, path: Path) -> Any:
    value = arguments
    for key in path:
        known = isinstance(value, Mapping)
        value = cast("Mapping[str, Any]", value).get(key) if known else None
    return value


def _as_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        return None
    try:
        return str(value)
    except ValueError:  # an integer of more digits than Python converts
        return None


def _parts(schema: Any) -> Iterator[tuple[Path | None, Mapping[str, Any]]]:
    """All parts of a schema, each with its chain of properties; None: it has none. Iterative, for
    schemas of any depth. Values that are data (`default`, `enum`, …) are not parts."""
    waiting: list[tuple[Path | None, Any]] = [((), schema)]
    while waiting:
        path, node = waiting.pop()
        if not isinstance(node, Mapping):
            continue
        part = cast("Mapping[str, Any]", node)
        yield path, part
        for keyword, value in part.items():
            if keyword == "properties" and isinstance(value, Mapping):
                below = cast("Mapping[str, Any]", value).items()
                waiting += [(None if path is None else (*path, key), sub) for key, sub in below]
            elif keyword in _ONE_SCHEMA:
                waiting.append((None, value))
            elif keyword in _SCHEMA_LIST and isinstance(value, list | tuple):
                waiting += [(None, sub) for sub in cast("list[Any]", value)]
            elif keyword in _SCHEMA_MAP and isinstance(value, Mapping):
                waiting += [(None, sub) for sub in cast("Mapping[str, Any]", value).values()]
