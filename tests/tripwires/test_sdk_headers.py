"""Our headers that mirror a modern request beside the SDK's (`mcp.shared.inbound`).

Known differences, all intended: our header names are in lower case; texts of problems differ; a
lone surrogate, which no server can have sent in JSON, fails in the SDK and becomes a question mark
here; we enter any mapping, and tuples, because frozen schemas hold them.
"""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mcp.shared import inbound

from toolkeep._rules.protocol_headers import (
    ANNOTATION,
    METHOD_HEADER,
    NAME_HEADER,
    NAME_PARAMS,
    PARAM_PREFIX,
    VERSION_HEADER,
    annotated_paths,
    annotation_problem,
    encode_header_value,
    param_headers,
)


def annotated(header: Any = "Region", kind: Any = "string") -> dict[str, Any]:
    return {"type": kind, ANNOTATION: header}


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


KEYS = st.sampled_from(["a", "b", "a.b", "", "properties"])
DATA = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
HEADERS = st.sampled_from(["A", "a", "B", "x-y", "", "a b", "é"]) | st.just(7)
KINDS = st.sampled_from(["string", "integer", "boolean", "number", "object"]) | st.just(["string"])
LEAVES = DATA | st.fixed_dictionaries({ANNOTATION: HEADERS}, optional={"type": KINDS})
SINGLE = st.sampled_from(["items", "not", "if", "contentSchema", "default", "$ref", "enum"])
LISTS = st.sampled_from(["allOf", "prefixItems", "items", "examples"])
MAPS = st.sampled_from(["$defs", "patternProperties", "properties", "const"])


def _larger(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    below = st.dictionaries(KEYS, parts, max_size=3)
    return st.one_of(
        st.fixed_dictionaries({"properties": below}),
        st.dictionaries(SINGLE, parts, max_size=2),
        st.dictionaries(LISTS, st.lists(parts, max_size=2), max_size=2),
        st.dictionaries(MAPS, below, max_size=2),
        st.fixed_dictionaries({ANNOTATION: HEADERS, "type": KINDS, "properties": below}),
    )


SCHEMAS = st.recursive(LEAVES, _larger, max_leaves=8)
ARGUMENTS = st.dictionaries(
    KEYS, st.recursive(DATA, lambda some: st.dictionaries(KEYS, some, max_size=3), max_leaves=6)
)


@settings(max_examples=300)
@given(found=SCHEMAS, arguments=ARGUMENTS)
@example(found=schema(a=schema(b=annotated("A")), b=annotated("B", "integer")), arguments={"b": 7})
@example(found=schema(**{"a": schema(b=annotated()), "a.b": annotated()}), arguments={})
def test_a_schema_gives_the_headers_that_it_gives_in_the_sdk(
    found: Any, arguments: dict[str, Any]
) -> None:
    assert bool(annotation_problem(found)) == (inbound.find_invalid_x_mcp_header(found) is not None)
    if annotation_problem(found):
        return
    ours, theirs = annotated_paths(found), inbound.x_mcp_header_map(found)
    prefixed = {path: (PARAM_PREFIX + token).lower() for path, token in theirs.items()}
    assert ours == prefixed
    sent = inbound.mcp_param_headers(theirs, arguments)
    assert param_headers(ours, arguments) == {name.lower(): text for name, text in sent.items()}


@given(value=st.text(st.characters(codec="utf-8"), max_size=12))
@example(value="=?base64?\n?=")
@example(value="\x1c")
@example(value="\u3000")
def test_a_value_is_encoded_as_in_the_sdk(value: str) -> None:
    assert encode_header_value(value) == inbound.encode_header_value(value)
    assert inbound.decode_header_value(encode_header_value(value)) == value


def test_the_sdk_cannot_encode_a_lone_surrogate() -> None:
    with pytest.raises(UnicodeEncodeError):
        inbound.encode_header_value("\ud800")


def test_the_names_are_those_of_the_sdk() -> None:
    assert inbound.MCP_PROTOCOL_VERSION_HEADER == VERSION_HEADER
    assert inbound.MCP_METHOD_HEADER == METHOD_HEADER
    assert inbound.MCP_NAME_HEADER == NAME_HEADER
    assert inbound.X_MCP_HEADER_KEY == ANNOTATION
    assert inbound.MCP_PARAM_HEADER_PREFIX.lower() == PARAM_PREFIX
    assert dict(inbound.NAME_BEARING_METHODS) == NAME_PARAMS
